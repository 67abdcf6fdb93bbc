"""What tensor was asked for: match a printed request to candidate tensors.

In: the request as printed (an interval of byte counts), how that printer rounds, and candidates with shapes. Out: the
candidates whose size prints as that request, the most telling first. Pure arithmetic; which tensors a job has is
somebody else's knowledge.

PyTorch prints the segment it asked the driver for, not the tensor: up to 1 MiB shows as 2.00 MiB, up to 10 MiB as
20.00 MiB, more is rounded up to 2 MiB. So a small request fits almost anything and says almost nothing.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A tensor the job may have asked for."""

    name: str
    shape: tuple[int, ...]
    itemsize: int

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A candidate that prints as the request did, and how many byte counts would have: fewer says more."""

    candidate: Candidate
    segment_bytes: int
    width_bytes: int


def torch_segment_bytes(nbytes: int) -> int:
    """What PyTorch's caching allocator asks the driver for (c10 get_allocation_size, torch 1.2 and later)."""
    size = round_up(max(nbytes, 1), constants.MIN_BLOCK_BYTES)
    if size <= constants.SMALL_REQUEST_MAX_BYTES:
        return constants.SMALL_SEGMENT_BYTES
    if size < constants.OWN_SEGMENT_MIN_BYTES:
        return constants.DEFAULT_LARGE_SEGMENT_BYTES
    return round_up(size, constants.SEGMENT_ROUNDING_BYTES)


def legacy_segment_bytes(nbytes: int) -> int:
    size = round_up(max(nbytes, 1), constants.MIN_BLOCK_BYTES)
    return _LEGACY_SMALL_BYTES if size <= _LEGACY_SMALL_BYTES else round_up(size, _LEGACY_ROUNDING_BYTES)


def plain_bytes(nbytes: int) -> int:
    """Printers that name the tensor itself: CPU allocator, cudaMallocAsync, MPS, TensorFlow, JAX."""
    return nbytes


def roundings_of(observation: Observation) -> tuple[Callable[[int], int], ...]:
    """How this printer rounds. The oldest wording spans torch 1.0 to 1.3, which changed its rounding in between."""
    kind = observation.kind
    if kind == "torch_cuda_oom_legacy_cached":
        return (legacy_segment_bytes, torch_segment_bytes)
    rounds = kind.startswith(("torch_cuda_oom", "torch_hip", "torch_xpu", "torch_npu", "torch_mlu", "torch_musa"))
    return (torch_segment_bytes,) if rounds else (plain_bytes,)


def match_request(observation: Observation, candidates: Sequence[Candidate]) -> tuple[Match, ...]:
    """The candidates that fit, larger tensors first: a large one that fits to the last digit is no accident."""
    if observation.requested_range_bytes is not None:
        low, high = observation.requested_range_bytes
    elif observation.requested_bytes is not None:
        low = high = observation.requested_bytes
    else:
        return ()
    fitting: dict[Candidate, Match] = {}
    for rounding in roundings_of(observation):
        width_bytes = _width_bytes(low, high, rounding)
        for candidate in candidates:
            segment = rounding(candidate.nbytes)
            if low <= segment <= high:
                match = Match(candidate=candidate, segment_bytes=segment, width_bytes=width_bytes)
                fitting.setdefault(candidate, match)
    return tuple(sorted(fitting.values(), key=lambda match: (-match.candidate.nbytes, match.candidate.name)))


def _width_bytes(low: int, high: int, rounding: Callable[[int], int]) -> int:
    """How wide the span of tensor sizes is that prints alike."""
    smallest = _first_reaching(low, rounding)
    return max(1, _first_reaching(high + 1, rounding) - smallest)


def _first_reaching(segment_bytes: int, rounding: Callable[[int], int]) -> int:
    """The smallest tensor whose segment is at least this large, by bisection: rounding never decreases."""
    low, high = 0, max(1, segment_bytes)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if rounding(middle) >= segment_bytes else (middle + 1, high)
    return low


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimensions:
    """The numbers that the usual large tensors of a decoder are made of."""

    batch: int
    seq: int
    hidden: int
    intermediate: int
    vocab: int
    heads: int
    num_params: int | None = None


def decoder_candidates(sizes: Dimensions, *, shards: Sequence[int] = (2, 4, 8, 16, 32, 64)) -> tuple[Candidate, ...]:
    """Logits, attention scores, weight matrices and flat optimizer shards, in 16 and 32 bit."""
    tokens = (sizes.batch, sizes.seq)
    shapes: list[tuple[str, tuple[int, ...]]] = [
        ("logits", (*tokens, sizes.vocab)),
        ("shifted logits", (sizes.batch, max(1, sizes.seq - 1), sizes.vocab)),
        ("attention scores", (sizes.batch, sizes.heads, sizes.seq, sizes.seq)),
        ("hidden states", (*tokens, sizes.hidden)),
        ("MLP activations", (*tokens, sizes.intermediate)),
        ("MLP matrix", (sizes.intermediate, sizes.hidden)),
        ("gate and up matrix", (2 * sizes.intermediate, sizes.hidden)),
        ("attention matrix", (sizes.hidden, sizes.hidden)),
        ("embedding or head", (sizes.vocab, sizes.hidden)),
    ]
    if sizes.num_params is not None:
        shapes.append(("all parameters, flat", (sizes.num_params,)))
        shapes += [(f"one of {count} shards of all parameters", (-(-sizes.num_params // count),)) for count in shards]
    widths = ((2, "16 bit"), (4, "32 bit"))
    return tuple(
        Candidate(name=f"{name}, {word}", shape=shape, itemsize=itemsize)
        for name, shape in shapes
        for itemsize, word in widths
    )
