"""The host as a cause: whose memory ran out there, and what is no lack of memory at all.

In: a Case. Out: Hypotheses. Each rule weighs one kind of evidence.
"""

from __future__ import annotations

import re

from vramcast.diagnose.readers.host import SHM_FULL
from vramcast.diagnose.readers.stream import without_prefix
from vramcast.diagnose.rules.case import LIKELY, POSSIBLE, PROVEN, SEEN, Case, Hypothesis

SURELY_HOST = (
    "killed_by_limit",
    "killed_by_machine",
    "killed_worker",
    "host_allocation",
    "host_allocation_unknown",
    "host_told",
    "array_allocation",
    "small_allocation",
    "page_file",
)
HOST_RULES = ("killed", *SURELY_HOST)


def killed_on_host(case: Case) -> Hypothesis | None:
    """The host killed the process. After an error on a device it was rather the launcher that ended other ranks."""
    found = case.found_among(HOST_RULES)
    if not found:
        return None
    may_be_the_launcher = _device_failed_first(case) and not case.has(*SURELY_HOST)
    plausibility = POSSIBLE + 5 if may_be_the_launcher else PROVEN
    name = next((HOST_CAUSES[rule] for rule in found if rule in HOST_CAUSES), "host_memory")
    return Hypothesis(name=name, plausibility=plausibility, evidence=found)


# What the report of the failure itself says about whose memory it was.
HOST_CAUSES = {
    "killed_worker": "host_workers",
    "array_allocation": "host_array",
    "page_file": "page_file",
    "killed_by_limit": "host_limit",
}


def _device_failed_first(case: Case) -> bool:
    host_lines = [item.line for item in case.failures() if item.is_host()]
    device_lines = [item.line for item in case.failures() if not item.is_host()]
    if not host_lines or not device_lines:
        return False
    return min(device_lines) < min(host_lines)


_LOADS = re.compile(
    r"Loading checkpoint shards:?\s*(?!100)(?:\d{1,2}%|的)|loading weights file|\bLoading \S{3,80}\.\.\.$"
    r"|\bLoading a checkpoint\b|\binitializing pipeline with size",  # Meta's launchers load next
    re.IGNORECASE,
)
_BY_THE_LAUNCHER = re.compile(r"Killing subprocess|sigkill_handler|SIGTERM")


def killed_while_loading(case: Case) -> Hypothesis | None:
    """The last thing that was printed is a checkpoint being loaded."""
    found = case.found_among(HOST_RULES)
    printed = [line for line in case.reading.context if not _is_aside(line)]
    seen = next(filter(None, map(_LOADS.search, printed[-3:])), None)
    if not found or seen is None:
        return None
    return Hypothesis(name="host_load", plausibility=PROVEN + 1, evidence=(*found, seen.group(0)))


_CONFIG = re.compile(r"^\s*(?:[{}\[\]\"']|Model args)")


def _is_the_launchers(line: str) -> bool:
    """What a launcher prints about ranks that it ends; a progress bar may stand before it on the same line."""
    return _BY_THE_LAUNCHER.search(line) is not None and _LOADS.search(line) is None


def _is_aside(line: str) -> bool:
    """What says nothing about how far a program got: its launcher, and a configuration that it prints."""
    return _is_the_launchers(line) or _CONFIG.match(without_prefix(line)) is not None


_ARRAY_CODE = re.compile(r"\b(?:np|numpy)\.\w+\(|\.astype\(|[/\\]numpy[/\\]|\bnp\.load\b")
_FAILING_LINES = 3  # the innermost code, where a message names no array


def array_in_code(case: Case) -> Hypothesis | None:
    """A MemoryError without a word about an array, in a line that makes one."""
    if not case.has("host_allocation_unknown"):
        return None
    match = next(filter(None, map(_ARRAY_CODE.search, case.traces()[:_FAILING_LINES])), None)
    if match is None:
        return None
    return Hypothesis(name="host_array", plausibility=PROVEN + 1, evidence=(match.group(0),))


_FORK = re.compile(r"os\.fork\(\)|popen_fork")


def fork_refused(case: Case) -> Hypothesis | None:
    """A process could not be copied: a DataLoader starts its workers in this way."""
    if not case.has("host_allocation_unknown"):
        return None
    match = next(filter(None, map(_FORK.search, case.traces())), None)
    found = (match.group(0),) if match else case.seen("workers")
    if not found:
        return None
    return Hypothesis(name="host_workers", plausibility=PROVEN + 1, evidence=found)


def small_shm(case: Case) -> Hypothesis | None:
    """/dev/shm is too small: what a bus error says, unless the text shows that it has room."""
    found = case.found_among(("shared_memory", "worker_gone"))
    if not found:
        return None
    plausibility = PROVEN if "shared_memory" in found else POSSIBLE + 25
    if _has_roomy_shm(case):
        plausibility = POSSIBLE + 10
    return Hypothesis(name="shared_memory", plausibility=plausibility, evidence=found)


def workers_beside_roomy_shm(case: Case) -> Hypothesis | None:
    """A worker that died beside a large /dev/shm rather lacked the machine's memory, which that is a part of."""
    if not case.has("shared_memory", "worker_gone") or not _has_roomy_shm(case):
        return None
    return Hypothesis(name="host_workers", plausibility=LIKELY + 8, evidence=case.seen("roomy_shm"))


def _has_roomy_shm(case: Case) -> bool:
    is_full = any(SHM_FULL in item.marks for item in case.failures())
    return bool(case.seen("roomy_shm")) and not is_full


def grown_on_host(case: Case) -> Hypothesis | None:
    """Host memory that ran out after many steps has grown: what a step needs is there from the first one on."""
    told = case.seen("grows", "after_steps")
    found = case.found_among(HOST_RULES)
    if not found or _device_failed_first(case):
        return None
    if told:
        return Hypothesis(name="host_growth", plausibility=PROVEN + 1, evidence=(*found, *told))
    if case.has("ran_before"):
        return Hypothesis(name="host_growth", plausibility=SEEN, evidence=("ran_before",))
    return None


# What is not a lack of memory, unless memory ran out as well: then it is rather what came of that.
NOT_MEMORY = {
    "ended": "not_memory",
    "crashed": "crashed",
    "on_chip_memory": "on_chip_memory",
    "illegal_access": "illegal_access",
    "disk_full": "disk_full",
}
NOT_MEMORY_KINDS = ("ended", "crashed", "not_capacity")


def not_a_lack_of_memory(case: Case) -> Hypothesis | None:
    found = case.found_among(tuple(NOT_MEMORY))
    if not found:
        return None
    # After a wrong address every call into CUDA fails: what a library says then is no sign of a full card.
    kinds = (*NOT_MEMORY_KINDS, "masked_oom") if "illegal_access" in found else NOT_MEMORY_KINDS
    is_alone = all(item.kind in kinds for item in case.failures())
    plausibility = PROVEN if is_alone else POSSIBLE - 10
    return Hypothesis(name=NOT_MEMORY[found[0]], plausibility=plausibility, evidence=found)
