"""The search against brute force, and the cases people bring."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from vramcast.engine.estimate import estimate
from vramcast.errors import InputError
from vramcast.job import Job, job_from
from vramcast.plan.moves import FREE
from vramcast.plan.ranking import Limits, applied, fits_surely
from vramcast.plan.search import Plans, about, plan
from vramcast.plan.table import Table
from vramcast.setup import complete

SMALL = {"model": "pythia-14m", "seq": 512, "batch": 8}
KEPT = frozenset(
    {"precision", "lora-rank", "freeze", "attention", "seq", "checkpointing", "optimizer"}
)


def order(table: Table, flat: int) -> tuple[int, float, int]:
    return (
        int(table.kind.ravel()[flat]),
        float(table.effort.ravel()[flat]),
        int(table.allocated.ravel()[flat]),
    )


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["1.3GiB", "1.4GiB", "1.9GiB", "2.4GiB"])
def test_no_worse_than_brute_force(gpu: str) -> None:
    """Every combination estimated whole: none that fits comes before the plan."""
    job, limits = job_from({**SMALL, "gpu": gpu}), Limits(keep=KEPT)
    first = plan(job, limits).fitting[0]
    card, config = about(job)
    table = Table(job, config, card, limits)
    fitting, mine = [], None
    for flat in range(table.allocated.size):
        moves = table.at(flat).moves
        changed = applied(job, moves)
        if not moves or changed is None:
            continue
        mine = flat if moves == first.moves else mine
        if fits_surely(estimate(changed)):
            fitting.append(order(table, flat))
    assert mine is not None
    assert order(table, mine) == min(fitting)


def names(plans: Plans) -> list[set[str]]:
    return [{move.name for move in found.moves} for found in plans.fitting]


def test_a_reference_model_on_84_gb() -> None:
    """Free first: the reference precomputed, the step fused or inside backward. GiB as worked out by hand."""
    job = job_from({
        "model": "phi-3-mini", "batch": 2, "seq": 256, "precision": "fp32", "framework": "lightning",
        "reference": "same", "gpu": "84GiB", "transformers-version": "4.51",
    })  # fmt: skip
    plans = plan(job)
    assert not plans.base.verdict().fits
    assert any(
        "fused optimizer" in found for found in names(plans)[:3]
    )  # alone it leaves less than its range free
    assert {"reference log-probabilities precomputed"} in names(plans)
    assert [found.kind for found in plans.fitting][:2] == ["free", "free"]
    freed = {single.move.name: single.frees_bytes / 2**30 for single in plans.singles}
    assert freed["reference log-probabilities precomputed"] == pytest.approx(14.23, abs=0.1)
    assert freed["reference model on the CPU"] == pytest.approx(14.23, abs=0.1)
    # the list of foreach goes, but last step's gradients in the next forward and loss are then the peak
    ledger = plans.base.ledger
    peaks = {
        phase: ledger.moment(phase, "cuda:0").allocated_bytes / 2**30
        for phase in ledger.phases("cuda:0")
    }
    assert peaks["next step"] == pytest.approx(85.41, abs=0.05)
    passes = max(peaks[phase] for phase in ("next forward", "next loss", "next backward"))
    assert freed["fused optimizer"] == pytest.approx(peaks["next step"] - passes, abs=0.02)
    slow = {single.move.name: single.slowdown for single in plans.singles}
    on_cpu = slow["reference model on the CPU"]
    assert on_cpu is not None
    assert min(on_cpu) > 1.2


def test_seven_billion_on_24_gb() -> None:
    """torchtune's and LLaMA-Factory's recipes for one such card, from weights in fp32."""
    plans = plan(
        job_from(
            {
                "framework": "plain",
                "model": "qwen2.5-7b",
                "seq": 4096,
                "gpu": "rtx4090",
                "precision": "bf16-mixed",
            }
        )
    )
    found = names(plans)
    assert any({"LoRA", "checkpointing"} <= plan for plan in found)
    assert any({"QLoRA", "checkpointing"} <= plan for plan in found)
    full = [plan for plan in found if "everything in bf16" in plan]
    assert full
    assert all("optimizer step inside backward" in plan for plan in full)
    assert all(each.fits for each in plans.fitting)


@pytest.mark.slow
def test_t5_of_three_billion_on_16_gb() -> None:
    plans = plan(
        job_from({"model": "flan-t5-xl", "seq": 512, "target-seq": 128, "gpu": "16GiB", "batch": 4})
    )
    found = names(plans)
    assert any("LoRA" in plan for plan in found)
    assert any("Adafactor" in plan or "8-bit AdamW" in plan for plan in found)


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["8GiB", "14GiB"])
def test_every_plan_is_estimated_and_its_job_says_the_same(gpu: str) -> None:
    for found in plan(
        job_from({"model": "llama-3.2-1b", "seq": 1024, "batch": 4, "gpu": gpu})
    ).fitting:
        again = estimate(found.job).verdict()
        assert again.fits
        assert again.process_bytes == found.forecast.verdict().process_bytes
        assert found.job.batch * found.job.accumulate == 4


@pytest.mark.slow
def test_redundant_changes_are_left_out() -> None:
    """Without any one of its changes, a plan does not fit, or it is slower."""
    job = complete(job_from({"model": "llama-3.2-1b", "seq": 2048, "batch": 4, "gpu": "rtx4090"}))
    for found in plan(job).fitting:
        for left_out in found.moves:
            rest = applied(job, tuple(move for move in found.moves if move is not left_out))
            if rest is not None and left_out.kind != "free":
                assert not fits_surely(estimate(rest)), (
                    left_out.name,
                    [move.name for move in found.moves],
                )


def test_a_job_that_fits_needs_no_plan_and_is_told_how_far_it_goes() -> None:
    plans = plan(job_from({"model": "gpt2", "seq": 256, "gpu": "rtx4090"}))
    assert plans.base.verdict().fits
    assert not plans.fitting
    assert plans.reach is not None
    job = plans.base.job
    assert job is not None
    assert estimate(replace(job, batch=plans.reach.largest_batch)).verdict().fits
    assert plans.reach.largest_batch > 16
    assert plans.reach.longest_seq == 1024  # GPT-2 has no more positions


@pytest.mark.slow
def test_nothing_fits_and_the_smallest_is_named() -> None:
    plans = plan(job_from({"model": "llama-3-70b", "seq": 2048, "gpu": "rtx4090"}))
    assert not plans.fitting
    assert plans.closest is not None
    assert not plans.closest.fits
    assert "QLoRA" in {move.name for move in plans.closest.moves}


@pytest.mark.parametrize("given", [{"model": "gpt2"}, {"params": "7B", "gpu": "rtx4090"}])
def test_what_a_plan_needs(given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="a plan needs a"):
        plan(job_from(given))


@pytest.mark.parametrize("loop", ["retain-graph", "aux-outputs"])
def test_no_step_inside_backward_where_backward_runs_twice(loop: str) -> None:
    job = complete(Job(framework="plain", model="mixtral-8x7b", loop=loop))
    applied = {move.name: move.apply(job) for move in FREE}
    assert applied["optimizer step inside backward"] is None
    assert applied["fused optimizer"] is not None
