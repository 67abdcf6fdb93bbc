"""Batches of many lengths: which of them make torch's cache grow before the longest comes.

A batch longer than all before it asks for blocks that fit none of the cached ones, and those stay. Any other batch is
served from the cache: leaving such batches out of a replay changes hardly any of the reserved bytes. So the cache does
not stop growing after some steps: of N batches in random order about ln N are longer than all before, until the card is
full and torch gives cached segments back.

Where the lengths are known (a file), the batches are those. Where only mean and longest are, a dozen are spread evenly
around the mean, in an order without pattern (multiples of the golden ratio); the optimizer first steps among or behind
them, such lengths go on, then comes the longest. A batch is padded to its longest sample: the largest of `batch` draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from vramcast.errors import InputError
from vramcast.job import Job
from vramcast.sample_lengths import read_sample_lengths

GOLDEN = 0.6180339887498949
STEPS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """Lengths of batches that are longer than all before them, the longest left out; after how many of them the
    optimizer steps first (None: behind the longest)."""

    lengths: tuple[int, ...] = ()
    stepped_after: int | None = None


def earlier_lengths(job: Job, longest: int) -> Earlier:
    """What a run meets before its longest batch; nothing where all are alike."""
    if job.lengths is not None:
        return _earlier((*padded_lengths(job, longest), longest), longest, job.accumulate)
    if job.mean_seq is None:
        return Earlier()
    if job.mean_seq > longest:
        raise InputError(f"mean-seq {job.mean_seq} is more than the longest length, seq {longest}")
    drawn = spread_lengths(job.mean_seq, longest, job.batch)
    return _earlier((*drawn, *drawn, longest), longest, min(job.accumulate, STEPS))


def padded_lengths(job: Job, longest: int) -> tuple[int, ...]:
    """Of each batch, its longest sample."""
    assert job.lengths is not None
    samples = [min(length, longest) for length in read_sample_lengths(job.lengths)]
    return tuple(max(samples[start : start + job.batch]) for start in range(0, len(samples), job.batch))


def _earlier(batches: tuple[int, ...], longest: int, micro_batches: int) -> Earlier:
    """`micro_batches` come before the optimizer's first step, whose states settle in cached blocks: from then on even
    a batch that is not the longest so far may find none."""
    others = batches[: batches.index(longest)]
    before, after = records(others[:micro_batches]), records(others[micro_batches:])
    is_behind = micro_batches > len(others)
    return Earlier(lengths=(*before, *after), stepped_after=None if is_behind else len(before))


def records(lengths: tuple[int, ...]) -> list[int]:
    """Those longer than all before."""
    return sorted(set(accumulate(lengths, max)))


def spread_lengths(mean: int, longest: int, batch: int) -> tuple[int, ...]:
    """As far to both sides of the mean as there is room for: lengths lie between 1 and the longest."""
    reach = min(mean, longest - mean)
    draws = ((GOLDEN * (step + 1)) % 1.0 for step in range(STEPS))
    return tuple(max(1, round(mean - reach + 2 * reach * draw ** (1 / batch))) for draw in draws)


def length_text(job: Job, longest: int) -> str:
    """What is taken of the lengths, for the report."""
    if max(job.gpus, job.tp, job.pp, job.cp, job.ep) > 1:
        return f"every batch is {longest:,} tokens long: what many lengths reserve is modelled on one GPU only"
    if job.lengths is not None:
        batches = padded_lengths(job, longest)
        return (
            f"{len(batches):,} batches in the order of {job.lengths}, {len(records(batches))} of them longer than all "
            "before: in another order another number of them, and so other reserved bytes"
        )
    assert job.mean_seq is not None
    drawn = spread_lengths(job.mean_seq, longest, job.batch)
    return (
        f"before the longest batch {len(drawn)} of {min(drawn):,} to {max(drawn):,} tokens, spread evenly around the "
        "mean: each one longer than all before adds reserved bytes, so a longer run holds more, until the card is full"
    )
