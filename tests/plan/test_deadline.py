"""Work that ends itself, and searches that are short of time."""

from __future__ import annotations

from math import inf
from time import perf_counter

import pytest

from vramcast.deadline import OutOfTime, check_time, left_s, until
from vramcast.formulas.estimate import estimate, estimate_if_it_may_fit
from vramcast.job import Job, job_from
from vramcast.plan.moves import Kind
from vramcast.plan.order import Clock, Limits, effort_of, fits_surely, rank_of
from vramcast.plan.search import Plans, plan

TIGHT = {"model": "gpt2", "batch": 16, "seq": 512, "gpu": "4GiB", "framework": "hf"}


def test_a_moment_holds_inside_alone_and_the_outer_one_comes_back() -> None:
    assert left_s() == inf
    with until(perf_counter() + 60):
        check_time()
        with until(perf_counter() - 1), pytest.raises(OutOfTime):
            check_time()
        assert 0 < left_s() <= 60
    assert left_s() == inf


@pytest.mark.parametrize("more", [{}, {"gpus": 2, "strategy": "fsdp2"}])
def test_an_estimate_ends_at_the_moment_and_is_whole_without(more: dict[str, object]) -> None:
    job = job_from({**TIGHT, "gpu": "rtx4090", **more})
    with until(perf_counter() - 1), pytest.raises(OutOfTime):
        estimate_if_it_may_fit(job)
    assert estimate_if_it_may_fit(job).ledger == estimate(job, with_scaling=False).ledger  # type: ignore[union-attr]


def test_a_clock_keeps_time_for_answers_as_slow_as_the_slowest() -> None:
    clock = Clock(100)
    assert clock.end_keeping(2) == clock.end
    with clock.timing():
        before = perf_counter()
        while perf_counter() < before + 0.02:
            pass
    with clock.timing():
        pass
    assert clock.end_keeping(2) == pytest.approx(clock.end - 0.04, abs=0.02)
    assert Clock(None).end_keeping(2) == inf


@pytest.mark.parametrize("seconds", [0.0, 0.15, 0.3, 0.6])
def test_whatever_the_time_plans_fit_and_come_cheapest_first(seconds: float) -> None:
    plans = plan(job_from(TIGHT), Limits(seconds=seconds))
    assert plans.fitting
    assert all(fits_surely(estimate(found.job)) for found in plans.fitting)
    order = [(rank_of(each.kind, each.slowdown), effort_of(each.moves, each.slowdown)) for each in plans.fitting]
    assert order == sorted(order)
    assert Kind.CHANGES not in {each.kind for each in plans.fitting[:1]}  # checkpointing or smaller batches do


@pytest.mark.slow
def test_with_time_enough_the_answer_is_that_of_a_search_without_end() -> None:
    timed, whole = (plan(job_from(TIGHT), Limits(seconds=seconds)) for seconds in (600, None))
    assert timed.complete
    assert whole.complete
    assert [found.job for found in timed.fitting] == [found.job for found in whole.fitting]
    assert timed.reach == whole.reach


class Hurried(Clock):
    """Short of time until something is found."""

    def end_keeping(self, answers: float) -> float:
        return -inf if answers else inf


def hurried(monkeypatch: pytest.MonkeyPatch, job: Job) -> Plans:
    monkeypatch.setattr("vramcast.plan.search.Clock", Hurried)
    return plan(job)


def test_a_likely_one_comes_first_and_cheaper_ones_are_still_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, found = plan(job_from(TIGHT)), hurried(monkeypatch, job_from(TIGHT))
    shown, every = ([each.job for each in plans.fitting] for plans in (found, whole))
    assert shown == every[: len(shown)]
    assert len(shown) >= len(every) - 1  # one of them covers the likely one
    assert found.complete == (len(shown) == len(every))


def test_many_gpus_short_of_time_get_combinations_with_small_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_from({**TIGHT, "gpus": 2, "strategy": "ddp"})
    found = hurried(monkeypatch, job)
    assert not found.complete
    assert found.fitting
    for each in found.fitting:
        assert {"checkpointing", "fused linear cross entropy"} <= {move.name for move in each.moves}
        assert each.job.batch == 1
        assert fits_surely(estimate(each.job))
