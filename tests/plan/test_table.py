"""The prices of the planner's table are what whole estimates say, combination by combination."""

from __future__ import annotations

import random
from typing import Any

import numpy
import pytest

from vramcast.engine.estimate import estimate
from vramcast.job import job_from
from vramcast.plan.moves import Kind
from vramcast.plan.ranking import MUCH_SLOWER, Limits, applied, rank_of
from vramcast.plan.search import about
from vramcast.plan.table import IMPOSSIBLE, Table

JOBS: dict[str, dict[str, Any]] = {
    "plain": {"model": "pythia-160m", "batch": 4},
    "eager": {"model": "gpt2", "attention": "eager", "batch": 2},
    "lightning with a reference": {
        "model": "qwen2.5-0.5b",
        "framework": "lightning",
        "reference": "same",
    },
    "trainer": {"model": "smollm2-135m", "framework": "hf", "batch": 8, "accumulate": 2},
    "bf16": {"model": "qwen3-0.6b", "precision": "bf16-true"},
    "adapters": {"model": "llama-3.2-1b", "lora-rank": 8, "precision": "bf16-true", "batch": 2},
    "megatron": {"model": "gpt2", "precision": "megatron-bf16", "batch": 2},
    "encoder and decoder": {"model": "flan-t5-small", "batch": 4, "target-seq": 64},
    "padded": {"model": "bert-base-uncased", "longest-seq": 384, "batch": 2},
    "critic and teacher": {"model": "gpt2", "critic": "same", "teacher": "same", "batch": 2},
    "evaluating and resuming": {
        "model": "gpt2",
        "evaluate": True,
        "eval-batch": 16,
        "resume": "same",
    },
    "rollouts": {
        "model": "smollm2-135m",
        "rollout-tokens": 200,
        "reward": "same",
        "reference": "same",
    },
    "litgpt": {"model": "pythia-160m", "framework": "litgpt", "batch": 2},
    "old torch": {"model": "gpt2", "torch-version": "1.13", "batch": 2},
    "vision": {"model": "qwen2-vl-2b", "images": 1, "precision": "bf16-true"},
}


def table_of(values: dict[str, Any], limits: Limits | None = None) -> Table:
    job = job_from(
        {"seq": 512, "gpu": "a100-80gb", **values}
        if "longest-seq" not in values
        else {"gpu": "a100-80gb", **values}
    )
    gpu, config = about(job)
    return Table(job, config, gpu, limits or Limits())


@pytest.mark.parametrize("name", JOBS)
def test_a_price_is_what_an_estimate_allocates(name: str) -> None:
    table = table_of(JOBS[name])
    possible = numpy.flatnonzero(table.allocated != IMPOSSIBLE)
    for flat in random.Random(name).sample(list(possible), min(6, len(possible))):
        candidate = table.at(int(flat))
        job = applied(table.job, candidate.moves)
        assert job is not None
        ledger = estimate(job).ledger
        rounding = sum(
            entry.nbytes for entry in ledger.entries if entry.component == "rounding inside blocks"
        )
        want = ledger.peak("cuda:0").allocated_bytes - rounding
        assert candidate.allocated_bytes == want, [move.name for move in candidate.moves]


@pytest.mark.slow
@pytest.mark.parametrize(
    "values",
    [JOBS["rollouts"], {**JOBS["litgpt"], "reference": "same"}],
    ids=["rollouts", "litgpt"],
)
def test_prices_do_not_ask_what_was_priced_before(values: dict[str, Any]) -> None:
    first, other = table_of(values), table_of(values)
    last_first = {
        flat: other.at(flat).allocated_bytes for flat in reversed(range(first.allocated.size))
    }
    assert [last_first[flat] for flat in range(len(last_first))] == first.allocated.ravel().tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["plain", "eager", "lightning with a reference", "rollouts", "litgpt", "trainer"]
)
def test_no_bound_rules_out_what_takes_less(name: str) -> None:
    priced = table_of(JOBS[name]).allocated.ravel()
    for share in (0.1, 0.5):
        most = int(numpy.quantile(priced[priced != IMPOSSIBLE], share))
        found = [candidate.cell for candidate in table_of(JOBS[name]).ranked(most)]
        assert sorted(found) == numpy.flatnonzero(priced <= most).tolist()


def test_what_must_stay_stays() -> None:
    limits = Limits(keep=frozenset({"optimizer", "precision", "seq"}))
    table = table_of(JOBS["plain"], limits)
    for flat in numpy.flatnonzero(table.allocated != IMPOSSIBLE):
        job = applied(table.job, table.at(int(flat)).moves)
        assert job is not None
        assert (job.optimizer, job.precision, job.seq) == (
            table.job.optimizer,
            table.job.precision,
            table.job.seq,
        )
    assert any(
        "LoRA" in {m.name for m in table.at(int(i)).moves}
        for i in numpy.flatnonzero(table.allocated != IMPOSSIBLE)
    )


def test_the_global_batch_never_changes() -> None:
    table = table_of(JOBS["trainer"])
    for candidate in table.ranked(IMPOSSIBLE - 1):
        job = applied(table.job, candidate.moves)
        assert job is not None
        assert job.batch * job.accumulate == 16


def test_nothing_slower_than_allowed() -> None:
    table = table_of(JOBS["plain"], Limits(max_slowdown=1.1))
    slow = [max(candidate.slowdown) for candidate in table.ranked(IMPOSSIBLE - 1)]
    assert slow
    assert max(slow) <= 1.1
    assert max(max(c.slowdown) for c in table_of(JOBS["plain"]).ranked(IMPOSSIBLE - 1)) > 1.1


def test_the_front_is_what_nobody_beats() -> None:
    table = table_of(JOBS["plain"])
    front = table.front(IMPOSSIBLE - 1)
    same = [c for c in table.ranked(IMPOSSIBLE - 1) if c.kind != Kind.CHANGES]
    for point in front:
        beaten = [
            c for c in same
            if c.allocated_bytes < point.allocated_bytes and round(max(c.slowdown), 2) <= round(max(point.slowdown), 2)
        ]  # fmt: skip
        assert not beaten
    assert len(front) > 2
    assert min(c.allocated_bytes for c in same) == front[-1].allocated_bytes


def test_free_comes_before_slower_before_another_training() -> None:
    found = list(table_of(JOBS["plain"]).ranked(IMPOSSIBLE - 1))
    ranks = [rank_of(candidate.kind, candidate.slowdown) for candidate in found]
    assert ranks == sorted(ranks)
    assert set(ranks) == {0, 1, 2}
    slow = [
        candidate
        for candidate, rank in zip(found, ranks, strict=True)
        if rank == 2 and candidate.kind == "slower"
    ]
    assert slow
    assert all(max(candidate.slowdown) > MUCH_SLOWER for candidate in slow)
