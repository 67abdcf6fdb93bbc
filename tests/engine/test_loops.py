"""Loops that train a gate beside the main loss: held bytes and peaks against real steps, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from live import Live
from moe_block import (
    MoeBlock,
    block_bytes,
    detached_inputs_bytes,
    detached_scores_bytes,
    simple_inventory_bytes,
)

from vramcast.engine.estimate import estimate
from vramcast.engine.prices.sweep import sweep
from vramcast.engine.stream.fold import peak_by_phase
from vramcast.engine.stream.gate_loops import changes_of, gates_of, held_between
from vramcast.engine.stream.timeline import Mode
from vramcast.errors import InputError
from vramcast.job import Job, job_from
from vramcast.ledger import GATING, Category, Ledger
from vramcast.models.families import record
from vramcast.models.read.config import Config
from vramcast.models.record.loss import add_loss
from vramcast.models.record.program import Program, Sizes
from vramcast.models.record.tape import F32, Regime
from vramcast.setup import resolve

BATCH, SEQ, LAYERS, HIDDEN, EXPERTS = 3, 130, 4, 256, 8
MOE = {
    "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": HIDDEN, "head_dim": 32,
    "intermediate_size": 512, "moe_intermediate_size": 192, "num_experts": EXPERTS, "num_experts_per_tok": 2,
    "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": LAYERS, "vocab_size": 2000,
    "tie_word_embeddings": False, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True,
}  # fmt: skip


class Run:
    """A real model whose routers' inputs and logits are seen by hooks."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        config = transformers.AutoConfig.for_model(**MOE)
        config.use_cache = False
        self.model = transformers.Qwen3MoeForCausalLM._from_config(
            config, dtype=torch.float32, attn_implementation="sdpa"
        ).train()
        self.gates = [layer.mlp.gate for layer in self.model.model.layers]
        self.ids = torch.randint(0, 2000, (BATCH, SEQ))
        self.live = Live(self.ids, *self.model.parameters(), *self.model.buffers())

    def gradients(self) -> int:
        return sum(p.grad.nbytes for p in self.model.parameters() if p.grad is not None)


def retained() -> dict[str, int]:
    run = Run()
    logits: list[torch.Tensor] = []
    for gate in run.gates:
        gate.register_forward_hook(lambda module, args, output: logits.append(output[0]))
    with run.live as live:
        loss = run.model(input_ids=run.ids, labels=run.ids).loss
        gate_loss = torch.stack([x.float().square().mean() for x in logits]).sum()
        live.restart()
        loss.backward(retain_graph=True)
        first, held = live.peak, live.now - run.gradients()
        live.restart()
        gate_loss.backward()
        return {"backward": first, "held": held, "gating": live.peak}


def collected() -> dict[str, int]:
    run = Run()
    inputs: list[torch.Tensor] = []
    for gate in run.gates:
        gate.register_forward_pre_hook(lambda module, args: inputs.append(args[0].detach()))
    with run.live as live:
        loss = run.model(input_ids=run.ids, labels=run.ids).loss
        live.restart()
        loss.backward()
        return {"backward": live.peak, "held": live.now - run.gradients()}


def program() -> Program:
    recorded = record(
        Config(MOE), Regime(weights=F32, attention="flash", cuda=False), Sizes(batch=BATCH, seq=SEQ)
    )
    add_loss(recorded, transformers=(5, 0))
    return recorded


def mode(loop: str, checkpointing: str = "none") -> Mode:
    job = Job(framework="plain", model="x", loop=loop, checkpointing=checkpointing)
    return Mode(
        recompute=lambda placed: checkpointing if placed.section.is_block else "none",
        changes=changes_of(resolve(job)),
    )


def test_a_retained_graph_lives_beside_all_gradients() -> None:
    real = retained()
    peaks = peak_by_phase(program(), mode("retain-graph"))
    assert int(held_between(program(), mode("retain-graph"))) == pytest.approx(
        real["held"], rel=0.02
    )
    assert int(peaks["backward"]) == pytest.approx(real["backward"], rel=0.02)
    assert int(peaks[GATING]) == pytest.approx(real["gating"], rel=0.02)


def test_detached_gate_inputs_are_all_that_aux_outputs_hold() -> None:
    real = collected()
    scores = 4 * LAYERS * BATCH * SEQ * EXPERTS * 4
    held = int(held_between(program(), mode("aux-outputs")))
    assert held == LAYERS * BATCH * SEQ * HIDDEN * 4 + scores
    assert held - scores == pytest.approx(real["held"], rel=0.02)
    assert int(peak_by_phase(program(), mode("aux-outputs"))["backward"]) - scores == pytest.approx(
        real["backward"], rel=0.02
    )


