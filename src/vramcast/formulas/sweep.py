"""Many batch sizes and lengths at once: the engine's own fold on NumPy grids, and the largest batch that fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy
from numpy.typing import NDArray

from vramcast.catalog.gpus import Gpu, find_gpu
from vramcast.errors import InputError
from vramcast.forecast import Forecast
from vramcast.formulas.amounts import Amounts
from vramcast.formulas.beside import beside
from vramcast.formulas.estimate import DEVICE, estimate, is_divided, job_phases, recorded
from vramcast.formulas.optimizers import implementation, temporaries
from vramcast.formulas.overheads import context_entries, workspace_entries
from vramcast.formulas.setting import Setting
from vramcast.formulas.states import States, state_entries, unique
from vramcast.formulas.step import Step, keeps_outputs, loss_apart
from vramcast.formulas.timeline import Fold, fold
from vramcast.job import Job
from vramcast.ledger import BACKWARD, EVAL, FORWARD, GATING, LOSS, NEXT_STEP, RESUME, ROLLOUT, STEP, Entry, Level
from vramcast.models.config import Config
from vramcast.models.dims import Number
from vramcast.models.program import Sizes
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
    context = sum(entry.nbytes for entry in context_entries(job, gpu, DEVICE))
    largest = tuple(_largest(job, batches, seq) if gpu else None for seq in seqs)
    return Sweep(
        job=job, gpu=gpu, batches=tuple(batches), seqs=tuple(seqs), allocated_bytes=allocated, context_bytes=context,
        largest=largest,
    )  # fmt: skip


def peak_grid(job: Job, config: Config, gpu: Gpu | None, b: Grid, s: Grid) -> Grid:
    """Peak allocated bytes of the job at each batch and length of the grid."""
    if is_divided(job):
        from vramcast.formulas.parallel.ranks import rank_peaks

        peaks: Grid = numpy.broadcast_to(rank_peaks(job, config, gpu, Sizes(batch=b, seq=s, target_seq=s)), b.shape)
        return peaks
    return GridStep(job, config, gpu, b, s).allocated(job)


class GridStep:
    """A job recorded once for a grid of batches and lengths, and priced with any optimizer and accumulation."""

    def __init__(self, job: Job, config: Config, gpu: Gpu | None, b: Grid, s: Grid) -> None:
        if is_divided(job):
            raise InputError("a job on many GPUs is priced rank by rank: see formulas.parallel.search")
        if job.edit:
            raise InputError("editing jobs have other phases: vramcast estimate prices them one by one")
        if job.longest_seq is not None:
            raise InputError("the lengths of a grid are padded lengths already: leave out longest-seq")
        images = 1 if job.images is None else job.images
        target = s if job.target_seq is None else job.target_seq
        self.gpu, self.shape = gpu, b.shape
        self.config, self.sizes = config, Sizes(batch=b, seq=s, target_seq=target, images=images)
        self.program = recorded(job, config, gpu, self.sizes)
        self.params = unique(self.program.params())
        self._folds: dict[bool, Fold] = {}

    def allocated(self, job: Job) -> Grid:
        step = Step(job=job, program=self.program, states=States(params=self.params, job=job), place=DEVICE)
        lying = (*state_entries(step.states, DEVICE), *workspace_entries(job, self.gpu, DEVICE))
        extra = beside(
            Setting(
                job=job, config=self.config, gpu=self.gpu, sizes=self.sizes, program=self.program, states=step.states,
                device=DEVICE,
            )
        ).lines  # fmt: skip
        moments = {**self._passes(step, lying), NEXT_STEP: self._update(step, lying), **self._between(step, lying)}
        grids = [numpy.broadcast_to(moment + _beside(extra, phase), self.shape) for phase, moment in moments.items()]
        peak: Grid = numpy.maximum.reduce(grids)
        return peak

    def _between(self, step: Step, lying: Sequence[Entry]) -> dict[str, Grid]:
        """Phases outside of the step, of which only what lies there is not in `beside`."""
        always = step.states.gradient_bytes if step.accumulates_apart else 0
        found = {}
        for phase in (RESUME, ROLLOUT, EVAL):
            if phase in job_phases(step.job):
                held = step.states.gradient_bytes if phase == EVAL and step.grads_in_forward else always
                found[phase] = numpy.asarray(_lying(lying, phase) + held, numpy.int64)
        return found

    def _fold(self, step: Step, *, fresh: bool) -> Fold:
        mode = step.mode(fresh=fresh)
        if mode.fresh_grads not in self._folds:
            self._folds[mode.fresh_grads] = fold(self.program, mode)
        return self._folds[mode.fresh_grads]

    def _passes(self, step: Step, lying: Sequence[Entry]) -> dict[str, Grid]:
        """Forward, loss and backward once the optimizer's states exist."""
        fresh = step.job.accumulate == 1
        folded = self._fold(step, fresh=fresh)
        in_backward = implementation(step.job) == "in-backward"
        gradients = 0 if in_backward else step.states.gradient_bytes
        moments = {}
        for phase in (FORWARD, LOSS, BACKWARD, GATING):
            if phase in folded.peaks:
                later = phase if phase == GATING else f"next {phase}"
                early = step.grads_in_forward and phase in (FORWARD, LOSS)
                held = gradients if not fresh or step.accumulates_apart or early else 0
                old = folded.left if keeps_outputs(step.job) and phase in _old_outputs(step.job) else 0
                made = _temporaries(step) if in_backward and phase == BACKWARD else 0
                moments[later] = folded.peaks[phase] + held + old + made + _lying(lying, later)
        return moments

    def _update(self, step: Step, lying: Sequence[Entry]) -> Grid:
        made = 0
        if implementation(step.job) != "in-backward":
            made = _temporaries(step) + step.states.gradient_bytes
        held = self._fold(step, fresh=step.job.accumulate == 1).left if keeps_outputs(step.job) else 0
        grid: Grid = numpy.asarray(_lying(lying, STEP) + made + held, numpy.int64)
        return grid


def _beside(lines: Sequence[Amounts], phase: str) -> Number:
    return sum((line.by_phase.get(phase, 0) for line in lines if line.place == DEVICE), 0)


def _temporaries(step: Step) -> int:
    item = step.states.recipe.states.nbytes if step.states.recipe.states else None
    return temporaries(step.states.trained, step.job, item)[0]


def _old_outputs(job: Job) -> tuple[str, ...]:
    """Phases in which the last step's outputs are still held."""
    return (FORWARD,) if loss_apart(job) else (FORWARD, LOSS)


def _lying(entries: Sequence[Entry], phase: str) -> int:
    return sum(e.nbytes for e in entries if e.place == DEVICE and phase in e.phases and e.level == Level.ALLOCATED)


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
