"""Somebody else's memory as a cause: other processes, other libraries of this process.

In: a Case. Out: Hypotheses. Each rule weighs one kind of evidence.
"""

from __future__ import annotations

import re

from vramcast.diagnose.observation import Observation
from vramcast.diagnose.readers.log import Reading
from vramcast.diagnose.rules.case import LIKELY, POSSIBLE, PROVEN, SEEN, Case, Hypothesis
from vramcast.diagnose.rules.findings import DRIVER_MARGIN_BYTES, Finding
from vramcast.diagnose.rules.processes import BARE_CONTEXT_MAX_BYTES, leaves_room_for_others
from vramcast.units import GiB

# The largest published communication buffers of one process: 3.3 GB beyond the context (NVIDIA/nccl#1685).
NCCL_MAX_BYTES = 4 * GiB


def other_process(case: Case) -> Hypothesis | None:
    """Memory of another process, if the request could have been served from it, and if it is no part of this job."""
    if case.has("failing_together"):
        return None
    if case.has("other_processes_decide"):
        return _other_process(PROVEN, "other_processes_decide")
    for finding in case.findings:
        plausibility = _plausibility_of_other_process(finding, case.reading)
        if plausibility is not None:
            return _other_process(plausibility, finding.rule)
    return None


def _other_process(plausibility: int, rule: str) -> Hypothesis:
    return Hypothesis(name="another_process", plausibility=plausibility, evidence=(rule,))


# Findings about memory that no listed process holds, and their value that says how much.
_HELD_ELSEWHERE = {"unlisted_processes": "unlisted_bytes", "held_outside_pytorch": "rest_bytes"}


def _plausibility_of_other_process(finding: Finding, reading: Reading) -> int | None:
    """None where the finding says nothing about memory held elsewhere, or where the driver had enough free."""
    if finding.rule not in _HELD_ELSEWHERE or finding.observation is None:
        return None
    oom = reading.observations[finding.observation]
    requested = oom.requested_bytes or 0
    if oom.free_bytes is None or oom.free_bytes > requested + DRIVER_MARGIN_BYTES:
        return None
    held = int(dict(finding.values)[_HELD_ELSEWHERE[finding.rule]])
    if finding.rule == "held_outside_pytorch":
        held -= BARE_CONTEXT_MAX_BYTES  # of this process, at most
    would_serve = requested <= oom.free_bytes + held
    if would_serve and _is_more_than_communication_buffers(held, oom):
        return SEEN + 5
    return POSSIBLE + 5


def _is_more_than_communication_buffers(held_bytes: int, oom: Observation) -> bool:
    return held_bytes > NCCL_MAX_BYTES or held_bytes * 4 > (oom.capacity_bytes or 0)


def outside_pytorch(case: Case) -> Hypothesis | None:
    """A cause only where it is a large part: several communicators take 4 GiB on a large card in any job."""
    for finding in case.findings:
        if finding.rule != "large_outside" or finding.observation is None:
            continue
        outside = int(dict(finding.values)["outside_bytes"])
        capacity = case.reading.observations[finding.observation].capacity_bytes or 0
        is_large = outside > NCCL_MAX_BYTES * 2 or outside * 8 > capacity
        plausibility = LIKELY if is_large else POSSIBLE + 5
        return Hypothesis(
            name="outside_pytorch", plausibility=plausibility, evidence=("large_outside",)
        )
    return None


def beside_metal(case: Case) -> Hypothesis | None:
    """What other Metal libraries of this process hold, if it is a large part of the limit."""
    for item in case.failures():
        others = item.figure("other allocations")
        if others and item.allowed_bytes and others * 3 > item.allowed_bytes:
            return Hypothesis(name="outside_pytorch", plausibility=LIKELY, evidence=("mps_limit",))
    return None


def unlisted_holder(case: Case) -> Hypothesis | None:
    """In a container the list of nvidia-smi is always empty, so next to a failure's own numbers this says little."""
    if not case.has("nobody_listed"):
        return None
    plausibility = POSSIBLE if case.failed_on_device() else LIKELY
    return _other_process(plausibility, "nobody_listed")


# What makes a CUDA context, or is the first thing that is put on a card.
_FIRST_TOUCH = re.compile(
    r"_lazy_(?:init|new)\b|_cuda_init\b|\bbarrier\(|\bset_device\(|_cuda_deserialize|manual_seed_all|\bempty_cache\("
)
_INNERMOST = 4


def full_at_first_touch(case: Case) -> Hypothesis | None:
    """Not the allocator but the CUDA runtime found no room, when the program had put next to nothing on the card."""
    if not case.has("runtime_error_bare"):
        return None
    match = next(filter(None, map(_FIRST_TOUCH.search, case.traces()[:_INNERMOST])), None)
    if match is None:
        return None
    return Hypothesis(
        name="card_full_elsewhere", plausibility=SEEN + 4, evidence=(match.group(0).strip("("),)
    )


def full_beside_free(case: Case) -> Hypothesis | None:
    """A table that shows a full card beside a free one, unless the numbers of a failure leave no room for others."""
    if not case.has("full_beside_free"):
        return None
    if not all(map(leaves_room_for_others, case.failures())):
        return None
    return _other_process(LIKELY + 9, "full_beside_free")


def left_over_process(case: Case) -> Hypothesis | None:
    """Words about processes that were left over, unless the numbers leave no room for one."""
    told = case.seen("left_over")
    if not told or not case.failed_on_device():
        return None
    if not all(map(leaves_room_for_others, case.failures())):
        return None
    return Hypothesis(name="another_process", plausibility=LIKELY + 8, evidence=told)
