"""Batches of many lengths: which of them make torch's cache grow before the longest batch.

A batch longer than all before it requests blocks that are larger than the cached ones, which stay reserved. Any other
batch is served from the cache; leaving it out of a replay hardly changes the reserved bytes. Of N batches in random
order about ln N are longer than all before (about 7 of 1,000). So the cache keeps growing until the card is full and
torch releases cached segments.

If the lengths are given in a file, its batches are used. If only mean and longest are given, lengths follow the
distribution of largest entropy, and a typical one of many random orders is replayed. Reserved bytes grow with the sum
of the record lengths, since each such batch leaves blocks of its own length, so orders are ranked by that sum. A batch
is padded to its longest sample: the largest of `batch` draws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, zip_longest
from math import expm1, log, log1p
from random import Random

from vramcast.errors import InputError
from vramcast.sample_lengths import read_sample_lengths
from vramcast.setup import Setup
from vramcast.setup.records import Adapter, Data

BATCHES = 1000  # of a run whose number of samples is not given
RUNS, MIDDLE = 101, 11
STEEPEST, FLAT = 500.0, 1e-6  # a mean of a five-hundredth of the longest; no slope at all
ALMOST = 1 - 1e-16  # keeps log1p(-x) finite at the end of the distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """`lengths` of batches that make the cache grow before the longest batch. `stepped_after`: after how many of them
    the optimizer steps first (None: after the longest)."""

    lengths: tuple[int, ...] = ()
    stepped_after: int | None = None


Measure = Callable[[Earlier], int]


def has_many_lengths(data: Data) -> bool:
    return data.lengths is not None or data.mean_seq is not None


def earlier_lengths(setup: Setup, longest: int, measure: Measure) -> Earlier:
    """The batches before the longest one; none if all batches have the same length. `measure` gives roughly the bytes
    that torch reserves after such batches."""
    if setup.data.lengths is not None:
        return _of_file(setup, longest)
    if setup.data.mean_seq is None:
        return Earlier()
    if setup.data.mean_seq > longest:
        raise InputError(
            f"mean-seq {setup.data.mean_seq} is more than the longest length, seq {longest}"
        )
    return typical_run(setup, longest, measure)


def batches_of(data: Data) -> int:
    return BATCHES if data.samples is None else max(data.samples // data.batch, 1)


def typical_run(setup: Setup, longest: int, measure: Measure) -> Earlier:
    """One of many random runs with a median amount reserved. Runs are sorted by the sum of their lengths; of the MIDDLE
    ones in the middle, the median by `measure` is taken."""
    random = Random(0)
    runs = sorted(
        (_random_run(setup, longest, random) for _ in range(RUNS)), key=lambda run: sum(run.lengths)
    )
    middle = (RUNS - MIDDLE) // 2
    return sorted(runs[middle : middle + MIDDLE], key=measure)[MIDDLE // 2]


def _random_run(setup: Setup, longest: int, random: Random) -> Earlier:
    before = min(setup.data.accumulate, batches_of(setup.data))
    first, later = (
        _lengths(setup.data, longest, random_records(random, batches))
        for batches in (before, batches_of(setup.data) - before)
    )
    last = max((*first, *later))  # the longest drawn: it represents the batch of `longest` tokens
    before_step, behind_step = (
        tuple(length for length in part if length < last) for part in (first, later)
    )
    return _in_parts(setup.adapter, before_step, behind_step, longest)


def _lengths(data: Data, longest: int, shares: list[float]) -> tuple[int, ...]:
    """Lengths at these quantiles. Of all distributions from 0 to `longest` with this mean, the density
    e^(-steepness · length / longest) has the largest entropy, so it assumes least."""
    assert data.mean_seq is not None
    steepness = steepness_for(data.mean_seq / longest)
    wide = -expm1(-steepness)
    tops = (share ** (1 / data.batch) for share in shares)
    found = (
        top if abs(steepness) < FLAT else -log1p(-min(top * wide, ALMOST)) / steepness
        for top in tops
    )
    return tuple(min(max(round(longest * part), 1), longest) for part in found)


@cache
def steepness_for(mean_share: float) -> float:
    """The steepness k that gives this mean, by bisection: the mean 1 / k - 1 / (e^k - 1) falls from 1 to 0 as k
    rises."""
    low, high = -STEEPEST, STEEPEST
    while high - low > FLAT:
        middle = (low + high) / 2
        mean = 0.5 if abs(middle) < FLAT else 1 / middle - 1 / expm1(middle)
        low, high = (middle, high) if mean > mean_share else (low, middle)
    return (low + high) / 2


def random_records(random: Random, batches: int) -> list[float]:
    """Quantiles of the records (draws longer than all before) among so many draws. Each record is uniform between the
    one before and 1. One in 1 / (1 - share) draws exceeds a record at quantile `share`."""
    share, position, found = 1 - random.random(), 1, []
    while position <= batches:
        found.append(share)
        if share == 1.0:  # as far as a float can tell
            break
        position += 1 + int(log(1 - random.random()) / log(share))
        share += (1 - share) * random.random()
    return found


def _of_file(setup: Setup, longest: int) -> Earlier:
    batches = (*padded_lengths(setup.data, longest), longest)
    others = batches[: batches.index(longest)]
    if setup.data.accumulate > len(others):  # the longest comes before the first step
        return Earlier(lengths=tuple(records(others)))
    return _in_parts(
        setup.adapter, others[: setup.data.accumulate], others[setup.data.accumulate :], longest
    )


def padded_lengths(data: Data, longest: int) -> tuple[int, ...]:
    """The length of each batch: that of its longest sample."""
    assert data.lengths is not None
    samples = read_sample_lengths(data.lengths)
    if max(samples) > longest:
        samples = tuple(min(length, longest) for length in samples)
    if data.batch == 1:
        return samples
    batches = zip_longest(*[iter(samples)] * data.batch, fillvalue=0)
    return tuple(map(max, batches))


def _in_parts(
    adapter: Adapter, before: tuple[int, ...], after: tuple[int, ...], longest: int
) -> Earlier:
    """Joins the batches before and after the optimizer's first step. Its states take cached blocks, so that after it
    even a batch that is not the longest so far may find no block. With adapters the states are too small for that."""
    first = tuple(records(before))
    behind = records((*first, *after))[len(first) :] if adapter.kind is not None else records(after)
    return Earlier(
        lengths=(*first, *(length for length in behind if length < longest)),
        stepped_after=len(first),
    )


def records(lengths: tuple[int, ...]) -> list[int]:
    """The lengths that are larger than all before them."""
    return sorted(set(accumulate(lengths, max)))


def length_text(setup: Setup, longest: int) -> str:
    """What is assumed about the lengths, for the report."""
    if (
        max(
            setup.parallel.gpus,
            setup.parallel.tp,
            setup.parallel.pp,
            setup.parallel.cp,
            setup.experts.ep,
        )
        > 1
    ):
        return f"every batch is {longest:,} tokens long: what many lengths reserve is modelled on one GPU only"
    if setup.data.lengths is not None:
        batches = padded_lengths(setup.data, longest)
        return (
            f"{len(batches):,} batches in the order of {setup.data.lengths}, "
            f"{len(records(batches))} of them longer than all "
            "before: in another order another number of them, and so other reserved bytes"
        )
    count, said = (
        batches_of(setup.data),
        "" if setup.data.samples is not None else " (samples not given)",
    )
    return (
        f"lengths of mean {setup.data.mean_seq:,} as evenly spread up to {longest:,} as that mean allows, "
        f"{count:,} batches{said} in a typical random order: every batch longer than all before it adds reserved bytes"
    )
