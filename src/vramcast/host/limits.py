"""Read what this machine, and the container around this process, allow.

In: /proc, /sys/fs/cgroup and /dev/shm below a root that tests may replace. Out: a record of bytes and CPUs; a limit
that does not exist or cannot be read is None. Linux only: elsewhere every figure is None except the number of CPUs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vramcast.units import KiB

NO_LIMIT_BYTES = 2**60  # cgroup v1 writes "no limit" as a number near 2^63


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What may be used, and what is free now."""

    ram_bytes: int | None
    available_bytes: int | None
    cgroup_limit_bytes: int | None
    cgroup_used_bytes: int | None  # without page cache that the kernel may drop
    shm_bytes: int | None
    shm_free_bytes: int | None
    cpus: int

    @property
    def capacity_bytes(self) -> int | None:
        """The smaller of RAM and the container's limit."""
        known = [size for size in (self.ram_bytes, self.cgroup_limit_bytes) if size is not None]
        return min(known) if known else None

    @property
    def free_bytes(self) -> int | None:
        """What a new process can still take before the machine or the container runs out."""
        known = [] if self.available_bytes is None else [self.available_bytes]
        if self.cgroup_limit_bytes is not None and self.cgroup_used_bytes is not None:
            known.append(max(self.cgroup_limit_bytes - self.cgroup_used_bytes, 0))
        return min(known) if known else None


def read_limits(root: Path = Path("/")) -> Limits:
    meminfo = _read_meminfo(root / "proc/meminfo")
    limit, used = _tightest_memory(root)
    shm_bytes, shm_free_bytes = _filesystem_size(root / "dev/shm")
    return Limits(
        ram_bytes=meminfo.get("MemTotal"),
        available_bytes=meminfo.get("MemAvailable"),
        cgroup_limit_bytes=limit,
        cgroup_used_bytes=used,
        shm_bytes=shm_bytes,
        shm_free_bytes=shm_free_bytes,
        cpus=_count_cpus(root),
    )


def _read_meminfo(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split()[:2] for line in lines if line.endswith("kB"))
    return {name.rstrip(":"): int(value) * KiB for name, value in pairs}


def _filesystem_size(path: Path) -> tuple[int | None, int | None]:
    try:
        stat = os.statvfs(path)
    except (OSError, AttributeError):
        return None, None
    return stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize


def _tightest_memory(root: Path) -> tuple[int | None, int | None]:
    """Limit and use of the group with the least room among this process's group and those above it."""
    limited: list[tuple[int, int | None]] = []
    for group in _groups(root, "memory"):
        limit = _memory_limit(group)
        if limit is not None:
            limited.append((limit, _memory_used(group)))
    if not limited:
        return None, None
    return min(limited, key=lambda pair: pair[0] - (pair[1] or 0))


def _memory_limit(group: Path) -> int | None:
    limit = _read_int(group / "memory.max") or _read_int(group / "memory.limit_in_bytes")
    if limit is None or limit >= NO_LIMIT_BYTES:
        return None
    return limit


def _memory_used(group: Path) -> int | None:
    used = _read_int(group / "memory.current")
    if used is None:
        used = _read_int(group / "memory.usage_in_bytes")
    if used is None:
        return None
    stat = _read_memory_stat(group / "memory.stat")
    inactive = stat.get("total_inactive_file", stat.get("inactive_file", 0))
    return max(used - inactive, 0)


def _read_memory_stat(path: Path) -> dict[str, int]:
    try:
        pairs = [line.split() for line in path.read_text().splitlines()]
        return {name: int(value) for name, value in pairs}
    except (OSError, ValueError):
        return {}


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The directories of this process's control group and its parents, for version 2 and version 1."""
    for mount, name in _memberships(root, controller):
        group = mount / name.lstrip("/")
        while True:
            if group.is_dir():
                yield group
            if group == mount:
                break
            group = group.parent


def _memberships(root: Path, controller: str) -> Iterator[tuple[Path, str]]:
    """Mount point and name of the control groups of this process."""
    base = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, name = line.split(":", 2)
        if number == "0" and not controllers:
            yield _existing_folder(base / "unified", base), name
        elif controller in controllers.split(","):
            yield _existing_folder(base / controllers, base / controller), name


def _existing_folder(folder: Path, otherwise: Path) -> Path:
    return folder if folder.is_dir() else otherwise


def _read_int(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None  # not there, or "max"


def _count_cpus(root: Path) -> int:
    allowed = _allowed_cpus()
    quotas = [_cpu_quota(group) for group in _groups(root, "cpu")]
    return max(1, min([allowed, *(quota for quota in quotas if quota is not None)]))


def _allowed_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_quota(group: Path) -> int | None:
    """Whole CPUs a quota allows, rounded up."""
    try:
        quota, period = (group / "cpu.max").read_text().split()
    except (OSError, ValueError):
        quota = str(_read_int(group / "cpu.cfs_quota_us") or "max")
        period = str(_read_int(group / "cpu.cfs_period_us"))
    if not quota.isdecimal() or not period.isdecimal() or int(period) == 0:
        return None  # "max", or -1 in version 1
    return -(-int(quota) // int(period))
