"""Prices of jobs on many GPUs are what their estimates say, without a bill."""

from __future__ import annotations

from typing import Any

import pytest

from vramcast.catalog.gpus import find_gpu
from vramcast.formulas.estimate import estimate
from vramcast.job import Job, job_from
from vramcast.models.read import read_model
from vramcast.plan.rank_prices import RankPrices

GPU = "a100-80gb"
JOBS: dict[str, dict[str, Any]] = {
    "sharded": {"strategy": "fsdp2", "checkpointing": "full"},
    "stages": {"strategy": "zero1", "pp": 2, "accumulate": 4, "checkpointing": "full"},
    "stages, many micro-batches in flight": {"strategy": "ddp", "pp": 2, "accumulate": 8, "schedule": "gpipe"},
    "weights on the host": {"strategy": "fsdp2", "offload": "params", "accumulate": 2},
    "Megatron's": {"strategy": "zero1", "framework": "megatron", "tp": 2, "precision": "megatron-bf16"},
}


def job(**values: Any) -> Job:
    return job_from({"model": "llama-3.2-1b", "gpu": GPU, "gpus": 4, "seq": 512, **values})


def prices() -> RankPrices:
    config = read_model("llama-3.2-1b").config
    assert config is not None
    return RankPrices(config, find_gpu(GPU))


@pytest.mark.parametrize("name", JOBS)
def test_a_price_is_the_fullest_ranks_peak(name: str) -> None:
    asked = job(**JOBS[name])
    peaks = [rank.allocated_bytes for rank in estimate(asked, with_scaling=False).ranks]
    assert prices().allocated_bytes(asked) == max(peaks)


def test_one_table_of_prices_serves_jobs_that_differ_in_anything() -> None:
    together = prices()
    for values in JOBS.values():
        for accumulate in (1, 4, 8):
            asked = job(**{**values, "accumulate": accumulate})
            assert together.allocated_bytes(asked) == prices().allocated_bytes(asked)
            assert together.cost(asked) == prices().cost(asked)


@pytest.mark.parametrize(("strategy", "share"), [("ddp", 1), ("fsdp2", 4)])
def test_what_lies_on_a_rank_includes_a_frozen_companion(strategy: str, share: int) -> None:
    table = prices()
    alone, accompanied, away = (
        table.lying_bytes(job(strategy=strategy, reference=where)) for where in ("none", "same", "cpu")
    )
    assert alone == away
    assert accompanied - alone == pytest.approx(4 * 1_235_814_400 / share, rel=1e-3)