def test_recomputed_layers_give_their_gate_inputs_away_all_the_same() -> None:
    plain, aux = (peak_by_phase(program(), mode(loop, "full")) for loop in ("plain", "aux-outputs"))
    extra = LAYERS * BATCH * SEQ * (HIDDEN + 4 * EXPERTS) * 4
    assert (
        int(aux["loss"] - plain["loss"])
        == extra
        == held_between(program(), mode("aux-outputs", "full"))
    )


def test_one_pass_holds_nothing_and_changes_no_peak() -> None:
    assert held_between(program(), mode("one-pass")) == 0
    assert peak_by_phase(program(), mode("one-pass")) == peak_by_phase(program(), mode("plain"))


def test_every_birth_has_one_death_in_every_loop() -> None:
    from vramcast.engine.stream.timeline import step_events

    for loop in ("retain-graph", "aux-outputs", "joint"):
        for how in ("none", "full", "selective"):
            alive = set()
            for item in step_events(program(), mode(loop, how)):
                if item.event.sign > 0:
                    assert item.key not in alive, f"{loop}, {how}: {item.event.label} is born twice"
                    alive.add(item.key)
                else:
                    assert item.key in alive, f"{loop}, {how}: {item.event.label} dies unborn"
                    alive.remove(item.key)


def test_routers_are_found_where_the_model_has_them() -> None:
    gates = gates_of(program())
    assert len(gates) == LAYERS
    assert {int(gate.entry.nbytes) for gate in gates.values()} == {BATCH * SEQ * HIDDEN * 4}


# ---- whole jobs


@pytest.fixture
def moe(tmp_path: Path) -> Any:
    (tmp_path / "config.json").write_text(json.dumps(MOE))

    def job(**values: Any) -> Job:
        return job_from({"model": str(tmp_path), "batch": 4, "seq": 512, **values})

    return job


def test_the_bill_names_what_is_held(moe: Any) -> None:
    ledger = estimate(moe(loop="retain-graph", framework="hf")).ledger
    held = ledger.grouped(lambda entry: entry.component, phase=GATING, place="cuda:0")[
        "held for the gate's backward"
    ]
    small = estimate(moe(loop="aux-outputs", framework="hf")).ledger
    aux = small.grouped(lambda entry: entry.component, phase=GATING, place="cuda:0")[
        "held for the gate's backward"
    ]
    tokens = LAYERS * 4 * 512
    assert tokens * HIDDEN * 2 < aux < tokens * (HIDDEN * 4 + 4 * EXPERTS * 4) < held / 5
    everything = ledger.grouped(lambda entry: str(entry.category), phase=GATING, place="cuda:0")
    assert everything["gradients"] == everything["weights"]


@pytest.mark.parametrize("loop", ["plain", "retain-graph", "aux-outputs", "one-pass", "joint"])
def test_sweeps_price_loops_as_bills_do(moe: Any, loop: str) -> None:
    job = moe(loop=loop)
    lines = (entry for entry in estimate(job).ledger.entries if entry.category != Category.SLACK)
    peak = Ledger(entries=tuple(lines)).peak("cuda:0")
    assert sweep(job, (4,), (512,)).allocated_bytes[0, 0] == peak.allocated_bytes


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"loop": "scores-only"}, "carry no gradient"),
        ({"loop": "retain-graph", "optimizer-impl": "in-backward"}, "runs backward twice"),
        ({"loop": "joint", "model": "phi-3-mini"}, "has no router"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(
    moe: Any, values: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        estimate(moe(**values))


def test_the_published_block() -> None:
    """1 × 512 tokens, hidden 1024, inner 2816, 8 experts of which 2 are taken, 24 layers: as people count it, and as
    torch keeps it (31,531,056 bytes measured for one layer)."""
    block = MoeBlock(batch=1, seq=512, hidden=1024, inner=2816, experts=8, k=2, layers=24)
    assert simple_inventory_bytes(block) == 164_167_680
    assert detached_scores_bytes(block) == 786_432
    assert int(block_bytes(block)) == pytest.approx(31_531_056, rel=0.02)
    useful = detached_inputs_bytes(block) + detached_scores_bytes(block)
    assert 1 - useful / (24 * int(block_bytes(block))) == pytest.approx(0.966, abs=0.001)
