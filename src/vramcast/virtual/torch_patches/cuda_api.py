"""`torch.cuda` and `torch.accelerator`, answered by the virtual cards.

In come calls that a CUDA build would pass to its driver, out come answers from the cards and their allocators. Where
torch's Python code calls a small C function, that function is patched, so that `memory_summary`, `memory_stats` and the
rest are torch's own code. Does not know load, temperature and power: they are 0.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from vramcast.patches import Patches
from vramcast.virtual.state import GpuState
from vramcast.virtual.torch_patches import streams
from vramcast.virtual.torch_patches.snapshots import snapshot

CUDA_VERSION = "12.8"
CUDNN_VERSION = 91002


def install(gpu: GpuState, patches: Patches) -> None:
    streams.install(gpu, patches)
    for name, answer in {**_driver(gpu), **_accelerator(gpu)}.items():
        patches.set(torch._C, name, answer)
    for name, answer in _cuda(gpu).items():
        patches.set(torch.cuda, name, answer)
    for name in ("_exchange_device", "_maybe_exchange_device"):
        patches.set(torch.cuda, name, lambda index: exchange(gpu, index))
    patches.set(torch.version, "cuda", CUDA_VERSION)
    patches.set(torch.backends.cuda, "is_built", lambda: True)
    patches.set(torch.backends.cudnn, "is_available", lambda: True)
    patches.set(torch.backends.cudnn, "version", lambda: CUDNN_VERSION)
    patches.set(torch.accelerator, "is_available", lambda: True)
    patches.set(torch.accelerator, "device_count", lambda: gpu.count)
    patches.set(torch.cuda.nvtx, "_nvtx", _Nvtx())
    patches.set(torch, "Generator", _generator_class())
    patches.set(torch, "device", _device_class())
    for name in _RANDOM:
        patches.set(torch.cuda.random, name, getattr(torch.cuda, name))
    patches.set(
        torch.cuda, "default_generators", tuple(torch.Generator() for _ in range(gpu.count))
    )
    patches.set(torch.cuda.memory, "_record_memory_history", _record_memory_history(gpu))
    patches.set(torch.cuda.memory, "is_initialized", lambda: True)
    patches.set(torch.cuda.memory, "mem_get_info", torch.cuda.mem_get_info)


def _record_memory_history(gpu: GpuState) -> Any:
    def record(enabled: Any = "all", *args: Any, **kwargs: Any) -> None:
        """`enabled=None` ends it, as does False of older torch."""
        if enabled:
            gpu.keep_history()
        else:
            gpu.drop_history()

    return record


_RANDOM = (
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "initial_seed",
    "get_rng_state",
    "get_rng_state_all",
    "set_rng_state",
    "set_rng_state_all",
)


def exchange(gpu: GpuState, index: int) -> int:
    before = gpu.current_index
    if index >= 0:
        gpu.place_named(torch.device("cuda", index))
        gpu.current_index = index
    return before


def _driver(gpu: GpuState) -> dict[str, Any]:
    """Stand-ins for torch._C._cuda_*."""

    def free_and_total(index: int) -> tuple[int, int]:
        allocator = gpu.memories[index].allocator
        return allocator.free_device_bytes, gpu.card.capacity_bytes()

    def reset_peak(index: int) -> None:
        gpu.memories[index].allocator.reset_peak()

    def set_fraction(fraction: float, index: int) -> None:
        gpu.memories[index].allocator.set_fraction(fraction)

    def empty_cache(*args: Any) -> None:
        for memory in gpu.memories:
            memory.allocator.empty_cache()

    return {
        "_cuda_getDeviceCount": lambda: gpu.count,
        "_cuda_getDevice": lambda: gpu.current_index,
        "_cuda_setDevice": lambda index: exchange(gpu, index),
        "_cuda_exchangeDevice": lambda index: exchange(gpu, index),
        "_cuda_maybeExchangeDevice": lambda index: exchange(gpu, index),
        "_cuda_synchronize": lambda *args: gpu.complete_streams(),
        "_cuda_ipc_collect": lambda: None,
        "_cuda_sleep": lambda cycles: None,
        "_cuda_memoryStats": lambda index: gpu.memories[index].allocator.memory_stats(),
        "_cuda_resetPeakMemoryStats": reset_peak,
        "_cuda_resetAccumulatedMemoryStats": reset_peak,
        "_cuda_emptyCache": empty_cache,
        "_cuda_setMemoryFraction": set_fraction,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_canDeviceAccessPeer": lambda one, other: True,
        "_cuda_getArchFlags": lambda: f"sm_{gpu.capability[0]}{gpu.capability[1]}",
        "_cuda_memoryInfo": free_and_total,
        "_cuda_isCurrentStreamCapturing": lambda: False,
        "_cuda_get_sync_debug_mode": lambda: 0,
        "_cuda_set_sync_debug_mode": lambda mode: None,
        "_cuda_hostMemoryStats": dict,
        "_cuda_memorySnapshot": lambda *args: snapshot(gpu),
        "_cuda_getCurrentRawStream": lambda index: gpu.memories[index].stream,
    }


def _accelerator(gpu: GpuState) -> dict[str, Any]:
    driver = _driver(gpu)
    return {
        "_accelerator_getAccelerator": lambda: torch.device("cuda"),
        "_accelerator_getDeviceIndex": lambda: gpu.current_index,
        "_accelerator_setDeviceIndex": lambda index: exchange(gpu, index),
        "_accelerator_exchangeDevice": lambda index: exchange(gpu, index),
        "_accelerator_maybeExchangeDevice": lambda index: exchange(gpu, index),
        "_accelerator_synchronizeDevice": lambda index: gpu.complete_streams(),
        "_accelerator_isAllocatorInitialized": lambda: True,
        "_accelerator_emptyCache": driver["_cuda_emptyCache"],
        "_accelerator_emptyHostCache": lambda: None,
        "_accelerator_getDeviceStats": driver["_cuda_memoryStats"],
        "_accelerator_resetPeakStats": driver["_cuda_resetPeakMemoryStats"],
        "_accelerator_resetAccumulatedStats": driver["_cuda_resetPeakMemoryStats"],
        "_accelerator_getMemoryInfo": driver["_cuda_memoryInfo"],
    }


def _cuda(gpu: GpuState) -> dict[str, Any]:
    """Functions of torch.cuda that reach for the driver before anything could be answered."""

    def properties(device: Any = None) -> Any:
        torch.cuda._utils._get_device_index(device, optional=True)
        return device_properties(gpu)

    def mem_get_info(device: Any = None) -> tuple[int, int]:
        index = torch.cuda._utils._get_device_index(device, optional=True)
        free, total = torch._C._cuda_memoryInfo(index)
        return free, total

    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_compiled": lambda: True,
        "_lazy_init": lambda: None,
        "init": lambda: None,
        "_initialized": True,
        "_lazy_call": lambda callback, **kwargs: None,
        "device_count": lambda: gpu.count,
        "get_device_properties": properties,
        "get_device_name": lambda device=None: properties(device).name,
        "get_device_capability": lambda device=None: gpu.capability,
        "is_bf16_supported": lambda including_emulation=True: (
            including_emulation or gpu.capability >= (8, 0)
        ),
        "mem_get_info": mem_get_info,
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
        "seed": lambda: None,
        "seed_all": lambda: None,
        "initial_seed": lambda: 0,
        "get_rng_state": lambda device="cuda": torch.zeros(16, dtype=torch.uint8),
        "get_rng_state_all": lambda: [
            torch.zeros(16, dtype=torch.uint8, device="cpu") for _ in range(gpu.count)
        ],
        "set_rng_state": lambda state, device="cuda": None,
        "set_rng_state_all": lambda states: None,
        "cudart": lambda: SimpleNamespace(
            cudaMemGetInfo=mem_get_info, cudaProfilerStart=lambda: 0, cudaProfilerStop=lambda: 0
        ),
        "utilization": lambda device=None: 0,
        "temperature": lambda device=None: 0,
        "power_draw": lambda device=None: 0,
        "list_gpu_processes": lambda device=None: (
            f"GPU:{gpu.current_index}\nno processes are running"
        ),
        "can_device_access_peer": lambda one, other: True,
    }


def device_properties(gpu: GpuState) -> Any:
    card = gpu.card
    major, minor = gpu.capability
    return SimpleNamespace(
        name=card.name,
        major=major,
        minor=minor,
        total_memory=card.capacity_bytes(),
        multi_processor_count=card.sm_count or 108,
        is_integrated=False,
        is_multi_gpu_board=False,
        warp_size=32,
        max_threads_per_multi_processor=2048,
        max_threads_per_block=1024,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=166912,
        L2_cache_size=40 << 20,
        gcnArchName="",
        uuid="virtual",
    )


class _Nvtx:
    """Marks for a profiler that is not there."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args: 0


def _generator_class() -> Any:
    true_generator = torch.Generator

    class _Kind(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, true_generator)

    class Generator(metaclass=_Kind):
        """A generator of a virtual device draws on the host."""

        def __new__(cls, device: Any = "cpu") -> Any:
            return true_generator("cpu")

    return Generator


def _device_class() -> Any:
    """`torch.device(0)` asks for the current accelerator, which a build without CUDA does not have: it is cuda:0."""
    true_device = torch.device

    class _Kind(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, true_device)

    class Device(metaclass=_Kind):
        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            if len(args) == 1 and not kwargs and isinstance(args[0], int):
                return true_device("cuda", args[0])
            return true_device(*args, **kwargs)

    return Device
