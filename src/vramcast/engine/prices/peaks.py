"""The peak of a job without its breakdown: a model is recorded once and evaluated for many ways of running it.

With ints as sizes a peak is an int, with numpy arrays it is an array. What depends on batch and length (`passes`,
`others`) and what does not (`persistent`) are separate, so that a search can add them in any combination. Only
allocated bytes of the training device are computed here: what torch reserves needs the allocator (see `estimate`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import Any

from vramcast.catalog.gpus import Gpu
from vramcast.engine.bill import job_phases
from vramcast.engine.lines.amounts import Amounts
from vramcast.engine.lines.batch import num_fetched
from vramcast.engine.lines.optimizers import temporaries
from vramcast.engine.lines.other_lines import other_lines
from vramcast.engine.lines.overheads import workspace_entries
from vramcast.engine.lines.setting import Setting
from vramcast.engine.lines.states import States, state_entries, unique
from vramcast.engine.lines.training_step import Step, loss_apart
from vramcast.engine.program import record_job
from vramcast.engine.recording.record import DEVICE
from vramcast.errors import UnsupportedError
from vramcast.ledger import (
    BACKWARD,
    EVAL,
    FORWARD,
    GATING,
    LOSS,
    NEXT_BACKWARD,
    NEXT_FORWARD,
    NEXT_LOSS,
    NEXT_STEP,
    RESUME,
    ROLLOUT,
    Entry,
    Level,
)
from vramcast.models.read.config import Config
from vramcast.models.record.dims import Number, choose, maximum
from vramcast.models.record.program import Sizes
from vramcast.models.record.sliding_windows import window_of
from vramcast.setup import Setup

# The peak is in one of these phases: the first step never exceeds a later one, which has optimizer states as well.
MOMENTS = (NEXT_FORWARD, NEXT_LOSS, NEXT_BACKWARD, GATING, NEXT_STEP, RESUME, ROLLOUT, EVAL)
OF_PASSES = {FORWARD: NEXT_FORWARD, LOSS: NEXT_LOSS, BACKWARD: NEXT_BACKWARD, GATING: GATING}

ByPhase = dict[str, Number]


class Recording:
    """A job's model, recorded once. Jobs given to the methods may differ from the recorded one in anything that does
    not change the recorded tensors: checkpointing, optimizer, accumulation, companions, whether the loop keeps
    outputs."""

    def __init__(self, setup: Setup, config: Config, gpu: Gpu | None, sizes: Sizes) -> None:
        # Points of the grid whose tensors are others, with their own recording.
        self._elsewhere: list[tuple[Any, Recording]] = []
        beyond = lengths_beyond(sizes, config)
        if beyond is not None:
            within = replace(sizes, beyond_window=False)
            self._elsewhere.append((~beyond, Recording(setup, config, gpu, within)))
            sizes = replace(sizes, beyond_window=True)
        self.config, self.gpu, self.sizes = config, gpu, sizes
        self.program = record_job(setup, config, gpu, sizes)
        one = self.program.tape.points_of_one_sample
        if one is not None:
            single = Recording(setup, config, gpu, replace(sizes, one_sample=True))
            self._elsewhere.insert(0, (one, single))
        self.params = unique(self.program.params())
        self._persistent: dict[Hashable, dict[str, int]] = {}
        self._others: dict[Hashable, ByPhase] = {}

    def peak(self, setup: Setup) -> Number:
        passes, extra, persistent = self.passes(setup), self.others(setup), self.persistent(setup)
        top: Number = 0
        for phase, nbytes in passes.items():
            top = maximum(top, nbytes + extra.get(phase, 0) + persistent[phase])
        return top

    def passes(self, setup: Setup) -> ByPhase:
        """Peak bytes of a later step's tensors by phase; 0 if a phase has none."""
        found = self._passes(setup)
        for points, recording in self._elsewhere:
            found = _replace_at(points, found, recording.passes(setup))
        return found

    def _passes(self, setup: Setup) -> ByPhase:
        step = self._step(setup)
        folded = step.fold(fresh=setup.data.accumulate == 1 and not step.zeroed_in_place)
        kept = folded.left if setup.loop.keeps_outputs else 0
        found = {
            OF_PASSES[phase]: peak + (kept if phase in _with_old_outputs(setup) else 0)
            for phase, peak in folded.peaks.items()
        }
        between = (phase for phase in (RESUME, ROLLOUT, EVAL) if phase in job_phases(step.setup))
        return {
            **found,
            NEXT_STEP: kept,
            **{phase: 0 if phase == RESUME else kept for phase in between},
        }

    def _step(self, setup: Setup) -> Step:
        return Step(
            setup=setup,
            program=self.program,
            states=States(params=self.params, setup=setup),
            place=DEVICE,
        )

    def others(self, setup: Setup) -> ByPhase:
        """Bytes by phase of inputs, companions, rollouts, evaluation and resuming."""
        found = self._others_of(setup)
        for points, recording in self._elsewhere:
            found = _replace_at(points, found, recording.others(setup))
        return found

    def _others_of(self, setup: Setup) -> ByPhase:
        resumed = None if setup.phases.resume == "none" else setup.optimizer
        fetched = num_fetched(setup)
        key = (setup.companions, setup.phases, setup.checkpointing, setup.loop, resumed, fetched)
        if key not in self._others:
            self._others[key] = _by_moment(
                line for line in self._lines(setup) if not line.depends_on_optimizer
            )
        return self._others[key]

    def _lines(self, setup: Setup) -> list[Amounts]:
        states = States(params=self.params, setup=setup)
        setting = Setting(
            setup=setup,
            config=self.config,
            gpu=self.gpu,
            sizes=self.sizes,
            program=self.program,
            states=states,
            device=DEVICE,
        )
        return [line for line in other_lines(setting).lines if line.place == DEVICE]

    def persistent(self, setup: Setup) -> dict[str, int]:
        """Bytes by phase that do not depend on batch and length: weights, optimizer states (a critic's too), gradients,
        temporaries of the optimizer step, workspaces."""
        accumulates = setup.data.accumulate > 1
        key = (
            setup.optimizer,
            setup.precision,
            setup.companions,
            setup.versions,
            setup.loop,
            accumulates,
        )
        if key not in self._persistent:
            self._persistent[key] = self._persistent_of(self._step(setup))
        return self._persistent[key]

    def _persistent_of(self, step: Step) -> dict[str, int]:
        setup, states = step.setup, step.states
        entries = (
            *state_entries(states, DEVICE),
            *workspace_entries(setup.versions, self.gpu, DEVICE),
        )
        item = states.recipe.states.nbytes if states.recipe.states else None
        made = temporaries(states.trained, setup, item)[0]
        inside = setup.optimizer.implementation == "in-backward"
        if inside and setup.data.accumulate > 1:
            raise UnsupportedError(
                "accumulate cannot be combined with an optimizer that steps inside backward"
            )
        stepping = NEXT_BACKWARD if inside else NEXT_STEP
        held = () if inside else _with_gradients(step)
        gradients = states.gradient_bytes
        critic = (
            (line for line in self._lines(setup) if line.depends_on_optimizer)
            if setup.companions.critic != "none"
            else ()
        )
        others = _by_moment(critic)
        return {
            phase: _at(entries, phase)
            + others[phase]
            + (gradients if phase in held else 0)
            + (made if phase == stepping else 0)
            for phase in MOMENTS
        }


