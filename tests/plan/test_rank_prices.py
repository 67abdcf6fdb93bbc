"""Prices of jobs on many GPUs are what their estimates say, without a bill."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from vramcast.catalog.gpus import find_gpu
from vramcast.engine import RankPrices
from vramcast.engine.estimate import estimate
from vramcast.errors import VramcastError
from vramcast.job import Job, job_from
from vramcast.models.read.model import read_model
from vramcast.plan.cluster import _besides_size, _Made, in_order
from vramcast.plan.rank_cost import slowest_rank_cost
from vramcast.plan.ranking import Limits
from vramcast.setup import resolve

GPU = "a100-80gb"
JOBS: dict[str, dict[str, Any]] = {
    "sharded": {"strategy": "fsdp2", "checkpointing": "full"},
    "stages": {"strategy": "zero1", "pp": 2, "accumulate": 4, "checkpointing": "full"},
    "stages, many micro-batches in flight": {
        "strategy": "ddp",
        "pp": 2,
        "accumulate": 8,
        "schedule": "gpipe",
    },
    "weights on the host": {"strategy": "fsdp2", "offload": "params", "accumulate": 2},
    "Megatron's": {
        "strategy": "zero1",
        "framework": "megatron",
        "tp": 2,
        "precision": "megatron-bf16",
    },
}
KEPT = Limits(
    keep=frozenset({"optimizer", "optimizer-impl", "precision", "adapter", "loss", "keep-outputs"})
)


def job(**values: Any) -> Job:
    return job_from(
        {"framework": "plain", "model": "llama-3.2-1b", "gpu": GPU, "gpus": 4, "seq": 512, **values}
    )


def prices() -> RankPrices:
    config = read_model("llama-3.2-1b").config
    assert config is not None
    return RankPrices(config, find_gpu(GPU))


@pytest.mark.parametrize("name", JOBS)
def test_a_price_is_the_fullest_ranks_peak(name: str) -> None:
    asked = job(**JOBS[name])
    peaks = [rank.allocated_bytes for rank in estimate(asked, with_scaling=False).ranks]
    assert prices().allocated_bytes(resolve(asked)) == max(peaks)


def test_one_table_of_prices_serves_jobs_that_differ_in_anything() -> None:
    together = prices()
    for values in JOBS.values():
        for accumulate in (1, 4, 8):
            asked = job(**{**values, "accumulate": accumulate})
            assert together.allocated_bytes(resolve(asked)) == prices().allocated_bytes(
                resolve(asked)
            )
            assert slowest_rank_cost(together, resolve(asked)) == slowest_rank_cost(
                prices(), resolve(asked)
            )


@pytest.mark.parametrize(("strategy", "share"), [("ddp", 1), ("fsdp2", 4)])
def test_what_lies_on_a_rank_includes_a_frozen_companion(strategy: str, share: int) -> None:
    table = prices()
    alone, accompanied, away = (
        table.resting(
            resolve(job(strategy=strategy, reference=where, precision="bf16-mixed"))
        ).persistent_bytes
        for where in ("none", "same", "cpu")
    )
    assert alone == away
    assert accompanied - alone == pytest.approx(4 * 1_235_814_400 / share, rel=1e-3)


@pytest.mark.parametrize("framework", ["plain", "megatron"])
def test_a_price_includes_a_frozen_companion(framework: str) -> None:
    alone, accompanied = (
        prices().allocated_bytes(
            resolve(
                job(framework=framework, precision="bf16-mixed", strategy="ddp", reference=where)
            )
        )
        for where in ("none", "same")
    )
    assert accompanied - alone > 2 * 1_235_814_400


@pytest.mark.slow
@pytest.mark.parametrize(
    "values",
    [
        {"batch": 8, "strategy": "ddp"},
        {
            "batch": 4,
            "strategy": "fsdp2",
            "loss": "chunked",
            "seq": 8192,
            "framework": "accelerate",
        },  # of a single sample nothing is copied
        {
            "batch": 6,
            "strategy": "zero1",
            "framework": "deepspeed",
            "seq": 64,
        },  # whole gradients between micro-batches
        {"batch": 4, "strategy": "zero2", "framework": "megatron", "reference": "same"},
    ],
    ids=str,
)
def test_smaller_micro_batches_and_matrices_make_at_least_their_part(
    values: dict[str, Any],
) -> None:
    """By this a search rules combinations out without a look at them."""
    table, made, bounds = prices(), dict[Any, list[_Made]](), list[float]()
    for moves, changed in in_order(job(**values), KEPT):
        with suppress(VramcastError):  # what is not modelled has no price
            allocated, rests = (
                table.allocated_bytes(resolve(changed)),
                table.resting(resolve(changed)),
            )
            known, resting = (
                made.setdefault(_besides_size(moves, rests.topology), []),
                rests.least_bytes,
            )
            least = max((each.at_least(changed) for each in known), default=0)
            assert resting + least <= allocated, [move.name for move in moves]
            bounds += [(resting + least) / allocated] if least else []
            known.append(_Made(nbytes=allocated - resting, batch=changed.batch, tp=changed.tp))
    assert max(bounds) > 0.9  # and it is worth something
