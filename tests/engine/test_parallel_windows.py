"""Gathers and reductions in the stream, seams of tensor and context parallelism, and the search, against each other."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from vramcast.engine.estimate import estimate
from vramcast.engine.parallel.divisions import search_divisions
from vramcast.engine.parallel.gathering import BUFFER, GATHERED, REDUCED, UNSHARDED
from vramcast.engine.parallel.ranks import rank_of_stage, rank_program
from vramcast.engine.parallel.topology import topology_of
from vramcast.engine.prices.sweep import sweep
from vramcast.engine.stream.saved_tensors import kept
from vramcast.engine.stream.timeline import Stamped
from vramcast.errors import InputError
from vramcast.job import Job, job_from
from vramcast.ledger import BACKWARD, FORWARD, NEXT_BACKWARD, Category
from vramcast.models.read.config import Config
from vramcast.models.record.program import Sizes
from vramcast.models.record.tape import F32
from vramcast.setup import resolve

CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 128,
    "max_position_embeddings": 4096, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
BLOCK = 4 * 64 * 64 + 3 * 64 * 128 + 2 * 64
ROOT = 2 * 128 * 64 + 64


def job(tmp_path: Path, **values: object) -> Job:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values.pop("config", CONFIG)))
    flags = {name.replace("_", "-"): value for name, value in values.items()}
    return job_from({"model": str(path), "batch": 1, "seq": 64, "framework": "torchtitan", **flags})


def stream_of(asked: Job, config: dict[str, object] = CONFIG) -> list[Stamped]:
    topology = topology_of(resolve(asked))
    program = rank_program(
        resolve(asked), Config(config), None, topology, Sizes(batch=asked.batch, seq=asked.seq)
    )
    return rank_of_stage(resolve(asked), None, topology, program, 0).step.stream()


def alive_bytes(stream: list[Stamped], kind: str, phase: str) -> int:
    """The most that events of one kind hold in one phase."""
    level = top = 0
    for item in stream:
        if item.event.kind == kind:
            level += item.event.sign * int(item.event.nbytes)
        if item.phase == phase:
            top = max(top, level)
    return top


def test_fsdp2_holds_one_block_and_one_buffer_beside_the_root(tmp_path: Path) -> None:
    stream = stream_of(job(tmp_path, gpus=4, strategy="fsdp2", torch_version="2.7"))
    assert alive_bytes(stream, GATHERED, FORWARD) == 2 * (ROOT + BLOCK)
    assert (
        alive_bytes(stream, BUFFER, FORWARD) == 2 * 2 * BLOCK
    )  # the next output comes before the last one goes
    assert alive_bytes(stream, BUFFER, BACKWARD) == 2 * BLOCK
    assert alive_bytes(stream, REDUCED, BACKWARD) == 4 * BLOCK  # fp32, one at a time
    assert alive_bytes(stream, UNSHARDED, BACKWARD) == 2 * (
        64 + 128 * 64 + BLOCK
    )  # the root's wait for the end


def test_until_torch_2_5_the_input_of_a_reduction_ended_with_it(tmp_path: Path) -> None:
    """From 2.5 on it is copied on the main stream, and so held until the next unit's."""
    old, new = (
        stream_of(job(tmp_path, gpus=4, strategy="fsdp2", torch_version=text))
        for text in ("2.4", "2.5")
    )

    def held(stream: list[Stamped]) -> list[bool]:
        """Whether a reduction's input is alive where the next gradient is made."""
        alive, found = False, []
        for item in stream:
            alive = item.event.sign > 0 if item.event.kind == REDUCED else alive
            if item.event.kind == UNSHARDED and item.event.sign > 0:
                found.append(alive)
        return found

    assert held(old)
    assert not any(held(old))
    assert any(held(new))


def test_without_resharding_every_block_stays_gathered(tmp_path: Path) -> None:
    stream = stream_of(job(tmp_path, gpus=4, strategy="fsdp2", torch_version="2.7", reshard=False))
    assert alive_bytes(stream, GATHERED, FORWARD) == 2 * (ROOT + 4 * BLOCK)


def test_fsdp1_gathers_the_next_block_meanwhile_in_backward_alone(tmp_path: Path) -> None:
    """forward_prefetch=False, BackwardPrefetch.BACKWARD_PRE."""
    stream = stream_of(job(tmp_path, gpus=4, strategy="fsdp1", framework="plain"))
    assert alive_bytes(stream, GATHERED, FORWARD) == 2 * (ROOT + BLOCK)
    assert alive_bytes(stream, GATHERED, BACKWARD) == 2 * (ROOT + 2 * BLOCK)
    assert alive_bytes(stream, BUFFER, FORWARD) == 0


