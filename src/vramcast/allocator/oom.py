"""The error of a request that cannot be served, in torch's own words."""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.units import GiB, KiB, MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class OomMoment:
    """What torch knows when it raises; None if torch would leave the clause out."""

    requested_bytes: int
    segment_bytes: int  # what was asked of the driver: the figure after "Tried to allocate"
    device: int
    total_bytes: int
    free_bytes: int
    process_bytes: int | None
    allowed_bytes: int | None
    allocated_bytes: int
    reserved_bytes: int
    private_cached_bytes: int


class OutOfMemory(Exception):
    """What torch raises as torch.OutOfMemoryError: the same text, and its figures in `moment`."""

    def __init__(self, moment: OomMoment) -> None:
        super().__init__(message(moment))
        self.moment = moment


# torch 2.11 and later (pytorch/pytorch#172327); 2.9 and 2.10 say PYTORCH_ALLOC_CONF and link elsewhere.
_HINT = (
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management "
    " (https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
)


def message(moment: OomMoment) -> str:
    """c10/cuda/CUDACachingAllocator.cpp, the TORCH_CHECK_WITH at the end of malloc."""
    # torch counts the cache of private pools here.
    allocated = moment.allocated_bytes + moment.private_cached_bytes
    unallocated = moment.reserved_bytes - allocated
    process = allowed = private = ""
    if moment.process_bytes is not None:
        process = f"Including non-PyTorch memory, this process has {format_size(moment.process_bytes)} memory in use. "
    if moment.allowed_bytes is not None:
        allowed = f"{format_size(moment.allowed_bytes)} allowed; "
    if moment.private_cached_bytes:
        size = format_size(moment.private_cached_bytes)
        private = f"with {size} allocated in private pools (e.g., CUDA Graphs), "
    return (
        f"CUDA out of memory. Tried to allocate {format_size(moment.segment_bytes)}. GPU {moment.device} has a total "
        f"capacity of {format_size(moment.total_bytes)} of which {format_size(moment.free_bytes)} is free. "
        f"{process}{allowed}Of the allocated memory {format_size(allocated)} is allocated by PyTorch, {private}and "
        f"{format_size(unallocated)} is reserved by PyTorch but unallocated. If reserved but unallocated memory is "
        f"large try setting {_HINT}"
    )


def format_size(nbytes: int) -> str:
    """torch's format_size: two decimals, no unit above GiB, plain bytes below 1 KiB."""
    if nbytes <= KiB:
        return f"{nbytes} bytes"
    for unit, scale in (("KiB", KiB), ("MiB", MiB)):
        if nbytes <= scale * KiB:
            return f"{nbytes / scale:.2f} {unit}"
    return f"{nbytes / GiB:.2f} GiB"
