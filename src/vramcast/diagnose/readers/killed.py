"""Processes that were killed, or ended from outside, in the words of shells, launchers, the kernel and schedulers.

In: a Passage. Out: Observations: `host_oom_kill` for SIGKILL and what reports it, `worker_gone` for a DataLoader worker
that ended without a word, `ended` for signals that have nothing to do with memory. Numbers only from the kernel, Slurm
and Ray.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from vramcast.diagnose.observation import Figure, Moment
from vramcast.diagnose.readers.quantity import NUMBER, UNIT, to_bytes
from vramcast.diagnose.readers.reader import Read, Reader, observe
from vramcast.diagnose.readers.stream import Passage, without_prefix

# What bash says for `Killed` in other languages, as a line of its own.
KILLED_ABROAD = ("已杀死", "已砍掉", "强制终止", "被杀死", "強制終了", "убито", "getötet")
_CODE = r"(?:-9|137)"
_KILLED = re.compile(
    rf"return[ _]?code['\"]? ?[=:]? ?{_CODE}\b|exit[ _]?(?:code|status)['\"]?\s*[:=(]?\s*{_CODE}\b"
    rf"|exit(?:ed)? with (?:exit )?(?:status )?(?:code )?:? ?{_CODE}\b|退出(?:代码|码)\s*[:：为]?\s*{_CODE}\b"
    r"|Signal 9 \(SIGKILL\)|Signals\.SIGKILL|OOMKilled|oom[-_]kill"
    r"|(?:got|by|with|received|signal:?|died:?) (?:signal )?:? ?SIGKILL\b|signal SIGKILL\b|SIGKILL \(9\)|SIGKILL: 9"
    r"|Out of memory: Kill|Killed process \d+ \(|tasks? [\d,-]+: Out Of Memory|killed by signal: Killed"
    r"|^[*_`]{0,3}Killed[*_`]{0,3}$|(?<![\w\s'\"`])Killed$"
    r"|: line \d+:\s+\d+ Killed\b|\[\d+\]\s*[+-]?\s*\d+ killed\b"
    r"|^(?:已杀死|已砍掉|强制终止|被杀死|強制終了|Убито|Getötet)$"
    r"|[:：] ?(?:行|第) ?\d+ ?(?:行)?[:：]\s*\d+ 已杀死"
    r"|node was low on resource: memory|zsh: killed|(?:finally |was |被)(?:it was )?kill(?:ed)? (?:by"
    r"|掉了)? ?(?:linux|the kernel|the OS)"
    r"|terminated by signal 9|node running low on memory|signal: 9\b|killed by signal 9\b"
    r"|(?<!killed by )\bsignal: killed\b"  # a process that Go started: Ollama, Docker, Kubernetes
    r"|(?:session|notebook|kernel) (?:has )?crashed (?:after|because).{0,20}(?:using all available|ran "
    r"out of|all available) (?:RAM|memory)"
    r"|使用了所有可用的? ?RAM|(?:会话|内核).{0,12}(?:RAM|内存).{0,8}(?:崩溃|耗尽)"
    r"|tried to allocate more memory than is available\. It has restarted|TERM_MEMLIMIT|PBS: job killed: (?:v|p)?mem"
    r"|over (?:its )?memory limit|running beyond physical memory limits|Container killed by YARN for exceeding memory"
    r"|workers are \{.{0,40}SIGKILL\(-9\)|process.{0,40}terminated abruptly"
    r"|terminated unexpectedly.{0,80}out.of.memory|OOM[- ]killer"
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
WORKER, BY_CGROUP, WHOLE_MACHINE = "worker", "memcg", "whole machine"


def read_killed(passage: Passage) -> Iterator[Read]:
    """One observation per report of a killed process; the kernel's carries what the process held."""
    text = without_prefix(passage.text())
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


_BY_LIMIT = re.compile(
    r"memory cgroup|constraint_memcg|oomkilled|slurm|\bstepid\b|\bstep \d|exceeded (?:job|step) memory|memlimit|\bpbs\b"
    r"|memory limit|\byarn\b"
)


def _kill_marks(text: str) -> tuple[str, ...]:
    low = text.lower()
    if _BY_LIMIT.search(low):
        return (BY_CGROUP,)
    if "dataloader worker" in low:
        return (WORKER,)
    is_machine = "constraint_none" in low or "out of memory: kill" in low
    return (WHOLE_MACHINE,) if is_machine else ()


def read_cgroup_limit(passage: Passage) -> Iterator[Read]:
    """The kernel prints a cgroup's usage and limit on a line of its own."""
    limits = _limits(passage.text()) if _CGROUP_LIMIT.search(passage.text()) else {}
    if limits:
        yield _one(passage, kind="host_oom_kill", place="host", marks=(BY_CGROUP,), **limits)


_WORKER_GONE = re.compile(
    r"DataLoader worker \(pid\(?s?\)? [\d, ]{1,80}\) exited unexpectedly", re.IGNORECASE
)
_KERNEL_GONE = re.compile(
    r"kernel appears to have died|Kernel crashed while executing|kernel died, restarting|Kernel "
    r"Restarting.{0,20}died",
    re.IGNORECASE,
)
_BUS_ERROR = re.compile(
    r"exit[ _]?code['\"]?\s*[:=(]?\s*(?:-7|135)\b|return code ?[=:]? ?(?:-7|135)\b"
    r"|Signal 7 \(SIGBUS\)|Signals\.SIGBUS|\bSIGBUS\b.{0,40}(?:received|signal)|(?:received|signal|by) SIGBUS\b",
    re.IGNORECASE,
)


