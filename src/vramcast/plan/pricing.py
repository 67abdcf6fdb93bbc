"""Prices on grids: a regime is recorded once for all micro-batches and lengths; its peaks serve every optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy
from numpy.typing import NDArray

from vramcast.catalog.gpus import Gpu
from vramcast.formulas.estimate import DEVICE, recorded
from vramcast.formulas.optimizers import implementation, temporaries
from vramcast.formulas.overheads import workspace_entries
from vramcast.formulas.states import States, state_entries, unique
from vramcast.formulas.step import Step, keeps_outputs, loss_apart
from vramcast.formulas.timeline import Fold, fold
from vramcast.job import Job
from vramcast.ledger import BACKWARD, FORWARD, LOSS, NEXT_FORWARD, STEP, Entry, Level
from vramcast.models.config import Config
from vramcast.models.program import Program, Sizes
from vramcast.models.tape import DTYPES, Param

Grid = NDArray[numpy.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lying:
    """What does not depend on batch and length: states, gradients, the step's temporaries."""

    in_passes: int  # weights, states and workspaces while a later step runs forward and backward
    in_step: int
    gradients: int
    temporaries: int
    in_backward: bool  # the optimizer steps inside backward
    held_always: bool  # gradients live in buffers of their own
    held_in_forward: bool


def lying_of(job: Job, params: tuple[Param, ...], gpu: Gpu | None, program: Program) -> Lying:
    step = Step(job=job, program=program, states=States(params=params, job=job), place=DEVICE)
    entries = (*state_entries(step.states, DEVICE), *workspace_entries(job, gpu, DEVICE))
    item = step.states.recipe.states.nbytes if step.states.recipe.states else None
    return Lying(
        in_passes=_at(entries, NEXT_FORWARD), in_step=_at(entries, STEP), gradients=step.states.gradient_bytes,
        temporaries=temporaries(step.states.trained, job, item)[0], held_always=step.accumulates_apart,
        in_backward=implementation(job) == "in-backward", held_in_forward=step.grads_in_forward,
    )  # fmt: skip


def _at(entries: Sequence[Entry], phase: str) -> int:
    return sum(e.nbytes for e in entries if e.place == DEVICE and phase in e.phases and e.level == Level.ALLOCATED)


class Regime:
    """A job recorded once for a grid of batches and lengths, and priced with any optimizer and accumulation."""

    def __init__(self, job: Job, config: Config, gpu: Gpu | None, b: Grid, s: Grid) -> None:
        images = 1 if job.images is None else job.images
        target = s if job.target_seq is None else job.target_seq
        self.job, self.gpu, self.shape = job, gpu, b.shape
        self.program = recorded(job, config, gpu, Sizes(batch=b, seq=s, target_seq=target, images=images))
        self.params = unique(self.program.params())
        self._folds: dict[bool, Fold] = {}

    def allocated(self, job: Job) -> Grid:
        return self.peak(lying_of(job, self.params, self.gpu, self.program), accumulates=job.accumulate > 1)

    def peak(self, lying: Lying, *, accumulates: bool) -> Grid:
        """The largest of forward, loss, backward and step, once the optimizer's states exist."""
        folded = self._fold(fresh=not accumulates and not lying.held_always and not lying.in_backward)
        held = 0 if lying.in_backward else lying.gradients
        old = folded.left if keeps_outputs(self.job) else 0
        moments = []
        for phase, peak in folded.peaks.items():
            always = accumulates or lying.held_always or (lying.held_in_forward and phase != BACKWARD)
            extra = (held if always else 0) + (old if phase in _old_outputs(self.job) else 0)
            extra = extra + (lying.temporaries if lying.in_backward and phase == BACKWARD else 0)
            moments.append(peak + extra + lying.in_passes)
        moments.append(lying.in_step + old + (0 if lying.in_backward else lying.gradients + lying.temporaries))
        top: Grid = numpy.maximum.reduce([numpy.broadcast_to(moment, self.shape) for moment in moments])
        return top + self.companions()

    def companions(self) -> int:
        """A reference model on the same card: its weights. What its forward needs is not priced here."""
        if self.job.reference != "same":
            return 0
        dtype = DTYPES[self.job.reference_dtype] if self.job.reference_dtype else self.program.regime.weights
        return sum(param.numel * dtype.nbytes for param in self.params if param.kind != "adapter")

    def _fold(self, *, fresh: bool) -> Fold:
        if fresh not in self._folds:
            step = Step(job=self.job, program=self.program, states=States(params=(), job=self.job), place=DEVICE)
            self._folds[fresh] = fold(self.program, replace(step.mode(fresh=True), fresh_grads=fresh))
        return self._folds[fresh]


def _old_outputs(job: Job) -> tuple[str, ...]:
    """Phases in which the last step's outputs are still held."""
    return (FORWARD,) if loss_apart(job) else (FORWARD, LOSS)
