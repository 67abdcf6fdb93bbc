"""Megatron's mixtures of experts, latent attention, recompute-modules and Megatron-FSDP against arithmetic on paper."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest

from vramcast.catalog.gpus import find_gpu
from vramcast.engine.estimate import estimate
from vramcast.engine.parallel.ranks import Rank, rank_of_stage, rank_peaks, rank_program
from vramcast.engine.parallel.topology import topology_of
from vramcast.engine.recording.record import sizes_of
from vramcast.engine.stream.timeline import step_events
from vramcast.errors import InputError
from vramcast.forecast import Forecast
from vramcast.job import job_from
from vramcast.models.families import record
from vramcast.models.read.config import Config
from vramcast.models.record.program import Sizes
from vramcast.models.record.tape import Regime, Section
from vramcast.setup import resolve
from vramcast.units import MiB

MIXTRAL = {
    "model_type": "mixtral", "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 2, "intermediate_size": 4096, "vocab_size": 32000, "num_local_experts": 8,
    "num_experts_per_tok": 2, "tie_word_embeddings": False,
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v3", "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16,
    "intermediate_size": 4096, "vocab_size": 32000, "q_lora_rank": 512, "kv_lora_rank": 256, "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32, "v_head_dim": 64, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2,
    "moe_intermediate_size": 1024, "n_shared_experts": 1, "first_k_dense_replace": 1, "tie_word_embeddings": False,
    "num_nextn_predict_layers": 1,
}  # fmt: skip
JOB = {
    "framework": "megatron", "precision": "megatron-bf16", "seq": 2048, "gpus": 8, "strategy": "zero1",
    "gpu": "h100-80gb", "expert-dispatch": "alltoall", "attention": "flash",
}  # fmt: skip


def rank(config: dict[str, Any], stage: int = 0, **values: object) -> Rank:
    job = job_from(
        {"model": "m", **JOB, **{name.replace("_", "-"): value for name, value in values.items()}}
    )
    topology, gpu, c = topology_of(resolve(job)), find_gpu("h100-80gb"), Config(config)
    program = rank_program(resolve(job), c, gpu, topology, sizes_of(resolve(job).data, c))
    return rank_of_stage(resolve(job), gpu, topology, program, stage)


def layer(of: Rank, index: int = -1) -> Section:
    return [placed.section for placed in of.step.program.sections if placed.section.is_block][index]


def kept(section: Section) -> dict[str, int]:
    """Bytes kept for backward, by label."""
    values = {id(value): value for op in section.ops for value in op.saved}
    found: dict[str, int] = {}
    for value in values.values():
        found[value.label] = found.get(value.label, 0) + int(value.nbytes)
    return found


def bill(tmp_path: Path, config: dict[str, Any], **values: object) -> Forecast:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    given = {name.replace("_", "-"): value for name, value in values.items()}
    return estimate(job_from({**JOB, "model": str(path), **given}))


def test_experts_are_spread_over_ep_and_their_states_over_what_is_left() -> None:
    """8 experts over ep 4: two on each GPU; 8 GPUs share the rest, two the same experts."""
    states = rank(MIXTRAL, ep=4).states
    experts = [param for param in states.weights if param.kind == "experts"]
    assert sum(param.numel for param in experts) == 4 * 2 * 3 * 1024 * 4096
    rest = sum(param.numel for param in states.weights) - sum(param.numel for param in experts)
    shares = {param.kind == "experts": param.numel for param in states.params}
    assert shares == {True: 4 * 2 * 3 * 1024 * 4096 // 2, False: -(-rest // 8)}


def test_expert_tp_narrows_experts_and_widens_what_they_are_given() -> None:
    whole, narrow = (
        kept(layer(rank(MIXTRAL, tp=2, ep=4, expert_tp=1, sequence_parallel=True))),
        kept(layer(rank(MIXTRAL, tp=2, ep=4, expert_tp=2, sequence_parallel=True))),
    )
    rows = 2048 // 2 * 2  # tokens of a sequence-parallel rank, two experts each
    assert whole["rows by expert"] == rows * 1024 * 2
    assert narrow["rows by expert"] == 2 * whole["rows by expert"]
    assert whole["linear_fc1"] == narrow["linear_fc1"] == rows * 2 * 4096 * 2


@pytest.mark.parametrize("dispatch", ["allgather", "alltoall", "flex"])
def test_every_dispatcher_keeps_what_the_products_need(dispatch: str) -> None:
    """Rows, the wide product and the activation; what is on its way is not kept."""
    found = kept(layer(rank(MIXTRAL, ep=4, expert_dispatch=dispatch)))
    rows = 2048 * 2
    wide = sum(nbytes for label, nbytes in found.items() if "row" in label or label == "linear_fc1")
    least = rows * (1024 + 3 * 4096) * 2
    assert least <= wide <= least * 1.01


def test_an_uneven_load_adds_rows() -> None:
    even, uneven = (kept(layer(rank(MIXTRAL, ep=4, expert_load=load))) for load in (100, 150))
    assert uneven["linear_fc1"] == even["linear_fc1"] * 3 // 2


def test_the_deterministic_way_back_keeps_the_rows() -> None:
    """torch's index_add needs its source in backward, scatter_add does not."""
    fast, slow = (
        sum(kept(layer(rank(MIXTRAL, ep=4, deterministic=way))).values()) for way in (False, True)
    )
    assert slow - fast == 2048 * 2 * 1024 * 2


