"""What this process holds, as the kernel and the NVIDIA driver report it.

In: nothing, or the devices to ask about. Out: bytes, None if unknown. The high-water mark is the kernel's own
and can be reset, so a peak between two readings is not missed. Linux; elsewhere only the RSS, through psutil.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUse:
    """This process on the host. PSS counts shared pages by share; it is asked rarely because the kernel walks all
    pages.
    """

    rss_bytes: int | None
    rss_max_bytes: int | None
    pss_bytes: int | None


def host_use(*, with_pss: bool) -> HostUse:
    try:
        text = Path("/proc/self/status").read_bytes()
    except OSError:
        return HostUse(rss_bytes=_psutil_rss(), rss_max_bytes=None, pss_bytes=None)
    pss_bytes = _pss() if with_pss else None
    return HostUse(
        rss_bytes=_field(text, b"VmRSS:"),
        rss_max_bytes=_field(text, b"VmHWM:"),
        pss_bytes=pss_bytes,
    )


def _field(status: bytes, name: bytes) -> int | None:
    """One line of /proc/self/status, in bytes."""
    at = status.find(name)
    return int(status[at + len(name) : status.index(b"kB", at)]) * 1024 if at >= 0 else None


def _psutil_rss() -> int | None:
    try:
        import psutil
    except ImportError:
        return None
    return int(psutil.Process().memory_info().rss)


def reset_host_peak() -> None:
    """Writing 5 resets the high-water mark (proc(5)); a kernel that refuses leaves the peak since the process began."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        return


def _pss() -> int | None:
    try:
        text = Path("/proc/self/smaps_rollup").read_text()
    except OSError:
        return None
    found = [line.split()[1] for line in text.splitlines() if line.startswith("Pss:")]
    return int(found[0]) * 1024 if found else None


def process_bytes(devices: Sequence[torch.device]) -> dict[str, int]:
    """What the driver reports for this process, by CUDA UUID, so CUDA_VISIBLE_DEVICES does not matter."""
    wanted = [device for device in devices if device.type == "cuda"]
    if not wanted:
        return {}
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no driver, or a machine that only looks like it has one
        return {}
    try:
        found = {str(device): _driver_bytes(pynvml, device) for device in wanted}
        return {device: nbytes for device, nbytes in found.items() if nbytes is not None}
    finally:
        pynvml.nvmlShutdown()


def _driver_bytes(pynvml: object, device: torch.device) -> int | None:
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)  # type: ignore[attr-defined]  # a module passed as a value
    processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)  # type: ignore[attr-defined]
    mine = [process.usedGpuMemory for process in processes if process.pid == os.getpid()]
    return int(mine[0]) if mine and mine[0] is not None else None
