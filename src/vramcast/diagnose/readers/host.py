"""Host memory that ran out: the CPU allocator, /dev/shm, and processes killed without a word.

In: a Passage. Out: Observations whose place is `host` or `shm`. A SIGKILL prints no numbers; the kernel's log does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

from vramcast.diagnose.observation import Figure, Moment, ProcessUse
from vramcast.diagnose.readers.quantity import NUMBER, UNIT, to_bytes
from vramcast.diagnose.readers.reader import Read, Reader, observe
from vramcast.diagnose.readers.stream import Passage

_CPU_ALLOCATOR = re.compile(
    rf"(?:you tried to allocate|Unable to allocate|failed to allocate)\s+(?P<n>{NUMBER})\s*(?P<u>{UNIT})",
    re.IGNORECASE,
)
_CPU_WORDS = (
    "defaultcpuallocator",
    "not enough memory: you",
    "unable to allocate",
    "std::bad_alloc",
    "winerror 1455",
    "memoryerror",
    "cannot allocate memory",
    "pinned memory",
    "hostalloc fail",
    "mallochost fail",
)
_IS_CPU = re.compile(
    r"DefaultCPUAllocator|not enough memory: you|Unable to allocate .{0,40} for an array|std::bad_alloc"
    r"|(?<![A-Za-z])_?(?:Array)?MemoryError\b"
    r"|WinError 1455|Errno 12\b|error=12|failed to allocate .{0,40} pinned memory|(?:HostAlloc|MallocHost) failed",
    re.IGNORECASE,
)


def read_cpu_allocator(passage: Passage) -> Iterator[Read]:
    text = passage.text()
    if not _IS_CPU.search(text):
        return
    match = _CPU_ALLOCATOR.search(text) or _CPU_ALLOCATOR.search(
        f"{text} {' '.join(line.clean() for line in passage.following(2))}"
    )
    # "you tried to allocate 0GB" is a size cut down to whole GB by old torch, not a size of zero.
    requested = to_bytes(match["n"], match["u"]) or None if match else None
    yield _one(passage, kind="host_alloc_fail", place="host", requested_bytes=requested)


_SHM = re.compile(
    r"killed by signal: Bus(?: error|$)|bus error encountered in worker|out of shared memory|insufficient shared memory"
    r"|shared memory segment|/dev/shm/|</torch_\d+"
    r"|unable to (?:open shared memory object|write to file|mmap|resize|allocate shared memory)",
    re.IGNORECASE,
)
_SHM_SIZE = re.compile(
    rf"(?:\(size\s+|unable to mmap\s+|\bto\s+|shared memory\(shm\)[^.]{{0,80}}? size\s?)(?P<n>{NUMBER})\s*(?:bytes)?",
    re.IGNORECASE,
)
# Why the system refused a shared file, where the text says it: only the first two are about its size.
SHM_FULL, SHM_BUS_ERROR = "no space left", "bus error"
OPEN_FILES, FILE_GONE, NO_HOST_MEMORY = (
    "too many open files",
    "no such file or directory",
    "cannot allocate memory",
)
_SHM_REASON = re.compile(
    "|".join((SHM_FULL, SHM_BUS_ERROR, OPEN_FILES, FILE_GONE, NO_HOST_MEMORY)), re.IGNORECASE
)
_SHM_FAILS = re.compile(
    r"error|unable|killed|fail|no space|insufficient|out of|warn", re.IGNORECASE
)


def read_shm(passage: Passage) -> Iterator[Read]:
    text = passage.text()
    if not _SHM.search(text) or not _SHM_FAILS.search(text):
        return
    size = _SHM_SIZE.search(text)
    pid = re.search(r"worker \(pid\(?s?\)? (\d{1,10})\)", text)
    yield _one(
        passage,
        kind="host_shm",
        place="shm",
        requested_bytes=to_bytes(size["n"], "bytes") if size else None,
        figures=(Figure(label="pid", value=int(pid.group(1)), unit="count"),) if pid else (),
        marks=tuple(dict.fromkeys(reason.lower() for reason in _SHM_REASON.findall(text))),
    )


# What bash says for `Killed` in other languages, as a line of its own.
KILLED_ABROAD = ("已杀死", "已砍掉", "強制終了", "убито", "getötet")
_KILLED = re.compile(
    r"return code ?[=:]? ?-9\b|exit[ _]?(?:code|status)['\"]?\s*[:=(]?\s*(?:-9|137)\b"
    r"|exit(?:ed)? with (?:exit )?(?:status )?(?:code )?(?:-9|137)\b"
    r"|Signal 9 \(SIGKILL\)|Signals\.SIGKILL|OOMKilled|oom[-_]kill"
    r"|Out of memory: Kill|Killed process \d+ \(|tasks? [\d,-]+: Out Of Memory|killed by signal: Killed"
    r"|^Killed$|(?<![\w\s'\"`])Killed$"
    r"|: line \d+:\s+\d+ Killed\b|\[\d+\]\s*[+-]?\s*\d+ killed\b|^(?:已杀死|已砍掉|強制終了|Убито|Getötet)$"
    r"|node was low on resource: memory|zsh: killed|"
    r"terminated by signal 9|node running low on memory"
    r"|(?<![\w.])(?-i:OUT_OF_ME(?:MORY\b|\+))"  # Slurm's state; in small letters it is a name in somebody's code
    r"|exceeded (?:job |step )?memory limit|received signal 9|killed due to memory pressure"
    r"|exceeds the memory usage threshold|Memory cgroup out of memory",
    re.IGNORECASE,
)
_MENTIONS_ONLY = re.compile(r"OOMKilled\W{1,4}false|oom_kill\s+0\b|oom_kill_disable", re.IGNORECASE)
_KERNEL = re.compile(r"\b(total-vm|anon-rss|file-rss|shmem-rss):(\d[\d,]{0,17}) ?kB", re.IGNORECASE)
_KERNEL_PID = re.compile(r"Kill(?:ed)? process (\d{1,10}) \(([^)]{1,40})\)", re.IGNORECASE)
_CGROUP_LIMIT = re.compile(r"memory: usage (\d{1,15})kB, limit (\d{1,15})kB", re.IGNORECASE)
_SLURM_LIMIT = re.compile(
    r"exceeded (?:job |step )?memory limit \((\d{1,15}) > (\d{1,15})\)", re.IGNORECASE
)  # KiB
_RAY = re.compile(rf"was ({NUMBER})({UNIT}) / ({NUMBER})({UNIT})", re.IGNORECASE)
_RAY_TASK = re.compile(rf"memory used=({NUMBER})({UNIT})", re.IGNORECASE)
_PID = re.compile(
    r"(?:Killing subprocess|\bpid[:=]? ?|received by PID |StepId=|step )(\d{1,12})", re.IGNORECASE
)


def read_killed(passage: Passage) -> Iterator[Read]:
    """One observation per report of a killed process; the kernel's carries what the process held."""
    text = passage.text()
    if not _KILLED.search(text) or _MENTIONS_ONLY.search(text):
        return
    fields: dict[str, Any] = {"marks": _kill_marks(text)}
    resident = {
        label.lower(): int(kib.replace(",", "")) * 1024 for label, kib in _KERNEL.findall(text)
    }
    if resident:
        fields["process_bytes"] = sum(
            size for label, size in resident.items() if label != "total-vm"
        )
        fields["derived"] = ("process_bytes",)
        fields["figures"] = tuple(
            Figure(label=label, value=size) for label, size in resident.items()
        )
    victim = _KERNEL_PID.search(text)
    pid = victim or _PID.search(text)
    if pid:
        fields["figures"] = (
            *fields.get("figures", ()),
            Figure(label="pid", value=int(pid.group(1)), unit="count"),
        )
    fields.update(_limits(text))
    yield _one(passage, kind="host_oom_kill", place="host", **fields)