def test_recomputed_parts_are_not_kept() -> None:
    full = kept(layer(rank(DEEPSEEK, tp=2, sequence_parallel=True)))
    less = kept(
        layer(
            rank(
                DEEPSEEK,
                tp=2,
                sequence_parallel=True,
                recompute=["moe_act", "mla_up_proj", "layernorm"],
            )
        )
    )
    gone = {"activated rows", "q", "k", "v", "q_layernorm", "input_layernorm", "pre_mlp_layernorm"}
    assert gone <= full.keys()
    assert not gone & less.keys()
    assert less["linear_fc1"] == full["linear_fc1"]


def test_what_is_recomputed_comes_back_in_backward() -> None:
    """A whole mixture computed again: its rows are gone after forward, and there at its backward."""
    plain, again = rank(MIXTRAL, ep=4), rank(MIXTRAL, ep=4, recompute=["moe"])
    gone = sum(kept(layer(plain)).values()) - sum(kept(layer(again)).values())
    back = sum(int(value.nbytes) for op in layer(again).ops for value in op.restored_here)
    assert gone == back > 2048 * 2 * (1024 + 3 * 4096) * 2
    assert again.passes()["forward"] < plain.passes()["forward"] - 3 * gone


def test_offloaded_parts_are_on_the_host_and_come_back(tmp_path: Path) -> None:
    """What experts are given goes to pinned memory, and is there again while their backward runs."""
    parts = ["expert_fc1", "moe_act"]
    plain, away = rank(MIXTRAL, ep=4), rank(MIXTRAL, ep=4, offload_modules=parts)
    gone = sum(kept(layer(plain)).values()) - sum(kept(layer(away)).values())
    assert gone == 2048 * 2 * (1024 + 2 * 4096) * 2
    assert plain.passes()["forward"] - away.passes()["forward"] > 2 * gone
    assert sum(int(value.nbytes) for op in layer(away).ops for value in op.restored_here) == gone
    lines = {
        entry.component: entry
        for entry in bill(tmp_path, MIXTRAL, ep=4, offload_modules=parts).ledger.entries
    }
    pinned = (
        8 * 4 * (8 * MiB + 64 * MiB)
    )  # ranks, layers, rows and wide rows; powers of two already
    assert lines["saved tensors of offload-modules"].nbytes == pinned


