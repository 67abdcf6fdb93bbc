"""Many batch sizes and lengths at once: the engine's own fold on NumPy grids, and the largest batch that fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy
from numpy.typing import NDArray

from vramcast.catalog.gpus import Gpu, find_gpu
from vramcast.errors import InputError
from vramcast.forecast import Forecast
from vramcast.formulas.companions import reference_lines
from vramcast.formulas.estimate import DEVICE, estimate, recorded
from vramcast.formulas.optimizers import implementation, temporaries
from vramcast.formulas.overheads import context_entries, workspace_entries
from vramcast.formulas.states import States, state_entries, unique
from vramcast.formulas.step import Step, keeps_outputs
from vramcast.formulas.timeline import peak_by_phase
from vramcast.job import Job
from vramcast.ledger import BACKWARD, FORWARD, LOSS, STEP, Entry, Level
from vramcast.models.config import Config
from vramcast.models.program import Program, Sizes
from vramcast.models.read import read_model

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
    largest: tuple[int | None, ...]  # per length, the largest batch of the list that fits; None without a card


def sweep(job: Job, batches: Sequence[int], seqs: Sequence[int]) -> Sweep:
    if job.model is None:
        raise InputError("a sweep needs a model: a count of parameters has no activations")
    config = read_model(job.model).config
    if config is None:
        raise InputError(f"{job.model}: only a parameter table is known, which does not depend on batch and length")
    gpu = find_gpu(job.gpu) if job.gpu else None
    b, s = numpy.meshgrid(numpy.array(batches, numpy.int64), numpy.array(seqs, numpy.int64), indexing="ij")
    allocated = peak_grid(job, config, gpu, b, s)
    context = sum(entry.nbytes for entry in context_entries(gpu, DEVICE))
    largest = tuple(_largest(job, batches, seq) if gpu else None for seq in seqs)
    return Sweep(
        job=job, gpu=gpu, batches=tuple(batches), seqs=tuple(seqs), allocated_bytes=allocated, context_bytes=context,
        largest=largest,
    )  # fmt: skip


def peak_grid(job: Job, config: Config, gpu: Gpu | None, b: Grid, s: Grid) -> Grid:
    """Peak allocated bytes of the job at each batch and length of the grid."""
    images = 1 if job.images is None else job.images
    sizes = Sizes(batch=b, seq=s, target_seq=s if job.target_seq is None else job.target_seq, images=images)
    program = recorded(job, config, gpu, sizes)
    states = States(params=unique(program.params()), job=job)
    step = Step(job=job, program=program, states=states, place=DEVICE)
    lying = (*state_entries(states, DEVICE), *workspace_entries(job, gpu, DEVICE))
    moments = [*_passes(step, lying), _step_moment(step, lying, program)]
    companions = reference_lines(job, config, program, DEVICE) if job.reference not in ("none", "precomputed") else None
    weights = sum(companions.resident) if companions else 0
    peak: Grid = numpy.maximum.reduce([numpy.broadcast_to(moment, b.shape) for moment in moments])
    return peak + weights


def _lying(entries: Sequence[Entry], phase: str) -> int:
    return sum(e.nbytes for e in entries if e.place == DEVICE and phase in e.phases and e.level == Level.ALLOCATED)


def _passes(step: Step, lying: Sequence[Entry]) -> list[Grid]:
    """Forward, loss and backward once the optimizer's states exist."""
    fresh = step.job.accumulate == 1
    peaks = peak_by_phase(step.program, step.mode(fresh=fresh))
    gradients = step.states.gradient_bytes if implementation(step.job) != "in-backward" else 0
    moments = []
    for phase in (FORWARD, LOSS, BACKWARD):
        if phase in peaks:
            held = (
                gradients if not fresh or step.accumulates_apart or (step.grads_in_forward and phase != BACKWARD) else 0
            )
            old = step.program.output.nbytes if phase == FORWARD and keeps_outputs(step.job) else 0
            moments.append(peaks[phase] + held + old + _lying(lying, f"next {phase}"))
    return moments


def _step_moment(step: Step, lying: Sequence[Entry], program: Program) -> Grid:
    item = step.states.recipe.states.nbytes if step.states.recipe.states else None
    in_backward = implementation(step.job) == "in-backward"
    made = 0 if in_backward else temporaries(step.states.trained, step.job, item)[0] + step.states.gradient_bytes
    held = program.output.nbytes if keeps_outputs(step.job) and program.placed[-1].name == "loss" else 0
    grid: Grid = numpy.asarray(_lying(lying, STEP) + made + held, numpy.int64)
    return grid


def _largest(job: Job, batches: Sequence[int], seq: int) -> int | None:
    """By bisection with whole estimates, the allocator included."""
    ordered = sorted(batches)
    low, high = 0, len(ordered)
    while low < high:
        middle = (low + high) // 2
        if _fits(estimate(replace(job, batch=ordered[middle], seq=seq))):
            low = middle + 1
        else:
            high = middle
    return ordered[low - 1] if low else 0


def _fits(forecast: Forecast) -> bool:
    return forecast.verdict().fits is True
