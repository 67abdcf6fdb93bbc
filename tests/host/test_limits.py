"""RAM, container and CPU limits, from trees like the ones kernels present."""

from __future__ import annotations

from pathlib import Path

import pytest

from vramcast.host.limits import Limits, read_limits
from vramcast.units import GiB, MiB

MEMINFO = "MemTotal:       16777216 kB\nMemFree:  1 kB\nMemAvailable:    8388608 kB\nHugePages_Total:       0\n"


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_version_2_takes_the_tightest_group_on_the_way_up(tmp_path: Path) -> None:
    base = "sys/fs/cgroup"
    limits = read_limits(
        tree(
            tmp_path,
            {
                "proc/self/cgroup": "0::/kube/pod/job\n",
                f"{base}/kube/memory.max": str(8 * GiB), f"{base}/kube/memory.current": str(5 * GiB),
                f"{base}/kube/pod/memory.max": str(6 * GiB), f"{base}/kube/pod/memory.current": str(2 * GiB),
                f"{base}/kube/pod/memory.stat": f"anon 1\ninactive_file {GiB}\n",
                f"{base}/kube/pod/job/memory.max": "max\n",
                f"{base}/kube/pod/job/cpu.max": "150000 100000\n",
            },
        )
    )  # fmt: skip
    assert (limits.cgroup_limit_bytes, limits.cgroup_used_bytes) == (8 * GiB, 5 * GiB)
    assert limits.free_bytes == 3 * GiB
    assert limits.capacity_bytes == 8 * GiB
    assert limits.cpus <= 2


def test_version_1_and_a_container_that_sees_only_its_own_group(tmp_path: Path) -> None:
    limits = read_limits(
        tree(
            tmp_path,
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": str(4 * GiB),
                "sys/fs/cgroup/memory/memory.usage_in_bytes": str(3 * GiB),
                "sys/fs/cgroup/memory/memory.stat": f"inactive_file 5\ntotal_inactive_file {GiB}\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "100000",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
            },
        )
    )
    assert limits.cgroup_limit_bytes == 4 * GiB
    assert limits.free_bytes == 2 * GiB
    assert limits.cpus == 1


def test_no_limit_is_none_not_a_huge_number(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:memory:/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": str(2**63 - 4096),
    }
    limits = read_limits(tree(tmp_path, files))
    assert limits.cgroup_limit_bytes is None
    assert limits.capacity_bytes == 16 * GiB
    assert limits.free_bytes == 8 * GiB


def test_a_machine_that_says_nothing(tmp_path: Path) -> None:
    limits = read_limits(tmp_path)
    assert (limits.ram_bytes, limits.free_bytes, limits.capacity_bytes, limits.shm_bytes) == (
        None,
        None,
        None,
        None,
    )
    assert limits.cpus >= 1


def test_this_machine_has_plausible_limits() -> None:
    limits = read_limits()
    assert limits.ram_bytes is not None
    assert 256 * MiB < limits.ram_bytes < 64 * 1024 * GiB
    assert limits.free_bytes is not None
    assert 0 < limits.free_bytes <= limits.ram_bytes


@pytest.mark.parametrize(
    ("limit", "used", "free"), [(10, 4, 6), (10, 14, 0), (None, None, 8), (10, None, 8)]
)
def test_free_memory_is_the_tighter_of_two(limit: int | None, used: int | None, free: int) -> None:
    limits = Limits(
        ram_bytes=20, available_bytes=8, cgroup_limit_bytes=limit, cgroup_used_bytes=used, shm_bytes=None,
        shm_free_bytes=None, cpus=1,
    )  # fmt: skip
    assert limits.free_bytes == free