def test_an_overlapped_forward_is_there_in_backward() -> None:
    """As much in flight as before, and the forward of one layer beside the backward of layers, not of the head."""
    small = {**MIXTRAL, "vocab_size": 1024}
    values: dict[str, Any] = {"ep": 4, "pp": 2, "accumulate": 4}
    apart, beside = rank(small, **values), rank(small, overlap_experts=True, **values)
    assert beside.step.others() == apart.step.others()
    more = {
        phase: beside.passes()[phase] - apart.passes()[phase] for phase in ("forward", "backward")
    }
    assert more["forward"] == 0
    assert more["backward"] > sum(kept(layer(apart)).values())
    wide = {**MIXTRAL, "vocab_size": 256_000}
    last, overlapped = (
        rank(wide, 1, overlap_experts=overlap, **values).passes() for overlap in (False, True)
    )
    assert overlapped["backward"] == last["backward"]


def test_stages_with_as_many_sections_have_their_own_parameters() -> None:
    """Embedding and three layers; what was received, one layer, head and loss: four sections each."""
    first, last = (rank(MIXTRAL, stage, pp=2, stage_layers=["3", "1"]) for stage in (0, 1))
    setup = last.step.setup
    assert len(first.step.program.sections) == len(last.step.program.sections)
    topology, gpu, c = topology_of(setup), find_gpu("h100-80gb"), Config(MIXTRAL)
    whole = rank_program(setup, c, gpu, topology, sizes_of(setup.data, c))
    both = [
        rank_of_stage(setup, gpu, topology, whole, stage) for stage in (0, 1)
    ]  # from one recording
    held = [sum(param.numel for param in each.states.weights) for each in both]
    assert held == [sum(param.numel for param in each.states.weights) for each in (first, last)]


@pytest.mark.parametrize("values", [{"recompute": ["moe_act"]}, {"offload_modules": ["core_attn"]}])
def test_parts_of_megatrons_layers_are_refused_elsewhere(values: dict[str, object]) -> None:
    with pytest.raises(InputError, match="parts of Megatron's layers"):
        rank({**MIXTRAL, "model_type": "olmoe"}, **values)


def test_prediction_ahead_has_a_layer_a_loss_and_the_tables_on_the_last_stage() -> None:
    first, last = (rank(DEEPSEEK, stage, pp=2) for stage in (0, 1))
    names = [param.name for param in last.states.weights]
    assert sum(name.endswith("word_embeddings.weight") for name in names) == 1
    assert sum(name.endswith("output_layer.weight") for name in names) == 1
    assert not any("mtp" in param.name for param in first.states.weights)
    logits = 2048 * 32000 * 4
    mtp = next(placed.section for placed in last.step.program.sections if placed.name == "mtp")
    assert kept(mtp)["logits fp32"] == logits
    without = rank({**DEEPSEEK, "num_nextn_predict_layers": 0}, 1, pp=2)
    assert last.passes()["loss"] - without.passes()["loss"] > logits