def read_worker_gone(passage: Passage) -> Iterator[Read]:
    """A DataLoader worker that ended without a word, or a process that a bus error ended."""
    text = passage.text()
    if _WORKER_GONE.search(text):
        yield _one(passage, kind="worker_gone", place="host", marks=(WORKER,))
    elif _KERNEL_GONE.search(text):
        yield _one(passage, kind="kernel_gone", place="host")
    elif _BUS_ERROR.search(text):
        yield _one(passage, kind="host_shm", place="shm", marks=("bus error",))


_ENDED = (
    # A DataLoader names the signal of its worker in the words of the C library.
    ("SIGTERM", r"killed by signal: Terminated"),
    ("SIGHUP", r"killed by signal: Hangup"),
    ("SIGINT", r"killed by signal: Interrupt"),
    (
        "SIGHUP",
        r"signal SIGHUP|got signal: 1\b|Received 1 death signal|Signals\.SIGHUP|exit(?:code"
        r"|status|ed)?\W{1,3}-1\b.{0,20}SIGHUP",
    ),
    ("SIGINT", r"got signal: 2\b|Received 2 death signal|Signals\.SIGINT|^KeyboardInterrupt$"),
    (
        "SIGTERM",
        r"exit[ _]?code\W{1,4}(?:-15|143)\b|got signal: 15\b|Received 15 death signal|Signals\.SIGTERM"
        r"|DUE TO (?:TIME LIMIT|PREEMPTION)",
    ),
)
_ENDED_BY = tuple((name, re.compile(pattern)) for name, pattern in _ENDED)


def read_ended(passage: Passage) -> Iterator[Read]:
    """A signal from a terminal, a user or a scheduler."""
    text = without_prefix(passage.text())
    for name, pattern in _ENDED_BY:
        if pattern.search(text):
            yield Read(
                observation=observe(
                    passage, kind="ended", moment=Moment.FAILURE, place="host", marks=(name,)
                ),
                last_line=passage.line.number,
            )
            return


_CRASHED = (
    ("SIGSEGV", r"Segmentation fault|SIGSEGV|Signals\.SIGSEGV|段错误|段錯誤"),
    ("SIGABRT", r"SIGABRT|Aborted \(core dumped\)|killed by signal: Aborted"),
    ("SIGILL", r"SIGILL|Illegal instruction"),
    ("SIGFPE", r"SIGFPE|killed by signal: Floating point exception"),
    (
        "SIGSEGV",
        r"(?:exit[ _]?code|return[ _]?code|exit status)['\"]?\s*[=:(]?\s*(?:-11|139)\b|[Ss]ignal:? 11\b",
    ),
    (
        "SIGABRT",
        r"(?:exit[ _]?code|return[ _]?code|exit status)['\"]?\s*[=:(]?\s*(?:-6|134)\b|[Ss]ignal:? 6\b",
    ),
)
_CRASHED_BY = tuple((name, re.compile(pattern)) for name, pattern in _CRASHED)


def read_crashed(passage: Passage) -> Iterator[Read]:
    """A signal that native code brings on itself."""
    text = without_prefix(passage.text())
    for name, pattern in _CRASHED_BY:
        if pattern.search(text):
            yield _one(passage, kind="crashed", place="host", marks=(name,))
            return


def _one(passage: Passage, **fields: Any) -> Read:
    return Read(
        observation=observe(passage, moment=Moment.FAILURE, **fields), last_line=passage.line.number
    )


READERS = (
    Reader(
        words=(
            "exited unexpectedly",
            "kernel appears",
            "kernel crashed",
            "kernel died",
            "sigbus",
            "exit code",
            "exitcode",
            "return code",
        ),
        read=read_worker_gone,
    ),
    Reader(
        words=(
            "return code",
            "returncode",
            "exitcode",
            "exit code",
            "exit status",
            "exit with",
            "exited with",
            "sigkill",
            "oomkilled",
            "oom-kill",
            "oom_kill",
            "oom killer",
            "out of memory: kill",
            "cgroup out of memory",
            ": out of memory",
            "killed",
            "signal 9",
            "signal: 9",
            "running low on memory",
            "memory limit",
            "out_of_me",
            "low on resource",
            "memory pressure",
            "more memory than is available",
            "memlimit",
            "pbs: job",
            "memory on the node",
            "crashed",
            "terminated abruptly",
            "退出",
            "可用的 ram",
            "崩溃",
            *KILLED_ABROAD,
        ),
        read=read_killed,
    ),
    Reader(words=("memory: usage ",), read=read_cgroup_limit),
    Reader(
        words=(
            "segmentation fault",
            "sigsegv",
            "sigabrt",
            "sigill",
            "(core dumped)",
            "illegal instruction",
            "段错误",
            "段錯誤",
            "exit code",
            "exitcode",
            "exit status",
            "return code",
            "signal 11",
            "signal: 11",
            "signal 6",
            "signal: 6",
            "sigfpe",
            "by signal: ",
        ),
        read=read_crashed,
    ),
    Reader(
        words=(
            "sighup",
            "death signal",
            "got signal",
            "sigterm",
            "sigint",
            "keyboardinterrupt",
            "due to time",
            "due to preemption",
            "exit code",
            "exitcode",
            "by signal: ",
        ),
        read=read_ended,
    ),
)
