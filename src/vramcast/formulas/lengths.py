"""Batches of many lengths: which lengths a run meets before its longest, so that torch's cache can grow as it does.

Every new length asks for blocks that fit none of the cached ones exactly. Only the mean and the longest length are
known, so lengths are spread evenly from nothing to twice the mean, in an order without pattern (multiples of the golden
ratio). A batch is padded to its longest sample: the largest of `batch` draws.
"""

from __future__ import annotations

from vramcast.errors import InputError
from vramcast.job import Job

GOLDEN = 0.6180339887498949
STEPS = 12  # the cache has nearly stopped growing by then


def earlier_lengths(job: Job, longest: int) -> tuple[int, ...]:
    """Lengths of the batches before the longest one; none where all are alike."""
    if job.mean_seq is None:
        return ()
    if job.mean_seq > longest:
        raise InputError(f"mean-seq {job.mean_seq} is more than the longest length, seq {longest}")
    widest = min(2 * job.mean_seq, longest)
    draws = ((GOLDEN * (step + 1)) % 1.0 for step in range(STEPS))
    return tuple(max(1, round(widest * draw ** (1 / job.batch))) for draw in draws)
