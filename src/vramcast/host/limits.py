"""What this machine, and the container around this process, allow.

In: /proc, /sys/fs/cgroup and /dev/shm below a root that tests may replace. Out: a record of bytes and CPUs; a limit
that does not exist or cannot be read is None. Linux only: elsewhere every figure is None save the number of CPUs.
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
    meminfo = _meminfo(root / "proc/meminfo")
    limit, used = _tightest_memory(root)
    shm = _filesystem(root / "dev/shm")
    return Limits(
        ram_bytes=meminfo.get("MemTotal"), available_bytes=meminfo.get("MemAvailable"), cgroup_limit_bytes=limit,
        cgroup_used_bytes=used, shm_bytes=shm[0], shm_free_bytes=shm[1], cpus=_cpus(root),
    )  # fmt: skip


def _meminfo(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split()[:2] for line in lines if line.endswith("kB"))
    return {name.rstrip(":"): int(value) * KiB for name, value in pairs}


def _filesystem(path: Path) -> tuple[int | None, int | None]:
    try:
        stat = os.statvfs(path)
    except (OSError, AttributeError):
        return None, None
    return stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize


def _tightest_memory(root: Path) -> tuple[int | None, int | None]:
    """Limit and use of the group with the least room among this process's group and those above it."""
    found = [(limit, _used(group)) for group in _groups(root, "memory") if (limit := _limit(group)) is not None]
    if not found:
        return None, None
    return min(found, key=lambda pair: pair[0] - (pair[1] or 0))


def _limit(group: Path) -> int | None:
    limit = _number(group / "memory.max") or _number(group / "memory.limit_in_bytes")
    return limit if limit is not None and limit < NO_LIMIT_BYTES else None


def _used(group: Path) -> int | None:
    used = _number(group / "memory.current")
    if used is None:
        used = _number(group / "memory.usage_in_bytes")
    cache = _stat(group / "memory.stat")
    inactive = cache.get("total_inactive_file", cache.get("inactive_file", 0))
    return None if used is None else max(used - inactive, 0)


def _stat(path: Path) -> dict[str, int]:
    try:
        return {name: int(value) for name, value in (line.split() for line in path.read_text().splitlines())}
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
    base = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, name = line.split(":", 2)
        if number == "0" and not controllers:
            yield (base / "unified" if (base / "unified").is_dir() else base), name
        elif controller in controllers.split(","):
            yield base / controllers if (base / controllers).is_dir() else base / controller, name


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None  # not there, or "max"


def _cpus(root: Path) -> int:
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [quota for group in _groups(root, "cpu") if (quota := _cpu_quota(group)) is not None]
    return max(1, min([allowed, *quotas]))


def _cpu_quota(group: Path) -> int | None:
    """Whole CPUs a quota allows, rounded up."""
    try:
        quota, period = (group / "cpu.max").read_text().split()
    except (OSError, ValueError):
        quota, period = str(_number(group / "cpu.cfs_quota_us") or "max"), str(_number(group / "cpu.cfs_period_us"))
    if not quota.isdecimal() or not period.isdecimal() or int(period) == 0:
        return None  # "max", or -1 in version 1
    return -(-int(quota) // int(period))
