"""Read from the kernel what a process and its children hold.

In: a process id. Out: bytes of private memory, shared memory and mapped files, each shared page counted once within the
family. That is PSS summed over the family, with two corrections: pages of libraries that other processes also map count
in full, and shared memory counts where only a file descriptor holds it, as for batches waiting between worker and
training loop, which PSS does not see. Linux only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vramcast.units import KiB

SHM_PREFIX = "/dev/shm/"
_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ ([0-9a-f]+) \S+ (\d+)\s*(.*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUse:
    """Bytes held by a family of processes."""

    private_bytes: int
    shm_bytes: int
    file_bytes: int
    processes: int

    @property
    def total_bytes(self) -> int:
        return self.private_bytes + self.shm_bytes + self.file_bytes


def family_use(root_pid: int | None = None) -> HostUse:
    """The process (this one by default), its children and theirs."""
    pids = list(_family(os.getpid() if root_pid is None else root_pid))
    private = 0
    mapped: dict[str, int] = {}
    for pid in pids:
        try:
            private += _private_bytes(pid)
            for key, size in (*_mapped_pages(pid), *_open_shm(pid)):
                mapped[key] = max(mapped.get(key, 0), size)
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended while we looked
    shm = sum(size for key, size in mapped.items() if key.startswith(SHM_PREFIX))
    return HostUse(
        private_bytes=private,
        shm_bytes=shm,
        file_bytes=sum(mapped.values()) - shm,
        processes=len(pids),
    )


def _open_shm(pid: int) -> Iterator[tuple[str, int]]:
    """Shared memory this process holds a descriptor of, mapped or not."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if os.readlink(link).startswith(SHM_PREFIX):
                stat = os.stat(link)
                yield f"{SHM_PREFIX}{stat.st_ino}", stat.st_blocks * 512
        except FileNotFoundError:
            continue  # closed while we looked


def _family(pid: int) -> Iterator[int]:
    yield pid
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [child for task in tasks for child in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return
    for child in children:
        yield from _family(int(child))


def _private_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss_Anon:"):
            return int(line.split()[1]) * KiB
    return 0


def _mapped_pages(pid: int) -> Iterator[tuple[str, int]]:
    """Resident pages of each mapped file that the process has not written to, by file and offset."""
    key = ""
    sizes: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        match = _MAPPING.match(line)
        if match is None:
            name, _, rest = line.partition(":")
            if rest.endswith("kB"):
                sizes[name] = int(rest.split()[0]) * KiB
            continue
        if key:
            yield key, _unwritten_bytes(sizes)
        offset, inode, path = match.groups()
        key, sizes = _mapping_key(path, offset, inode), {}
    if key:
        yield key, _unwritten_bytes(sizes)


def _mapping_key(path: str, offset: str, inode: str) -> str:
    """Equal for the same pages in every process; empty for memory without a file."""
    if path.startswith(SHM_PREFIX):
        return f"{SHM_PREFIX}{inode}"
    return f"{path}@{offset}" if inode != "0" else ""


def _unwritten_bytes(sizes: dict[str, int]) -> int:
    return max(sizes.get("Rss", 0) - sizes.get("Anonymous", 0), 0)
