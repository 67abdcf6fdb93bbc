"""Which tensor was requested: matches a printed request with candidate tensors.

In: the request as printed (a range of byte counts) and candidates with shapes. Out: the candidates whose size is
printed like that request, the most telling first. Pure arithmetic; does not know which tensors a job has.

PyTorch prints the segment that it asked the driver for, not the tensor: up to 1 MiB is printed as 2.00 MiB, up to 10
MiB as 20.00 MiB, larger sizes are rounded up to 2 MiB. So a small request fits almost any tensor and tells almost
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from vramcast.allocator import constants
from vramcast.diagnose.observation import Observation
from vramcast.units import KiB, round_up

# torch up to 1.1: kSmallAlloc and kRoundLarge of THCCachingAllocator.cpp.
_LEGACY_SMALL_BYTES, _LEGACY_ROUNDING_BYTES = 1024 * KiB, 128 * KiB

# Kinds of messages that print the size of a segment.
PRINTS_SEGMENTS = (
    "torch_cuda_oom",
    "torch_hip",
    "torch_xpu",
    "torch_npu",
    "torch_mlu",
    "torch_musa",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A tensor that the job may have requested."""

    name: str
    shape: tuple[int, ...]
    itemsize: int

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A candidate that is printed like the request, and how many byte counts are: the fewer, the more it tells."""

    candidate: Candidate
    segment_bytes: int
    width_bytes: int


def torch_segment_bytes(nbytes: int) -> int:
    """What PyTorch's caching allocator requests from the driver (c10 get_allocation_size, torch 1.2 and later)."""
    size = round_up(max(nbytes, 1), constants.MIN_BLOCK_BYTES)
    if size <= constants.SMALL_REQUEST_MAX_BYTES:
        return constants.SMALL_SEGMENT_BYTES
    if size < constants.OWN_SEGMENT_MIN_BYTES:
        return constants.DEFAULT_LARGE_SEGMENT_BYTES
    return round_up(size, constants.SEGMENT_ROUNDING_BYTES)


def legacy_segment_bytes(nbytes: int) -> int:
    size = round_up(max(nbytes, 1), constants.MIN_BLOCK_BYTES)
    if size <= _LEGACY_SMALL_BYTES:
        return _LEGACY_SMALL_BYTES
    return round_up(size, _LEGACY_ROUNDING_BYTES)


def plain_bytes(nbytes: int) -> int:
    """CPU allocator, cudaMallocAsync, MPS, TensorFlow and JAX print the size of the tensor itself."""
    return nbytes


def roundings_of(observation: Observation) -> tuple[Callable[[int], int], ...]:
    """How the printed size was rounded. torch 1.0 to 1.3 share one wording and changed the rounding in between."""
    if observation.kind == "torch_cuda_oom_legacy_cached":
        return (legacy_segment_bytes, torch_segment_bytes)
    if observation.kind.startswith(PRINTS_SEGMENTS):
        return (torch_segment_bytes,)
    return (plain_bytes,)


def match_request(observation: Observation, candidates: Sequence[Candidate]) -> tuple[Match, ...]:
    """The candidates that fit, larger tensors first: that a large one fits to the last digit is no coincidence."""
    printed = _requested_range_bytes(observation)
    if printed is None:
        return ()
    low, high = printed
    fitting: dict[Candidate, Match] = {}
    for rounding in roundings_of(observation):
        width_bytes = _width_bytes(low, high, rounding)
        for candidate in candidates:
            segment = rounding(candidate.nbytes)
            if low <= segment <= high:
                match = Match(candidate=candidate, segment_bytes=segment, width_bytes=width_bytes)
                fitting.setdefault(candidate, match)
    return tuple(sorted(fitting.values(), key=_largest_first))


def _requested_range_bytes(observation: Observation) -> tuple[int, int] | None:
    if observation.requested_range_bytes is not None:
        return observation.requested_range_bytes
    if observation.requested_bytes is not None:
        return observation.requested_bytes, observation.requested_bytes
    return None


def _largest_first(match: Match) -> tuple[int, str]:
    return -match.candidate.nbytes, match.candidate.name


def _width_bytes(low: int, high: int, rounding: Callable[[int], int]) -> int:
    """How many tensor sizes are printed as one of the sizes from `low` to `high`."""
    smallest = _first_reaching(low, rounding)
    above_largest = _first_reaching(high + 1, rounding)
    return max(1, above_largest - smallest)


def _first_reaching(segment_bytes: int, rounding: Callable[[int], int]) -> int:
    """The smallest tensor whose segment is at least this large, by bisection: roundings are monotonic."""
    low, high = 0, max(1, segment_bytes)
    while low < high:
        middle = (low + high) // 2
        if rounding(middle) >= segment_bytes:
            high = middle
        else:
            low = middle + 1
    return low