@pytest.mark.parametrize("strategy", ["fsdp1", "fsdp2", "zero3"])
def test_nothing_but_sharded_gradients_outlives_the_step(tmp_path: Path, strategy: str) -> None:
    stream = stream_of(job(tmp_path, gpus=4, strategy=strategy, precision="bf16-mixed"))
    alive: dict[object, Stamped] = {}
    for item in stream:
        if item.event.sign > 0:
            assert item.key not in alive, item
            alive[item.key] = item
        else:
            assert item.key in alive, item
            assert alive.pop(item.key).event.nbytes == item.event.nbytes
    left = {item.event.kind for item in alive.values() if item.event.nbytes > 4}
    assert left <= {"gradient"}


def kept_in_layer(asked: Job, config: dict[str, object]) -> int:
    """Bytes that one layer keeps, row statistics in fp32 apart."""
    program = rank_program(
        resolve(asked),
        Config(config),
        None,
        topology_of(resolve(asked)),
        Sizes(batch=2, seq=asked.seq),
    )
    layer = next(placed.section for placed in program.sections if placed.section.is_block)
    return sum(int(item.value.nbytes) for item in kept(layer) if item.value.dtype != F32)


GPT = {
    **CONFIG,
    "model_type": "gpt2",
    "n_embd": 64,
    "n_head": 4,
    "n_layer": 4,
    "intermediate_size": 256,
}


@pytest.mark.parametrize(
    ("tp", "sequence", "each"),
    [(1, False, 34), (2, False, 10 + 12), (4, False, 16), (4, True, 8.5)],
)
def test_a_megatron_layer_keeps_what_korthikanti_et_al_say(
    tmp_path: Path, tp: int, sequence: bool, each: float
) -> None:
    """sbh(10 + 24/t), and 34/t with sequence parallelism (arXiv 2205.05198, with flash attention)."""
    asked = job(
        tmp_path, config=GPT, gpus=max(tp, 2), tp=tp, framework="megatron", precision="megatron-bf16",
        sequence_parallel=sequence,
    )  # fmt: skip
    assert kept_in_layer(asked, GPT) == each * 2 * 64 * 64


def test_sequence_parallel_code_that_keeps_gathered_inputs_pays_for_them(tmp_path: Path) -> None:
    """DTensor's tensor parallelism keeps the gathered input of a linear, Megatron gathers again."""
    asked = job(tmp_path, gpus=4, tp=4, precision="bf16-true")
    titan = rank_program(
        resolve(asked), Config(CONFIG), None, topology_of(resolve(asked)), Sizes(batch=2, seq=64)
    )
    layer = next(placed.section for placed in titan.sections if placed.section.is_block)
    gathered = [item for item in kept(layer) if "gathered" in item.value.label]
    assert [tuple(int(n) for n in item.value.shape) for item in gathered] == [(2, 64, 64)] * 2


def test_context_parallelism_divides_what_is_kept(tmp_path: Path) -> None:
    whole = kept_in_layer(job(tmp_path, gpus=2, framework="plain", precision="bf16-true"), CONFIG)
    half = kept_in_layer(
        job(tmp_path, gpus=2, cp=2, framework="plain", precision="bf16-true"), CONFIG
    )
    assert half * 2 == whole
    exchanged = kept_in_layer(
        job(tmp_path, gpus=2, cp=2, cp_style="ulysses", framework="plain", precision="bf16-true"),
        CONFIG,
    )
    assert exchanged == half + 2 * 32 * 64 * 2  # the output in heads and in tokens


