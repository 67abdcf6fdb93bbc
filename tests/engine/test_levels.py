"""Every kind of job has every level, each at least the one below; what the allocator is asked for is what is billed."""

from __future__ import annotations

from typing import Any

import pytest

from vramcast.catalog.gpus import find_gpu
from vramcast.engine.estimate import estimate
from vramcast.engine.replay.card import replayed_on_card
from vramcast.engine.replay.drafts import Drafts
from vramcast.job import job_from
from vramcast.ledger import Ledger
from vramcast.models.read.model import read_model
from vramcast.setup import resolve

BASE = {"model": "smollm2-135m", "batch": 2, "seq": 256, "gpu": "a100-80gb"}
MOE = {"model": "qwen3-30b-a3b", "batch": 1, "seq": 64, "optimizer": "sgd", "gpu": "b200"}
EDITS = {
    "model": "gpt2",
    "edit": "transformer.h.10.mlp.c_fc,transformer.h.11.mlp.c_fc",
    "seq": 128,
    "gpu": "a100-80gb",
}
COMPANIONS: dict[str, dict[str, Any]] = {
    "plain": {}, "reference": {"reference": "same"}, "reference elsewhere": {"reference": "cuda:1"},
    "reference on the host": {"reference": "cpu"}, "reward": {"reward": "same"}, "critic": {"critic": "same"},
    "teacher": {"teacher": "same", "teacher-model": "smollm2-135m"}, "evaluation": {"evaluate": True, "eval-batch": 8},
    "predictions kept": {"evaluate": True, "eval-kept": 9}, "resumed": {"resume": "same"},
    "rollout": {"rollout-tokens": 128, "rollout-batch": 32},
    "ppo": {"rollout-tokens": 128, "reward": "same", "critic": "same", "reference": "same"},
    "accumulating": {"accumulate": 3, "reference": "same", "evaluate": True},
}  # fmt: skip
WAYS: dict[str, dict[str, Any]] = {
    "plain": {"framework": "plain"}, "hf": {"framework": "hf", "precision": "bf16-true"},
    "lightning": {"framework": "lightning", "precision": "bf16-mixed"},
    "fp32": {"precision": "fp32", "optimizer": "sgd"},
    "checkpointed": {"checkpointing": "full", "precision": "bf16-true", "lora-rank": 8},
}  # fmt: skip


def assert_levels(ledger: Ledger) -> None:
    for place in ledger.devices():
        for phase in ledger.phases(place):
            moment = ledger.moment(phase, place)
            assert moment.allocated_bytes <= moment.reserved_bytes <= moment.process_bytes
        peak = ledger.peak(place)
        slack = (
            1 if place == "cuda:0" else 0
        )  # a companion on a second card has no allocator of its own here
        assert 0 < peak.allocated_bytes <= peak.reserved_bytes - slack < peak.process_bytes


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", COMPANIONS)
def test_levels_of_companions_and_what_comes_between(name: str, way: str) -> None:
    assert_levels(estimate(job_from({**BASE, **WAYS[way], **COMPANIONS[name]})).ledger)


@pytest.mark.parametrize("loop", ["plain", "retain-graph", "aux-outputs", "one-pass", "joint"])
def test_levels_of_loops_that_train_a_gate(loop: str) -> None:
    assert_levels(estimate(job_from({**MOE, "loop": loop})).ledger)


@pytest.mark.parametrize("graph", ["joint", "cut"])
@pytest.mark.parametrize("sub", [None, "cuda:1"])
def test_levels_of_editing(graph: str, sub: str | None) -> None:
    asked = {"edit-graph": graph, **({} if sub is None else {"sub-device": sub})}
    assert_levels(estimate(job_from({**EDITS, **asked})).ledger)


@pytest.mark.parametrize(
    "name", [name for name in COMPANIONS if name not in ("reference", "teacher", "accumulating")]
)
def test_the_allocator_is_asked_for_what_is_billed(name: str) -> None:
    """Where a reference runs, its pass is billed on top of the loss's own peak, which is over by then: see below."""
    job = job_from({**BASE, **COMPANIONS[name]})
    assert job.model is not None
    config, gpu = read_model(job.model).config, find_gpu(BASE["gpu"])  # type: ignore[arg-type]
    assert config is not None
    ledger = estimate(job).ledger
    rounding = sum(
        entry.nbytes for entry in ledger.entries if entry.component == "rounding inside blocks"
    )
    asked = replayed_on_card(
        Drafts(config, gpu).of(resolve(job)).script, gpu, resolve(job)
    ).peak_requested_bytes
    assert asked == pytest.approx(ledger.peak("cuda:0").allocated_bytes - rounding, rel=0.005)


@pytest.mark.parametrize("name", ["reference", "teacher", "accumulating"])
def test_a_pass_behind_the_loss_is_billed_at_least_as_it_is_run(name: str) -> None:
    job = job_from({**BASE, **COMPANIONS[name]})
    assert job.model is not None
    config, gpu = read_model(job.model).config, find_gpu(BASE["gpu"])  # type: ignore[arg-type]
    assert config is not None
    asked = replayed_on_card(
        Drafts(config, gpu).of(resolve(job)).script, gpu, resolve(job)
    ).peak_requested_bytes
    billed = estimate(job).ledger.peak("cuda:0").allocated_bytes
    assert 0.9 * billed < asked <= billed


def test_a_large_evaluation_batch_raises_what_is_reserved_and_not_the_step() -> None:
    none, large = (
        estimate(job_from({**BASE, **asked})).ledger.peak("cuda:0")
        for asked in ({}, {"evaluate": True, "eval-batch": 8})
    )
    assert large.reserved_bytes - none.reserved_bytes > 2 * (
        large.allocated_bytes - none.allocated_bytes
    )
