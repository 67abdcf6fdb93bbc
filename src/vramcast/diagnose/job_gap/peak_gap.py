"""The gap between a job as described and a peak that was seen: which variants of the job come to exactly that much.

In: the Job as its owner describes it, and a SeenPeak. Out: a Gap whose explanations reach the peak and not more. A
failure gives only a lower bound of the need; a peak is the need itself. Does not know the text that was printed.
"""

from __future__ import annotations

from vramcast.diagnose.job_gap.agreement import Agreement
from vramcast.diagnose.job_gap.explanation import Explanation
from vramcast.diagnose.job_gap.gap import Gap
from vramcast.diagnose.job_gap.measurement import choose_measurement
from vramcast.diagnose.job_gap.priced_job import PricedJob, tolerance
from vramcast.diagnose.job_gap.seen_peak import SeenPeak
from vramcast.diagnose.job_gap.variants import (
    Prices,
    Variant,
    check_has_layers,
    on_card,
    search_explanations,
    with_released_outputs,
)
from vramcast.diagnose.rules.evidence import Evidence
from vramcast.engine import DEVICE
from vramcast.job import Job
from vramcast.ledger import Level
from vramcast.setup import complete

# Cache and context seldom add more than half of the peak of allocated bytes.
MAX_BEYOND_ALLOCATED = 1.5


def explain_peak(job: Job, seen: SeenPeak) -> Gap:
    """Raises a VramcastError if the engine cannot price the job as described."""
    check_has_layers(job)
    job = with_released_outputs(on_card(complete(job), seen.observation.capacity_bytes))
    prices = Prices()
    described = prices.of(job)
    explanations: tuple[Explanation, ...] = ()
    if level_bytes(described, seen.level) is not None:
        explanations = _explain(job, seen, prices)
    return Gap(
        described=described,
        evidence=_evidence(seen),
        explanations=explanations,
        contrasts=(),
        decide=choose_measurement(explanations),
        num_variants=prices.num_looked_at,
        seen=seen,
    )


def _evidence(seen: SeenPeak) -> Evidence:
    """As of a failure of which nothing is known."""
    return Evidence(
        observation=seen.observation,
        allocated_bytes=None,
        unallocated_bytes=0,
        least_request_bytes=0,
        capacity_bytes=seen.observation.capacity_bytes,
        outside_bytes=None,
        here_bytes=None,
        phases=None,
    )


def _explain(job: Job, seen: SeenPeak, prices: Prices) -> tuple[Explanation, ...]:
    low, high = _allocated_range_bytes(seen)

    def is_peak_in_range(peak_bytes: int) -> bool:
        return low <= peak_bytes <= high

    def explain(variant: Variant) -> Explanation | None:
        priced = prices.of_peak(variant.job, is_peak_in_range)
        if priced is None or not comes_to(priced, seen):
            return None
        fullest = priced.fullest
        return Explanation(
            changes=variant.changes,
            priced=priced,
            agreement=Agreement(phase=fullest.phase, peak_bytes=fullest.peak_bytes),
            weight=variant.prior,
            matches=(),
        )

    return search_explanations(job, _evidence(seen), prices, explain)


def _allocated_range_bytes(seen: SeenPeak) -> tuple[int, int]:
    """Smallest and largest peak of allocated bytes that can have led to what was seen."""
    slack = tolerance(seen.nbytes)
    if seen.level is Level.ALLOCATED:
        return seen.nbytes - slack, seen.nbytes + slack
    return int(seen.nbytes / MAX_BEYOND_ALLOCATED), seen.nbytes + slack


def level_bytes(priced: PricedJob, level: Level) -> int | None:
    """The forecast's peak on that level; None if it depends on a card that is unknown."""
    verdict = priced.forecast.verdict(DEVICE)
    if level is Level.ALLOCATED:
        return verdict.allocated_bytes
    if level is Level.RESERVED:
        return verdict.reserved_bytes
    return verdict.process_bytes


def comes_to(priced: PricedJob, seen: SeenPeak) -> bool:
    """Is the forecast's peak the one that was seen, within its own error?"""
    value = level_bytes(priced, seen.level)
    if value is None:
        return False
    below, above = _errors_bytes(priced, seen.level, tolerance(value))
    return value - below <= seen.nbytes <= value + above


def _errors_bytes(priced: PricedJob, level: Level, slack: int) -> tuple[int, int]:
    """How far reality may be below and above the forecast; cache and context add a range of their own."""
    verdict = priced.forecast.verdict(DEVICE)
    if level is Level.ALLOCATED or verdict.range_bytes is None or verdict.process_bytes is None:
        return slack, slack
    low, high = verdict.range_bytes
    return max(verdict.process_bytes - low, slack), max(high - verdict.process_bytes, slack)