def _replace_at(points: Any, found: ByPhase, other: ByPhase) -> ByPhase:
    return {phase: choose(points, other[phase], nbytes) for phase, nbytes in found.items()}


def lengths_beyond(sizes: Sizes, config: Config) -> Number | None:
    """Which of many lengths are at least as long as the model's window. None if all or none are, or if it is given."""
    window = window_of(config)
    if window is None or sizes.beyond_window is not None or isinstance(sizes.seq, int):
        return None
    found = sizes.seq >= window
    return found if found.any() and not found.all() else None


def _with_old_outputs(setup: Setup) -> tuple[str, ...]:
    """Phases in which the outputs of the step before are still held."""
    return (FORWARD,) if loss_apart(setup) else (FORWARD, LOSS)


def _with_gradients(step: Step) -> tuple[str, ...]:
    """Phases in which all gradients exist, not counting those that this backward allocates."""
    if step.accumulates_apart:
        return tuple(phase for phase in MOMENTS if phase != RESUME)
    if step.setup.data.accumulate > 1 or step.zeroed_in_place:
        later = (NEXT_FORWARD, NEXT_LOSS, NEXT_BACKWARD, NEXT_STEP)
        return (*later, EVAL) if step.grads_in_forward else later
    return (NEXT_FORWARD, NEXT_LOSS, NEXT_STEP, EVAL) if step.grads_in_forward else (NEXT_STEP,)


def _by_moment(lines: Iterable[Amounts]) -> ByPhase:
    """The sum of the lines in each phase; ints or numpy arrays."""
    found: ByPhase = dict.fromkeys(MOMENTS, 0)
    for line in lines:
        for phase in line.by_phase.keys() & found.keys():
            found[phase] = found[phase] + line.by_phase[phase]
    return found


def _at(entries: Iterable[Entry], phase: str) -> int:
    return sum(
        e.nbytes
        for e in entries
        if e.place == DEVICE and phase in e.phases and e.level == Level.ALLOCATED
    )
