"""Facts about a log as a whole, and all facts about it together.

In: a Reading. Out: Findings: first those about single observations (`findings`, `host_findings`), then those about
the whole log. Does not know about models or jobs.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

from vramcast.diagnose.observation import Moment, Observation
from vramcast.diagnose.readers.log import Reading
from vramcast.diagnose.rules.findings import DEVICE_RULES, Finding, fact
from vramcast.diagnose.rules.host_findings import OBSERVATION_RULES
from vramcast.diagnose.rules.logits_size import logits_sized
from vramcast.diagnose.rules.processes import neighbours, process_bytes

# After so many steps all gradients, optimizer states and caches are allocated.
SETTLED_STEPS = 10
# Readings that a series must have before its growth counts as growth.
MIN_PEAK_READINGS = 10
MIN_SETTLED_READINGS = 5
MIN_GROWTH = 1.1
# Level and field of an Observation, the most telling counter first.
COUNTERS = (
    ("reserved", "peak_reserved_bytes"),
    ("reserved", "reserved_bytes"),
    ("allocated", "peak_allocated_bytes"),
    ("allocated", "allocated_bytes"),
)


def host_before_the_end(reading: Reading) -> Finding | None:
    """The last reading of host memory before a kill, and the size of the machine that its percentage implies."""
    if not any(item.kind == "host_oom_kill" for item in reading.observations):
        return None
    on_host = [item for item in reading.observations if item.place == "host"]
    for item in reversed(on_host):
        used, percent = item.used_bytes, item.figure("percent")
        if used is not None and percent:
            total = round(used / (percent / 100))
            return fact("host_before_the_end", used_bytes=used, total_bytes=total)
    return None


def failing_ranks(reading: Reading) -> Finding | None:
    failures = [item for item in reading.observations if item.is_failure()]
    ranks = sorted({item.rank for item in failures if item.rank is not None})
    if len(ranks) < 2:
        return None
    return fact("failing_ranks", count=len(ranks), ranks=", ".join(map(str, ranks[:16])))


def failing_together(reading: Reading) -> Finding | None:
    """Two processes of one text that failed on one card, each listing the other with what that one says it holds."""
    failures = [item for item in reading.observations if item.is_failure() and item.place]
    for first, second in combinations(failures, 2):
        if first.place == second.place and _lists(first, second) and _lists(second, first):
            return fact("failing_together", place=first.place or "")
    return None


def _lists(one: Observation, other: Observation) -> bool:
    held = process_bytes(other)
    if held is None or held == process_bytes(one):
        return False
    return any(use.nbytes == held for use in neighbours(one))


FULL, FREE = 0.95, 0.05


def full_beside_free(reading: Reading) -> Finding | None:
    """A table with a card that is full and another that nobody uses, beside a failure that names no numbers."""
    failed = any(item.kind == "cuda_runtime_oom" for item in reading.observations)
    shares = {
        item.place: item.used_bytes / item.capacity_bytes
        for item in reading.observations
        if item.moment is Moment.NOW and item.capacity_bytes and item.used_bytes is not None
    }
    full = [place or "" for place, share in shares.items() if share >= FULL]
    free = [place or "" for place, share in shares.items() if share <= FREE]
    if not failed or not full or not free:
        return None
    return fact("full_beside_free", full=", ".join(full[:8]), free=", ".join(free[:8]))


def theory_only(reading: Reading) -> Finding | None:
    """DeepSpeed printed its estimate, which leaves out activations and overheads."""
    theories = [item for item in reading.observations if item.moment is Moment.THEORY]
    has_estimate = any(item.kind == "deepspeed_estimator" for item in theories)
    return fact("theory_only") if has_estimate else None


def growing(reading: Reading) -> Finding | None:
    """A counter that was read many times never decreased and ended well above its start."""
    now = [item for item in _on_devices(reading) if item.moment is Moment.NOW]
    series = [item.allocated_bytes for item in now if item.allocated_bytes is not None]
    settled = series[len(series) // 4 :]
    if len(settled) < MIN_SETTLED_READINGS:
        return None
    ever_decreases = any(later < earlier for earlier, later in pairwise(settled))
    if ever_decreases or settled[-1] < settled[0] * MIN_GROWTH:
        return None
    return fact("growing", count=len(settled), first_bytes=settled[0], last_bytes=settled[-1])


def _on_devices(reading: Reading) -> list[Observation]:
    return [item for item in reading.observations if not item.is_host()]


def peak_growing(reading: Reading) -> Finding | None:
    """A peak settles after a few steps; a peak that is higher at every reading grows with the steps."""
    at_peak = [item for item in _on_devices(reading) if item.moment is Moment.PEAK]
    peaks = [item.peak_allocated_bytes or item.allocated_bytes or 0 for item in at_peak]
    ever_stays = any(later <= earlier for earlier, later in pairwise(peaks))
    if len(peaks) < MIN_PEAK_READINGS or ever_stays:
        return None
    return fact("growing", count=len(peaks), first_bytes=peaks[0], last_bytes=peaks[-1])


def ran_before(reading: Reading) -> Finding | None:
    """The job had run many steps: a need that is the same at every step would have shown in the first ones."""
    if reading.progress is None or reading.progress < SETTLED_STEPS:
        return None
    return fact("ran_before", count=reading.progress)


def highest(reading: Reading) -> Finding | None:
    """The highest reading of any counter in a log in which nothing failed."""
    if any(item.is_failure() for item in reading.observations):
        return None
    for level, counter in COUNTERS:
        readings = [getattr(item, counter) for item in _on_devices(reading)]
        known = [nbytes for nbytes in readings if nbytes is not None]
        if known:
            return fact("highest", level=level, size_bytes=max(known))
    return None


LOG_RULES = (
    highest,
    host_before_the_end,
    failing_ranks,
    failing_together,
    full_beside_free,
    theory_only,
    growing,
    peak_growing,
    ran_before,
)


def find(reading: Reading) -> tuple[Finding, ...]:
    """Everything the numbers say, in the order of the log; findings about the whole log come last."""
    found: list[Finding] = []
    for index, observation in enumerate(reading.observations):
        found += [replace(item, observation=index) for item in _find_in(observation)]
    results = [rule(reading) for rule in LOG_RULES]
    found += [result for result in results if result is not None]
    return tuple(found if not _has_a_wrong_address(found) else _without_libraries(found))


def _has_a_wrong_address(found: list[Finding]) -> bool:
    return any(item.rule == "illegal_access" for item in found)


def _without_libraries(found: list[Finding]) -> list[Finding]:
    """After a wrong address every call into CUDA fails: what a library says then is no sign of a full card."""
    return [item for item in found if not item.rule.startswith("masked")]


def _find_in(observation: Observation) -> list[Finding]:
    failed_on_device = observation.is_failure() and not observation.is_host()
    device_rules = (*DEVICE_RULES, logits_sized) if failed_on_device else ()
    results = [rule(observation) for rule in (*device_rules, *OBSERVATION_RULES)]
    return [result for result in results if result is not None]
