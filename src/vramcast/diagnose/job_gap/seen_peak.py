"""A peak that was seen, without any failure, against the job: which variants of it come to just that much.

In: the Job as its owner describes it, and a SeenPeak read off a log, nvidia-smi or a counter. Out: a Gap whose
explanations reach the peak and no more. Unlike a failure, a peak is the need itself, so it is matched from both sides.
Does not know what happened before the log began.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from vramcast.diagnose.job_gap.course import Agreement, Course, tolerance
from vramcast.diagnose.job_gap.gap import (
    LEAST_SHARE,
    MAX_EXPLANATIONS,
    Explanation,
    Gap,
    Prices,
    applied,
    combinations_of,
    decide,
    is_covered,
    least,
)
from vramcast.diagnose.observation import Moment, Observation
from vramcast.diagnose.readers.log import Reading
from vramcast.diagnose.rules.evidence import Evidence
from vramcast.engine.recording.record import DEVICE
from vramcast.errors import InputError
from vramcast.job import Job
from vramcast.ledger import Level

# What a process holds beyond its peak of allocated bytes is seldom more than half of it again: cache and context.
MOST_BEYOND_ALLOCATED = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenPeak:
    """The highest a device stood, on the sharpest level that was printed."""

    level: Level
    nbytes: int
    observation: Observation


def seen_peak(reading: Reading) -> SeenPeak | None:
    """None where something failed on a device, or where no counter says how high it went."""
    if any(item.is_failure() and not item.is_host() for item in reading.observations):
        return None
    on_device = [item for item in reading.observations if not item.is_host() and item.moment is not Moment.THEORY]
    for level in (Level.ALLOCATED, Level.RESERVED, Level.PROCESS):
        known = [(size, item) for item in on_device if (size := _height(item, level)) is not None]
        if known:
            size, item = max(known, key=lambda pair: pair[0])
            return SeenPeak(level=level, nbytes=size, observation=item)
    return None


def _height(item: Observation, level: Level) -> int | None:
    """nvidia-smi's figure counts as a peak: PyTorch does not give its cache back."""
    is_peak = item.moment is Moment.PEAK
    if level is Level.ALLOCATED:
        return item.peak_allocated_bytes or (item.allocated_bytes if is_peak else None)
    if level is Level.RESERVED:
        return item.peak_reserved_bytes or item.reserved_bytes
    processes = [use.nbytes for use in item.other_processes or () if use.nbytes is not None]
    return max(processes, default=None) or item.process_bytes or item.used_bytes


def explain_peak(job: Job, seen: SeenPeak) -> Gap:
    """Raises a VramcastError where the engine cannot price the job as described."""
    if job.params is not None:
        raise InputError("a number of parameters has no layers to explain anything with: give --model")
    if job.gpu is None and seen.observation.capacity_bytes is not None:
        job = replace(job, gpu=f"{seen.observation.capacity_bytes}B")
    prices = Prices()
    described = prices.of(least(job))
    can_tell = level_bytes(described, seen.level) is not None
    found = sorted(_explanations(job, seen, prices), key=lambda item: -item.weight) if can_tell else []
    best = tuple(found[:MAX_EXPLANATIONS])
    return Gap(
        described=described, evidence=_evidence(seen), explanations=best, contrasts=(), decide=decide(best),
        num_variants=prices.num_looked_at, seen=seen,
    )  # fmt: skip


def _evidence(seen: SeenPeak) -> Evidence:
    """What the combinations of deviations ask about a failure; of a peak nothing is known but its height."""
    return Evidence(
        observation=seen.observation, allocated_bytes=None, unallocated_bytes=0, least_request_bytes=0,
        capacity_bytes=seen.observation.capacity_bytes, outside_bytes=None, here_bytes=None, phases=None,
    )  # fmt: skip


def _explanations(job: Job, seen: SeenPeak, prices: Prices) -> Iterator[Explanation]:
    found: list[Explanation] = []
    for chosen in combinations_of(least(job), _evidence(seen)):
        weight = prod(deviation.prior for deviation in chosen)
        best = max((item.weight for item in found), default=0.0)
        if weight < best * LEAST_SHARE or prices.is_spent:
            return
        names = tuple(deviation.name for deviation in chosen)
        changed = None if is_covered(names, found) else applied(least(job), chosen)
        course = prices.within(changed, *_between(seen)) if changed else None
        if course is not None and comes_to(course, seen):
            fullest = course.fullest
            agreement = Agreement(phase=fullest.phase, peak_bytes=fullest.peak_bytes)
            found.append(
                Explanation(changes=names, course=course, agreement=agreement, weight=weight, matches=())
            )  # fmt: skip
            yield found[-1]


def _between(seen: SeenPeak) -> tuple[int, int]:
    """Between which peaks of allocated bytes the job must lie."""
    slack = tolerance(seen.nbytes)
    if seen.level is Level.ALLOCATED:
        return seen.nbytes - slack, seen.nbytes + slack
    return int(seen.nbytes / MOST_BEYOND_ALLOCATED), seen.nbytes + slack


def level_bytes(course: Course, level: Level) -> int | None:
    """The forecast's own peak on that level; None where the card is unknown and the level needs it."""
    verdict = course.forecast.verdict(DEVICE)
    levels = {Level.ALLOCATED: verdict.allocated_bytes, Level.RESERVED: verdict.reserved_bytes}
    return levels.get(level, verdict.process_bytes)


def comes_to(course: Course, seen: SeenPeak) -> bool:
    """Is the forecast that high, within its own error? Cache and context leave a range of their own."""
    value, verdict = level_bytes(course, seen.level), course.forecast.verdict(DEVICE)
    if value is None:
        return False
    slack = tolerance(value)
    if seen.level is Level.ALLOCATED or verdict.range_bytes is None or verdict.process_bytes is None:
        return abs(value - seen.nbytes) <= slack
    low, high = (bound - verdict.process_bytes for bound in verdict.range_bytes)
    return value + min(low, -slack) <= seen.nbytes <= value + max(high, slack)