def _limits(text: str) -> dict[str, Any]:
    if (cgroup := _CGROUP_LIMIT.search(text) or _SLURM_LIMIT.search(text)) is not None:
        return {
            "used_bytes": int(cgroup.group(1)) * 1024,
            "allowed_bytes": int(cgroup.group(2)) * 1024,
        }
    if (ray := _RAY.search(text)) is not None:
        # ray/_private/memory_monitor divides by 1024**3 and prints GB.
        used = to_bytes(ray.group(1), ray.group(2), binary=True)
        total = to_bytes(ray.group(3), ray.group(4), binary=True)
        task = _RAY_TASK.search(text)
        own = {"process_bytes": to_bytes(task.group(1), task.group(2), binary=True)} if task else {}
        return {"used_bytes": used, "capacity_bytes": total, "notes": ("gb_is_gib",), **own}
    return {}


def _kill_marks(text: str) -> tuple[str, ...]:
    low = text.lower()
    by_cgroup = (
        "memory cgroup",
        "constraint_memcg",
        "oomkilled",
        "slurm",
        "step",
        "exceeded job memory",
    )
    if any(word in low for word in by_cgroup):
        return ("memcg",)
    return ("whole machine",) if "constraint_none" in low or "out of memory: kill" in low else ()


_CGROUP_WORDS = ("memory: usage ",)


