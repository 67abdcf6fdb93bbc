"""Host memory that ran out: the CPU allocator, NumPy, Windows' page file, /dev/shm, and files that cannot be opened.

In: a Passage. Out: Observations whose place is `host` or `shm`.
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
    "os error 1455",
    "paging file",
    "页面文件",
    "memoryerror",
    "cannot allocate memory",
    "errno 12]",
    "pinned memory",
    "hostalloc fail",
    "mallochost fail",
)
_IS_CPU = re.compile(
    r"DefaultCPUAllocator|not enough memory: you|Unable to allocate .{0,40} for an array|std::bad_alloc"
    r"|(?<![A-Za-z])_?(?:Array)?MemoryError\b"
    r"|(?:WinError|os error) 1455|paging file is too small|页面文件太小|Errno 12\b|error=12|failed to "
    r"allocate .{0,40} pinned memory|(?:HostAlloc|MallocHost) failed",
    re.IGNORECASE,
)


# Bindings to CUDA that call their error MemoryError, too.
_OF_A_DEVICE = re.compile(r"cuMem\w+ failed|pycuda|numba\.cuda|cupy")
PAGE_FILE, ARRAY = "page file", "array"
_HOST_MARKS = (
    (PAGE_FILE, re.compile(r"error 1455|paging file is too small|页面文件太小", re.IGNORECASE)),
    (ARRAY, re.compile(r"ArrayMemoryError|for an array", re.IGNORECASE)),
)


def read_cpu_allocator(passage: Passage) -> Iterator[Read]:
    text = passage.text()
    if not _IS_CPU.search(text) or _OF_A_DEVICE.search(text):
        return
    match = _CPU_ALLOCATOR.search(text) or _CPU_ALLOCATOR.search(
        f"{text} {' '.join(line.clean() for line in passage.following(2))}"
    )
    marks = tuple(name for name, pattern in _HOST_MARKS if pattern.search(text))
    # "you tried to allocate 0GB" is a size cut down to whole GB by old torch, not a size of zero.
    requested = to_bytes(match["n"], match["u"]) or None if match else None
    yield _one(
        passage, kind="host_alloc_fail", place="host", requested_bytes=requested, marks=marks
    )


_SHM = re.compile(
    r"killed by signal: Bus(?: error|$)|bus error encountered in worker|out of shared memory"
    r"|insufficient shared memory"
    r"|shared memory segment|/dev/shm/|[<'\"]/torch_\d+"
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
# Opening takes no memory: without a reason, it is rather the limit of open files.
NOT_OPENED = "not opened"
_SHM_FAILS = re.compile(
    r"error|unable|killed|fail|no space|insufficient|out of|warn", re.IGNORECASE
)


_NO_MORE_FILES = re.compile(r"received 0 items of ancdata|Too many open files|Errno 24\b|EMFILE")


def read_open_files(passage: Passage) -> Iterator[Read]:
    """The limit of open files, without a word about shared memory."""
    if _NO_MORE_FILES.search(passage.text()) and not _SHM.search(passage.text()):
        yield _one(passage, kind="files", place="host", marks=(OPEN_FILES,))


def _reasons(text: str) -> list[str]:
    return [reason.lower() for reason in _SHM_REASON.findall(text)]


def read_shm(passage: Passage) -> Iterator[Read]:
    text = passage.text()
    if not _SHM.search(text) or not _SHM_FAILS.search(text):
        return
    size = _SHM_SIZE.search(text)
    not_opened = (NOT_OPENED,) if "unable to open shared memory object" in text.lower() else ()
    pid = re.search(r"worker \(pid\(?s?\)? (\d{1,10})\)", text)
    yield _one(
        passage,
        kind="host_shm",
        place="shm",
        requested_bytes=to_bytes(size["n"], "bytes") if size else None,
        figures=(Figure(label="pid", value=int(pid.group(1)), unit="count"),) if pid else (),
        marks=tuple(dict.fromkeys((*_reasons(text), *not_opened))),
    )


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
    Reader(words=("ancdata", "too many open files", "errno 24", "emfile"), read=read_open_files),
    Reader(
        words=(
            "bus error",
            "killed by signal: bus",
            "shared memory",
            "/dev/shm/",
            "</torch_",
            "'/torch_",
            '"/torch_',
        ),
        read=read_shm,
    ),
    Reader(words=("gpu memory",), read=read_gpu_processes),
    Reader(words=("mem: ",), read=read_free),
)
