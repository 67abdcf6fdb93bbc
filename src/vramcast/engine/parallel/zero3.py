"""ZeRO-3's two rules as plain numbers: which parameters stay gathered until backward, and when gradients are reduced.

From deepspeed 0.19.2, zero/partitioned_param_coordinator.py and zero/stage3.py. Knows elements only; what they weigh
and where they are put is `windows`' business.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

REUSE, PREFETCH = (
    1_000_000_000,
    50_000_000,
)  # stage3_max_reuse_distance, stage3_prefetch_bucket_size, in elements
REDUCE_BUCKET = 500_000_000  # zero/config.py reduce_bucket_size, in elements
NORM_PART = 250_000_000  # elements that _constant_buffered_norm2 raises to fp64 at a time


def kept_until_backward(elements: Sequence[int], uses: Sequence[int]) -> frozenset[int]:
    """Units whose next use comes within the reuse distance (__params_to_release walks through the modules to come and
    adds up their parameters). `uses[i]`: how often unit i is used from there until its backward is over, its own
    forward apart: twice if it is recomputed."""
    kept, later = set(), 0
    for number in reversed(range(len(elements))):
        if later < REUSE:
            kept.add(number)
        later += (1 + uses[number]) * elements[number]
    return frozenset(kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """Gradients that are reduced together."""

    elements: int
    largest: int
    tensors: int


class Bucket:
    """reduce_independent_p_g_buckets_and_remove_grads: a gradient that does not fit any more reduces those before it.
    One larger than the bucket is never copied into it and waits for the next."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.waiting: list[int] = []

    def add(self, numel: int) -> Iterator[Reduction]:
        if self.waiting and sum(self.waiting) + numel > self.size:
            yield from self.reduce()
        self.waiting.append(numel)

    def reduce(self) -> Iterator[Reduction]:
        if self.waiting:
            yield Reduction(
                elements=sum(self.waiting), largest=max(self.waiting), tensors=len(self.waiting)
            )
        self.waiting = []
