"""A line through what was observed: memory against batch size, from runs that did work.

In come (batch, bytes) pairs, out come bytes per sample, what is there without any, how far the points are from the
line, and the largest batch that it predicts to fit. Two points give the line exactly; more show whether it is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vramcast.errors import InputError
from vramcast.units import parse_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    points: tuple[tuple[int, int], ...]
    per_sample_bytes: int
    fixed_bytes: int
    residual_bytes: int  # the largest distance of a point from the line

    def largest_batch(self, capacity_bytes: int) -> int:
        """Zero where not even one sample fits."""
        return max((capacity_bytes - self.fixed_bytes) // self.per_sample_bytes, 0)


def parse_points(text: str) -> tuple[tuple[int, int], ...]:
    """`8:8GB,24:19GB`"""
    points = []
    for part in text.split(","):
        batch, colon, size = part.strip().partition(":")
        if not colon or not batch.isdecimal() or not 1 <= int(batch) <= 10**9:
            raise InputError(f"observed must be pairs such as 8:8GB,24:19GB, not {part!r}")
        points.append((int(batch), parse_bytes(size)))
    return tuple(points)


def fit(points: Sequence[tuple[int, int]]) -> Fit:
    """Least squares."""
    if len({batch for batch, _ in points}) < 2:
        raise InputError(
            "observed needs at least two different batch sizes: one point does not make a line"
        )
    n = len(points)
    mean_b, mean_m = sum(b for b, _ in points) / n, sum(m for _, m in points) / n
    spread = sum((b - mean_b) ** 2 for b, _ in points)
    slope = sum((b - mean_b) * (m - mean_m) for b, m in points) / spread
    if slope < 1:
        raise InputError(
            "observed memory does not grow with the batch: these points say nothing about a largest one"
        )
    fixed = mean_m - slope * mean_b
    far = max(abs(m - fixed - slope * b) for b, m in points)
    return Fit(
        points=tuple(points),
        per_sample_bytes=round(slope),
        fixed_bytes=round(fixed),
        residual_bytes=round(far),
    )
