"""In which phase a priced job would have failed just as observed.

In: a PricedJob and Evidence. Out: an Agreement, or None if the job cannot have failed that way. The forecast's own
error is allowed for. Does not know how plausible the job is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vramcast.diagnose.job_gap.priced_job import PhaseNeed, PricedJob, tolerance
from vramcast.diagnose.rules.evidence import Evidence

FRAGMENTATION, ANOTHER_PROCESS = "fragmentation", "another_process"


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Where a job agrees with a failure, and what else it takes."""

    phase: str
    peak_bytes: int
    because: str = ""  # "": the job alone is too large; otherwise FRAGMENTATION or ANOTHER_PROCESS
    or_in: tuple[str, ...] = ()  # later phases that agree as well, if this one succeeded


def agree(priced: PricedJob, evidence: Evidence) -> Agreement | None:
    """The first phase that agrees with all numbers. If the card is unknown, only the failing code tells the phase."""
    card = card_bytes(priced, evidence)
    available = _available_bytes(card, evidence)
    if available is None and (evidence.phases is None or evidence.allocated_bytes is None):
        return None
    agreeing = [
        need
        for need in _reachable_needs(priced, available)
        if _agrees(need, evidence) and _runs_out(need, evidence, available)
    ]
    if not agreeing:
        return None
    first, *later = agreeing
    return Agreement(
        phase=first.phase,
        peak_bytes=first.peak_bytes,
        because=_what_else_it_takes(first, card, available),
        or_in=tuple(need.phase for need in later),
    )


def can_reach(need_bytes: int, evidence: Evidence) -> bool:
    """Is this peak as high as what was observed, within the forecast's own error?"""
    return _reached_bytes(evidence) <= need_bytes + tolerance(need_bytes)


def card_bytes(priced: PricedJob, evidence: Evidence) -> int | None:
    """What PyTorch could have on this card without other processes; at least what it had reserved."""
    gpu = priced.forecast.gpu
    capacity = evidence.capacity_bytes or (gpu.total_bytes if gpu else None)
    if capacity is None:
        return None
    outside = evidence.outside_bytes
    if outside is None:
        outside = priced.outside_bytes
    return max(capacity - outside, evidence.observation.reserved_bytes or 0)


def _available_bytes(card: int | None, evidence: Evidence) -> int | None:
    """What PyTorch could have at the moment of the failure."""
    limits = [nbytes for nbytes in (card, evidence.here_bytes) if nbytes is not None]
    return min(limits, default=None)


def _reached_bytes(evidence: Evidence) -> int:
    return (evidence.allocated_bytes or 0) + evidence.least_request_bytes


def _reachable_needs(priced: PricedJob, available: int | None) -> Iterator[PhaseNeed]:
    """The phases up to the first one that surely fails."""
    for need in priced.needs:
        yield need
        if available is not None and need.peak_bytes > available + tolerance(need.peak_bytes):
            return


def _agrees(need: PhaseNeed, evidence: Evidence) -> bool:
    """Does the failing code run in this phase, and do the allocated bytes occur in it?"""
    if evidence.phases is not None and need.phase not in evidence.phases:
        return False
    if evidence.allocated_bytes is None:
        return True
    slack = tolerance(need.peak_bytes)
    has_begun = need.start_bytes - slack <= evidence.allocated_bytes
    goes_as_high = _reached_bytes(evidence) <= need.peak_bytes + slack
    return has_begun and goes_as_high


def _runs_out(need: PhaseNeed, evidence: Evidence, available: int | None) -> bool:
    """The phase does not fit if as much as observed is cached in unusable pieces."""
    if available is None:
        return True
    wasted = evidence.unallocated_bytes + evidence.least_request_bytes // 2
    return need.peak_bytes + wasted > available


def _what_else_it_takes(need: PhaseNeed, card: int | None, available: int | None) -> str:
    slack = tolerance(need.peak_bytes)
    if card is None or available is None or need.peak_bytes > card - slack:
        return ""
    others_hold_memory = available < card - slack
    if others_hold_memory and need.peak_bytes > available - slack:
        return ANOTHER_PROCESS
    return FRAGMENTATION