def test_given_stages_hold_their_layers() -> None:
    for stage, layers in ((0, 3), (1, 1)):
        placed = rank(MIXTRAL, stage, pp=2, stage_layers=["3", "1"]).step.program.sections
        assert sum(place.section.is_block for place in placed) == layers


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"stage_layers": ["3", "2"]}, "add up to 4"),
        ({"stage_layers": ["4"]}, "Give 2"),
        ({"stage_layers": ["a", "b"]}, "whole numbers"),
        ({"stage_layers": ["2", "2"], "first_stage_layers": 2}, "leave out first-stage-layers"),
        ({"cublas_workspace": "4096:8"}, "pairs of KiB"),
        ({"overlap_experts": True}, "needs ep"),
        ({"framework": "plain"}, "expert-dispatch names Megatron's dispatchers"),
    ],
)
def test_wrong_words_are_refused(tmp_path: Path, values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        bill(tmp_path, MIXTRAL, pp=2, **values)


@pytest.mark.parametrize(
    "wrong",
    [
        {"first_k_dense_replace": "3"}, {"n_shared_experts": 1.5}, {"moe_layer_freq": [1]}, {"moe_layer_freq": "all"},
        {"num_experts_per_tok": 99}, {"moe_intermediate_size": -1}, {"num_nextn_predict_layers": -1},
        {"n_routed_experts": 10**30}, {"mlp_only_layers": 3}, {"q_lora_rank": "wide"},
    ],
)  # fmt: skip
def test_broken_configs_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        rank({**DEEPSEEK, **wrong})


def test_words_about_experts_need_experts(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no experts"):
        bill(tmp_path, {**MIXTRAL, "model_type": "llama", "num_local_experts": None})


def test_engine_workspaces_and_stand_ins_are_lines() -> None:
    """Grouped experts bring four more workspaces; each shape of weights one stand-in, where gradients are fused."""
    entries = {entry.component: entry.nbytes for entry in rank(MIXTRAL, ep=4).persistent}
    assert entries["Transformer Engine's workspaces"] == 5 * (32 * MiB + 1024)
    shapes = 1536 * 1024 + 1024 * 1024 + 8192 * 1024 + 1024 * 4096 + 32000 * 1024
    assert entries["stand-ins for weight gradients"] == 2 * shapes
    apart = {
        entry.component
        for entry in rank(MIXTRAL, ep=4, grad_fusion=False, expert_gemm="loop").persistent
    }
    assert "stand-ins for weight gradients" not in apart


def test_gathered_tokens_have_a_buffer_of_their_own() -> None:
    """Of all tokens for the allgather dispatcher (ep 4), or of the output layer under sequence parallelism."""

    def buffer(**values: object) -> int:
        name = "Megatron's buffer for gathered tokens"
        return sum(
            entry.nbytes for entry in rank(MIXTRAL, **values).persistent if entry.component == name
        )

    assert buffer(ep=4, expert_dispatch="allgather") == 4 * 2048 * 1024 * 2
    assert buffer(ep=4) == 0
    assert buffer(tp=2, sequence_parallel=True) == 2048 * 1024 * 2


def test_without_fusion_a_weight_gradient_passes_by() -> None:
    small = {**MIXTRAL, "vocab_size": 1024}
    fused, apart = (
        rank(small, ep=8, seq=256, grad_fusion=fusion, accumulate=2).passes()
        for fusion in (True, False)
    )
    assert apart["backward"] - fused["backward"] > MiB
    assert fused["forward"] == apart["forward"]


def test_megatron_fsdp_shards_everything_and_gathers_two_units_ahead() -> None:
    sharded = rank(MIXTRAL, strategy="zero3", ep=4)
    numel = sum(param.numel for param in rank(MIXTRAL, strategy="ddp", ep=4).states.weights)
    experts = 4 * 2 * 3 * 1024 * 4096
    share = sum(param.numel for param in sharded.states.weights)
    assert share == pytest.approx(
        (numel - experts) / 8 + experts / 2, abs=20
    )  # with padding of units
    assert sharded.states.gradient_bytes == 4 * share
    unit = sum(param.numel for param in layer(sharded).params)
    root = numel - 4 * unit
    gathered = list(gathered_bytes(sharded))
    assert max(gathered) == 2 * (root + 3 * unit)
    assert gathered[-1] == 0
    stage = rank({**MIXTRAL, "num_hidden_layers": 16}, 1, strategy="zero3", pp=2)
    assert max(gathered_bytes(stage)) <= 2 * 3 * max(
        sum(p.numel for p in layer(stage).params), 1024 * 32000
    )


def gathered_bytes(of: Rank) -> Iterator[int]:
    level = 0
    for stamped in step_events(of.step.program, of.step.mode(fresh=False)):
        if stamped.event.kind == "gathered":
            level += stamped.event.sign * int(stamped.event.nbytes)
            yield level


def test_the_report_says_how_rows_travel(tmp_path: Path) -> None:
    forecast = bill(tmp_path, MIXTRAL, ep=4)
    assert any("alltoall (expert-dispatch)" in text for text in forecast.assumptions)
    gathered = bill(tmp_path, MIXTRAL, ep=4, strategy="zero3")
    assert any("Megatron-FSDP (optim_grads_params)" in text for text in gathered.assumptions)


def test_the_fused_cross_entropy_works_on_the_logits() -> None:
    """Transformer Engine's writes the gradient over the 16-bit logits: no fp32 copy of them."""
    full, fused = (rank(MIXTRAL, loss=loss).passes()["loss"] for loss in ("full", "fused"))
    assert full - fused == pytest.approx(2048 * 32000 * 4, rel=1e-6)


@pytest.mark.parametrize("dispatch", ["allgather", "alltoall", "flex"])
def test_a_grid_of_sizes_gives_what_each_job_gives(dispatch: str) -> None:
    values = {
        "expert-dispatch": dispatch,
        "ep": 4,
        "tp": 2,
        "sequence-parallel": True,
        "recompute": ["moe_act"],
    }
    job = job_from({"model": "m", **JOB, **values, "offload-modules": ["expert_fc1"]})
    c, gpu, lengths = Config(DEEPSEEK), find_gpu("h100-80gb"), (1024, 2048, 4096)
    grid = rank_peaks(
        resolve(job), c, gpu, replace(sizes_of(resolve(job).data, c), seq=numpy.array(lengths))
    )
    each = [
        rank_peaks(
            resolve(replace(job, seq=length)),
            c,
            gpu,
            sizes_of(resolve(replace(job, seq=length)).data, c),
        )
        for length in lengths
    ]
    large = [peak for length, peak in zip(lengths, each, strict=True) if length > 1024]
    assert (
        list(grid)[1:] == large
    )  # the shortest has tensors too small to be offloaded, which a grid does not see
    assert grid[0] <= each[0]


def test_normed_heads_of_qwen3_are_kept() -> None:
    qwen = {**MIXTRAL, "model_type": "qwen3_moe", "moe_intermediate_size": 512, "head_dim": 128}
    statistics = {"q_layernorm statistics", "k_layernorm statistics"}
    assert statistics <= kept(layer(rank(qwen))).keys()
    assert not statistics & kept(layer(rank({**qwen, "model_type": "qwen2_moe"}))).keys()


@pytest.mark.parametrize(
    "config",
    [
        MIXTRAL,
        {**DEEPSEEK, "num_nextn_predict_layers": 0},
        {**DEEPSEEK, "num_nextn_predict_layers": 0, "q_lora_rank": None},
        {**MIXTRAL, "model_type": "qwen3_moe", "num_experts": 8, "moe_intermediate_size": 512, "head_dim": 128},
        {**MIXTRAL, "model_type": "qwen2_moe", "num_experts": 8, "moe_intermediate_size": 512,
         "shared_expert_intermediate_size": 2048},
        {**MIXTRAL, "model_type": "qwen2", "num_local_experts": None},
        {**MIXTRAL, "model_type": "qwen3", "num_local_experts": None, "head_dim": 128},
    ],
)  # fmt: skip
def test_megatron_has_the_parameters_that_transformers_has(config: dict[str, Any]) -> None:
    """The same model in other tensors: qkv and gate/up joined, experts one by one."""
    own, other = (
        record(Config(config), Regime(code=code), Sizes()) for code in ("megatron", "transformers")
    )
    assert sum(param.numel for param in own.params()) == sum(
        param.numel for param in other.params()
    )


def test_a_mixture_of_a_gpt_counts_its_experts(tmp_path: Path) -> None:
    gpt = {
        "model_type": "gpt2", "n_embd": 256, "n_layer": 2, "n_head": 4, "n_positions": 512, "vocab_size": 1024,
        "num_experts": 4, "num_experts_per_tok": 1, "add_bias_linear": False,
    }  # fmt: skip
    few, many = (
        bill(tmp_path, {**gpt, "num_experts": number}, seq=512, gpus=4, ep=2) for number in (4, 8)
    )
    more = 2 * 4 * (2 * 256 * 1024 + 256)
    assert many.model.params_total - few.model.params_total == more
