"""Peaks for many batch sizes and lengths at once, computed on numpy arrays, and the largest batch that fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy
from numpy.typing import NDArray

from vramcast.catalog.gpus import Gpu, find_gpu
from vramcast.catalog.residuals import spread_of
from vramcast.engine.estimate import estimate
from vramcast.engine.lines.overheads import context_entries
from vramcast.engine.prices.peaks import Recording, lengths_beyond
from vramcast.engine.program import record_job
from vramcast.engine.recording.record import DEVICE, is_divided, sizes_of
from vramcast.engine.recording.sequence_limits import learned_positions
from vramcast.engine.rl_phases import refuse_rl_phases
from vramcast.errors import InputError
from vramcast.forecast import Answer, Forecast, answer_of
from vramcast.job import Job
from vramcast.models.read.config import Config
from vramcast.models.record.dims import Number, choose
from vramcast.models.record.program import Sizes
from vramcast.setup import Setup, complete, model_of, resolve

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
    warnings: tuple[str, ...] = ()

    def answer(self, row: int, column: int) -> Answer | None:
        """By the peak of allocated bytes and the CUDA context, without what the allocator caches."""
        if self.gpu is None:
            return None
        nbytes = int(self.allocated_bytes[row, column]) + self.context_bytes
        job = replace(self.job, batch=self.batches[row], seq=self.seqs[column])
        spread = spread_of(job)
        span = None if spread is None else (nbytes, round(nbytes * spread.high))
        return answer_of(nbytes, span, self.gpu.capacity_bytes())


def sweep(job: Job, batches: Sequence[int], seqs: Sequence[int]) -> Sweep:
    if job.model is None:
        raise InputError("a sweep needs a model: a count of parameters has no activations")
    config = model_of(complete(job)).config
    if config is None:
        raise InputError(
            f"{job.model}: only a parameter table is known, which does not depend on batch and length"
        )
    gpu = find_gpu(job.gpu) if job.gpu else None
    asked, seqs = seqs, _possible(job, config, gpu, seqs)
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
        warnings=_left_out(asked, seqs),
    )


def _possible(job: Job, config: Config, gpu: Gpu | None, seqs: Sequence[int]) -> Sequence[int]:
    """The lengths that the model's positions allow."""
    setup = resolve(replace(job, seq=min(seqs)))
    program = record_job(setup, config, gpu, sizes_of(setup.data, config))
    longest = learned_positions(program, config)
    found = [seq for seq in seqs if longest is None or seq <= longest]
    if not found:
        raise InputError(
            f"seq {min(seqs):,} is longer than the {longest:,} learned positions of this model"
        )
    return found


def _left_out(asked: Sequence[int], seqs: Sequence[int]) -> tuple[str, ...]:
    missing = ", ".join(str(seq) for seq in asked if seq not in seqs)
    if not missing:
        return ()
    return (f"seq {missing} left out: longer than the learned positions of this model",)


def peak_grid(job: Job, config: Config, gpu: Gpu | None, b: Grid, s: Grid) -> Grid:
    """Peak allocated bytes of the job at each batch and length of the grid."""
    _check(job)
    setup = resolve(job)
    target = s if job.target_seq is None else job.target_seq
    images = 1 if job.images is None else job.images
    sizes = Sizes(
        batch=b * setup.data.rows,
        seq=s,
        target_seq=target,
        images=images,
        image_tokens=job.image_tokens,
    )
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
    refuse_rl_phases(job)
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
