"""Memory of CUDA and its libraries: the CUDA context and cuBLAS workspaces, with sources and ranges."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vramcast.catalog.gpus import Gpu, eager_context
from vramcast.errors import InputError
from vramcast.ledger import PHASES, Category, Entry, Level, Origin
from vramcast.setup.records import Versions
from vramcast.units import MiB

KERNELS_BYTES = (
    128 * MiB
)  # modules that a transformer's training step loads into a lazily filled context
WORKSPACE_SOURCE = (
    "aten/src/ATen/cuda/CublasHandlePool.cpp: per handle and stream, from the caching allocator"
)
HANDLES = 2  # cuBLAS handles: one of the thread that runs forward, one of autograd's device thread


def cublas_workspace_bytes(versions: Versions, gpu: Gpu | None) -> int:
    """One cuBLAS workspace: 4 MiB before torch 2.0, then 8.125 MiB (:4096:2:16:8); 32 MiB on Hopper and Blackwell. Or
    as CUBLAS_WORKSPACE_CONFIG says, which deterministic jobs must set: pairs of KiB and how many."""
    asked = versions.cublas_workspace
    if asked:
        pairs = re.findall(r":([0-9]{1,8}):([0-9]{1,4})", asked)
        if "".join(f":{size}:{count}" for size, count in pairs) != asked:
            raise InputError(
                f"cublas-workspace must be pairs of KiB and a count (:4096:8, :16:8), not {asked!r}"
            )
        return sum(int(size) * int(count) * 1024 for size, count in pairs)
    if versions.torch < (2, 0):
        return 4 * MiB
    major = gpu.compute_capability[0] if gpu and gpu.compute_capability else 8
    if major == 9 or (major >= 10 and versions.torch >= (2, 12)):
        return 32 * MiB
    return 4096 * 2 * 1024 + 16 * 8 * 1024


def workspaces(versions: Versions, gpu: Gpu | None) -> tuple[int, ...]:
    """Sizes of the cuBLAS workspaces, one block of the caching allocator for each handle."""
    return (cublas_workspace_bytes(versions, gpu),) * HANDLES


def workspace_entries(
    versions: Versions, gpu: Gpu | None, place: str, handles: int = HANDLES
) -> Iterator[Entry]:
    """`handles`: threads that multiply matrices; without a backward pass there is one."""
    one = cublas_workspace_bytes(versions, gpu)
    yield Entry(
        category=Category.WORKSPACE,
        component="cuBLAS workspaces",
        place=place,
        phases=PHASES[1:],
        nbytes=handles * one,
        origin=Origin.ASSUMED,
        source=WORKSPACE_SOURCE,
        formula=f"{handles} handles × {one / MiB:g} MiB",
        range_bytes=(one, 3 * one),
    )


LAZY_FROM = (1, 13)  # torch: wheels with CUDA 11.7, CUDA_MODULE_LOADING=LAZY by default


# What is loaded outside of torch's allocator in a long run: cuDNN, cuBLASLt, Triton's modules. Axolotl's logs put 1.05
# to 1.16 GB outside of what torch reserves, on one GPU; an A100 with several 1.09 GiB.
LIBRARIES_BYTES = 1_160_000_000
LIBRARIES_SOURCE = (
    "in long runs up to 1.16 GB were seen outside of torch, with cuDNN, cuBLASLt and Triton loaded "
    "(axolotl's logs)"
)


def context_entries(versions: Versions, gpu: Gpu | None, place: str) -> Iterator[Entry]:
    if gpu is None or gpu.context_bytes is None:
        return
    bare, kernels = gpu.context_bytes, KERNELS_BYTES
    low, high = gpu.context_range_bytes or (bare, bare + kernels)
    high, source = max(high, LIBRARIES_BYTES), f"{gpu.context_source}; {LIBRARIES_SOURCE}"
    component = "with loaded kernels"
    eager = eager_context(gpu) if _loads_eagerly(versions) else None
    if eager is not None:
        (bare, (low, high), source), kernels = eager, 0
        component = "with all kernels loaded at once"
        if versions.torch >= LAZY_FROM:  # the low end is the reading of newer versions
            bare, high = low, max(high, LIBRARIES_BYTES)
    yield Entry(
        category=Category.CONTEXT,
        component=component,
        place=place,
        phases=PHASES,
        nbytes=min(max(bare + kernels, low), high),
        origin=Origin.ASSUMED,
        level=Level.PROCESS,
        source=source,
        formula=f"{bare / MiB:.0f} MiB bare + {kernels / MiB:.0f} MiB kernels",
        range_bytes=(low, high),
    )


def _loads_eagerly(versions: Versions) -> bool:
    if versions.module_loading is not None:
        return versions.module_loading == "eager"
    return versions.torch < LAZY_FROM