def test_experts_are_divided_and_an_uneven_load_costs(tmp_path: Path) -> None:
    config = {**CONFIG, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    config["architectures"] = ["MixtralForCausalLM"]

    def held(category: Category, **values: object) -> int:
        result = estimate(
            job(tmp_path, config=config, gpus=8, strategy="ddp", framework="plain", **values)
        )
        return sum(
            e.nbytes for e in result.ledger.alive(NEXT_BACKWARD, "cuda:0") if e.category == category
        )

    experts = 4 * 4 * 8 * 3 * 64 * 128
    assert held(Category.WEIGHTS) - held(Category.WEIGHTS, ep=8) == experts * 7 // 8
    assert held(Category.ACTIVATIONS, ep=8, expert_load=200) > held(Category.ACTIVATIONS, ep=8)


def test_the_first_stage_holds_one_more_microbatch_than_the_second(tmp_path: Path) -> None:
    result = estimate(
        job(tmp_path, gpus=4, pp=4, accumulate=8, framework="plain", strategy="none", seq=4096)
    )
    assert [rank.name for rank in result.ranks] == [f"pipeline stage {stage}" for stage in range(4)]
    assert sum(rank.ranks for rank in result.ranks) == 4
    others = {
        entry.component: entry.nbytes
        for entry in result.ledger.alive(NEXT_BACKWARD, "cuda:0")
        if "in flight" in entry.component
    }
    assert len(others) == 1
    assert next(iter(others.values())) % 3 == 0


@pytest.mark.parametrize(("framework", "sent"), [("megatron", 0), ("torchtitan", 1)])
@pytest.mark.parametrize(("checkpointing", "kept"), [("full", 4), ("offload", 0)])
def test_micro_batches_in_flight_hold_the_inputs_of_recomputed_blocks(
    framework: str, sent: int, checkpointing: str, kept: int, tmp_path: Path
) -> None:
    """And what the stage has sent, which Megatron lets go; offloaded inputs are on the host."""
    config = {**CONFIG, "num_hidden_layers": 16}
    values = {
        "gpus": 4,
        "pp": 4,
        "accumulate": 8,
        "precision": "bf16-true",
        "checkpointing": checkpointing,
    }
    events = [
        item.event
        for item in stream_of(job(tmp_path, config=config, framework=framework, **values), config)
    ]
    others = [int(event.nbytes) for event in events if event.kind == "in flight" and event.sign > 0]
    assert others == [(kept + sent) * 64 * 64 * 2] * 3


@pytest.mark.parametrize(("strategy", "framework"), [("zero1", "plain"), ("zero2", "megatron")])
def test_the_search_agrees_with_single_estimates(strategy: str, framework: str) -> None:
    values = {
        "model": "llama-3.2-1b",
        "gpus": 16,
        "precision": "bf16-master",
        "seq": 4096,
        "gpu": "h100-80gb",
    }
    asked = job_from({**values, "strategy": strategy, "framework": framework})
    found = search_divisions(asked, batches=(1, 4))
    assert [c.allocated_bytes for c in found] == sorted(c.allocated_bytes for c in found)
    assert len({(c.tp, c.pp, c.cp, c.recompute, c.batch) for c in found}) == len(found)
    assert all(c.tp * c.pp * c.cp * c.data == 16 for c in found)
    for candidate in found[:: max(len(found) // 9, 1)]:
        ranks = estimate(candidate.job(asked)).ranks
        assert candidate.allocated_bytes == max(rank.allocated_bytes for rank in ranks), candidate


def test_the_search_covers_sharded_parameters(tmp_path: Path) -> None:
    asked = job_from({"model": "llama-3.2-1b", "gpus": 8, "strategy": "fsdp2", "seq": 2048})
    for candidate in search_divisions(asked, batches=(2,), recompute=("full",))[::4]:
        ranks = estimate(candidate.job(asked)).ranks
        assert candidate.allocated_bytes == pytest.approx(
            max(rank.allocated_bytes for rank in ranks), rel=1e-3
        )


def test_a_sweep_prices_the_fullest_rank() -> None:
    asked = job_from({"model": "llama-3.2-1b", "gpus": 4, "pp": 2, "strategy": "ddp", "seq": 512})
    grid = sweep(asked, [1, 2], [512, 1024]).allocated_bytes
    for row, batch in enumerate((1, 2)):
        for column, seq in enumerate((512, 1024)):
            ranks = estimate(replace(asked, batch=batch, seq=seq)).ranks
            assert grid[row, column] == max(rank.allocated_bytes for rank in ranks)


def test_a_search_needs_layers() -> None:
    with pytest.raises(InputError, match="needs a model"):
        search_divisions(job_from({"params": "7B", "gpus": 8}))


def test_accumulating_without_reduction_holds_whole_gradients(tmp_path: Path) -> None:
    """With embedding, norm and head as one unit, whose gradient is reduced last."""
    asked = job(tmp_path, gpus=4, strategy="fsdp2", framework="hf", precision="bf16-true")
    once = replace(asked, transformers_version="5.11")
    more = replace(once, accumulate=4)

    def unsharded(asked: Job) -> int:
        lines = estimate(asked).ledger.alive(NEXT_BACKWARD, "cuda:0")
        return sum(entry.nbytes for entry in lines if "between micro-batches" in entry.component)

    assert unsharded(once) == 0
    assert unsharded(more) == 2 * (ROOT + 4 * BLOCK)