def read_cgroup_limit(passage: Passage) -> Iterator[Read]:
    """The kernel prints a cgroup's usage and limit on a line of its own."""
    limits = _limits(passage.text()) if _CGROUP_LIMIT.search(passage.text()) else {}
    if limits:
        yield _one(passage, kind="host_oom_kill", place="host", marks=("memcg",), **limits)


_FREE = re.compile(r"^Mem:" + 3 * r"\s+(\d{1,15}(?:\.\d{1,3})?)([KMGT]?)i?" + r"\b")
_FREE_FLAG = re.compile(r"\bfree\s+-\w*([bkmg])")


def read_free(passage: Passage) -> Iterator[Read]:
    """`free`: total, used and free. Without a unit after the numbers the command line must say which one it is."""
    match = _FREE.match(passage.text())
    flag = next(
        (found for line in passage.preceding(3) if (found := _FREE_FLAG.search(line.clean()))), None
    )
    if match is None or not (match.group(2) or flag):
        return
    by_flag = flag.group(1).upper() if flag else ""
    sizes = [
        to_bytes(match.group(at), f"{match.group(at + 1) or by_flag.strip('B')}iB")
        for at in (1, 3, 5)
    ]
    observation = observe(
        passage,
        kind="host_free",
        moment=Moment.NOW,
        place="host",
        capacity_bytes=sizes[0],
        used_bytes=sizes[1],
        free_bytes=sizes[2],
    )
    yield Read(observation=observation, last_line=passage.line.number)


_GPU_PROCESS = re.compile(
    rf"process\s+(\d{{1,10}})\s+uses\s+({NUMBER})\s*MB\s+GPU memory", re.IGNORECASE
)


def read_gpu_processes(passage: Passage) -> Iterator[Read]:
    """torch.cuda.list_gpu_processes(): `GPU:0`, then one line per process, MB meaning MiB."""
    place, processes, last = "cuda:0", list[ProcessUse](), passage.line.number
    for line in chain(passage.preceding(1), passage.lines(64)):
        text = line.clean()
        device = re.match(r"GPU:(\d{1,3})", text)
        match = _GPU_PROCESS.search(text)
        if device and processes:
            break
        place = f"cuda:{device.group(1)}" if device else place
        if match:
            processes.append(
                ProcessUse(pid=int(match.group(1)), nbytes=to_bytes(match.group(2), "MiB"))
            )
            last = line.number
    if processes:
        observation = observe(
            passage,
            kind="torch_gpu_processes",
            moment=Moment.NOW,
            place=place,
            other_processes=tuple(processes),
            notes=("gb_is_gib",),
        )
        yield Read(observation=observation, last_line=last)


def _one(passage: Passage, **fields: Any) -> Read:
    return Read(
        observation=observe(passage, moment=Moment.FAILURE, **fields), last_line=passage.line.number
    )


READERS = (
    Reader(words=_CPU_WORDS, read=read_cpu_allocator),
    Reader(
        words=("bus error", "killed by signal: bus", "shared memory", "/dev/shm/", "</torch_"),
        read=read_shm,
    ),
    Reader(
        words=(
            "return code",
            "exitcode",
            "exit code",
            "exit status",
            "exit with",
            "exited with",
            "sigkill",
            "oomkilled",
            "oom-kill",
            "oom_kill",
            "out of memory: kill",
            "cgroup out of memory",
            ": out of memory",
            "killed",
            "signal 9",
            "running low on memory",
            "memory limit",
            "out_of_me",
            "low on resource",
            "memory pressure",
            "memory on the node",
            *KILLED_ABROAD,
        ),
        read=read_killed,
    ),
    Reader(words=_CGROUP_WORDS, read=read_cgroup_limit),
    Reader(words=("gpu memory",), read=read_gpu_processes),
    Reader(words=("mem: ",), read=read_free),
)
