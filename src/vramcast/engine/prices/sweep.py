"""Peaks for many batch sizes and lengths at once, computed on numpy arrays, and the largest batch that fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy
from numpy.typing import NDArray

from vramcast.catalog.gpus import Gpu, find_gpu
from vramcast.engine.estimate import estimate
from vramcast.engine.lines.overheads import context_entries
from vramcast.engine.prices.peaks import Recording, lengths_beyond
from vramcast.engine.recording.record import DEVICE, is_divided
from vramcast.errors import InputError
from vramcast.forecast import Forecast
from vramcast.job import Job
from vramcast.models.read.config import Config
from vramcast.models.read.model import read_model
from vramcast.models.record.dims import Number, choose
from vramcast.models.record.program import Sizes
from vramcast.setup import Setup, resolve

Grid = NDArray[numpy.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Peak allocated bytes for every batch (rows) and length (columns)."""

    job: Job
    gpu: Gpu | None
    batches: tuple[int, ...]
    seqs: tuple[int, ...]
    allocated_bytes: Grid
    context_bytes: int
    largest: tuple[
        int | None, ...
    ]  # per length, the largest batch of the list that fits; None without a card


def sweep(job: Job, batches: Sequence[int], seqs: Sequence[int]) -> Sweep:
    if job.model is None:
        raise InputError("a sweep needs a model: a count of parameters has no activations")
    config = read_model(job.model).config
    if config is None:
        raise InputError(
            f"{job.model}: only a parameter table is known, which does not depend on batch and length"
        )
    gpu = find_gpu(job.gpu) if job.gpu else None
    b, s = numpy.meshgrid(
        numpy.array(batches, numpy.int64), numpy.array(seqs, numpy.int64), indexing="ij"
    )
    allocated = peak_grid(job, config, gpu, b, s)
    context = sum(entry.nbytes for entry in context_entries(resolve(job).versions, gpu, DEVICE))
    largest = tuple(_largest(job, batches, seq) if gpu else None for seq in seqs)
    return Sweep(
        job=job,
        gpu=gpu,
        batches=tuple(batches),
        seqs=tuple(seqs),
        allocated_bytes=allocated,
        context_bytes=context,
        largest=largest,
    )


def peak_grid(job: Job, config: Config, gpu: Gpu | None, b: Grid, s: Grid) -> Grid:
    """Peak allocated bytes of the job at each batch and length of the grid."""
    _check(job)
    setup = resolve(job)
    target = s if job.target_seq is None else job.target_seq
    images = 1 if job.images is None else job.images
    sizes = Sizes(batch=b, seq=s, target_seq=target, images=images, image_tokens=job.image_tokens)
    found = (
        _of_ranks(setup, config, gpu, sizes)
        if is_divided(setup)
        else Recording(setup, config, gpu, sizes).peak(setup)
    )
    peaks: Grid = numpy.broadcast_to(numpy.asarray(found, numpy.int64), b.shape)
    return peaks


def _of_ranks(setup: Setup, config: Config, gpu: Gpu | None, sizes: Sizes) -> Number:
    from vramcast.engine.parallel.ranks import rank_peaks

    beyond = lengths_beyond(sizes, config)
    if beyond is None:
        return rank_peaks(setup, config, gpu, sizes)
    one, other = (
        rank_peaks(setup, config, gpu, replace(sizes, beyond_window=side)) for side in (True, False)
    )
    return choose(beyond, one, other)


def _check(job: Job) -> None:
    if job.edit:
        raise InputError("editing jobs have other phases: use vramcast estimate for each")
    if job.longest_seq is not None:
        raise InputError("the lengths of a grid are padded lengths already: leave out longest-seq")


def _largest(job: Job, batches: Sequence[int], seq: int) -> int | None:
    """The largest batch that fits, by bisection with full estimates including the allocator."""
    ordered = sorted(batches)
    low, high = 0, len(ordered)
    while low < high:
        middle = (low + high) // 2
        if _fits(estimate(replace(job, batch=ordered[middle], seq=seq), with_scaling=False)):
            low = middle + 1
        else:
            high = middle
    return ordered[low - 1] if low else 0


def _fits(forecast: Forecast) -> bool:
    return forecast.verdict().fits is True
