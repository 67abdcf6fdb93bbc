"""A job recorded and written down for the allocator, before its bill is made. A search drafts jobs by the dozen."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial

from vramcast.catalog.gpus import Gpu
from vramcast.engine.lines.other_lines import beside
from vramcast.engine.lines.setting import Beside, Setting
from vramcast.engine.lines.states import States, unique
from vramcast.engine.lines.training_step import Step
from vramcast.engine.program import record_job
from vramcast.engine.recording.record import DEVICE, sizes_of
from vramcast.engine.recording.regime import kv_cache, needs_input_grads
from vramcast.engine.recording.sequence_limits import check_positions
from vramcast.engine.replay.card import of_same, roughly_reserved, step_script
from vramcast.engine.replay.extras import played_with
from vramcast.engine.replay.run import Columns, Replayed, Run, Script
from vramcast.engine.replay.varying_lengths import Measure, earlier_lengths, has_many_lengths
from vramcast.engine.stream.timeline import Stamped
from vramcast.models.read.config import Config
from vramcast.models.record.program import Program, Sizes
from vramcast.models.record.sliding_windows import window_of
from vramcast.setup import Setup

# Parts of a Setup that do not matter for a piece of work, so that jobs which differ only there share it.
# Passes do not depend on the optimizer, unless it steps inside backward; a recording does not depend on checkpointing,
# except for the key-value cache and the gradients of inputs, which are asked for apart.
NOT_FOR_PASSES = ("optimizer", "alloc_conf")
NOT_FOR_RECORDING = (*NOT_FOR_PASSES, "checkpointing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    setting: Setting
    step: Step
    stream: list[Stamped]  # of the step itself
    later: list[Stamped]
    extra: Beside
    script: Script


class Drafts:
    """Jobs of one model on one card. What they have in common is made once: jobs that run one program share its
    recording, those with the same passes a stream, and one that runs out before the optimizer's first step stands for
    all that are alike until then."""

    def __init__(self, config: Config, gpu: Gpu | None) -> None:
        self.config, self.gpu = config, gpu
        self._programs: dict[Hashable, Program] = {}
        self._streams: dict[Hashable, list[Stamped]] = {}
        self._shorter_streams: dict[Hashable, dict[int, list[Stamped]]] = {}
        self._measures: dict[Hashable, Measure] = {}
        self._refused: dict[Hashable, Replayed] = {}

    def of(self, setup: Setup) -> Draft:
        return self.after_others(self.of_longest(setup))

    def of_longest(self, setup: Setup) -> Draft:
        """Where batches are of many lengths: the longest alone."""
        sizes = sizes_of(setup.data, self.config)
        program = self._program(setup, sizes)
        states = States(params=unique(program.params()), setup=setup)
        step = Step(setup=setup, program=program, states=states, place=DEVICE)
        setting = Setting(
            setup=setup,
            config=self.config,
            gpu=self.gpu,
            sizes=sizes,
            program=program,
            states=states,
            device=DEVICE,
        )
        extra, first = beside(setting), self._stream(step, fresh=True)
        later = first if step.repeats else self._stream(step, fresh=False)
        script = step_script(step, first, later, extra.resident, self.gpu)
        return Draft(
            setting=setting,
            step=step,
            stream=first,
            later=later,
            extra=extra,
            script=played_with(script, extra, DEVICE),
        )

    def after_others(self, draft: Draft) -> Draft:
        """With whole steps of the shorter batches that a run meets before its longest."""
        step, longest = draft.step, draft.setting.sizes
        if not has_many_lengths(step.setup.data):
            return draft
        earlier = earlier_lengths(step.setup, int(longest.seq), self._measure(draft))
        shorter = self._shorter(step, longest, earlier.lengths)
        streams = tuple(shorter[length] for length in earlier.lengths)
        script = replace(draft.script, earlier=streams, stepped_after=earlier.stepped_after)
        return replace(draft, script=script)

    def replayed(
        self, setup: Setup, *, capacity_bytes: int, most_bytes: int
    ) -> tuple[Draft, Replayed]:
        """Out of memory too where more than `most_bytes` are reserved. A run of many lengths is not played where it
        would be out of memory if it met the longest first."""
        draft = self.of_longest(setup)
        key = (_but(("optimizer",), setup), capacity_bytes, most_bytes)
        if key in self._refused and _is_shared(draft):
            return draft, self._refused[key]
        bounded = partial(
            Run, capacity_bytes=capacity_bytes, conf=setup.alloc_conf, most_bytes=most_bytes
        )
        run = bounded(draft.script)
        found = run.whole()
        if found.out_of_memory and not run.has_states and _is_shared(draft):
            self._refused[key] = found
        if has_many_lengths(setup.data) and not found.out_of_memory:
            draft = self.after_others(draft)
            found = bounded(draft.script).whole()
        return draft, found

    def _program(self, setup: Setup, sizes: Sizes) -> Program:
        key = (
            _but(NOT_FOR_RECORDING, setup),
            kv_cache(setup, self.config),
            needs_input_grads(setup, self.config),
        )
        if key not in self._programs:
            program = record_job(setup, self.config, self.gpu, sizes)
            check_positions(program, self.config)
            self._programs[key] = program
        return self._programs[key]

    def _stream(self, step: Step, *, fresh: bool) -> list[Stamped]:
        key = (_but(NOT_FOR_PASSES, step.setup), fresh)
        if key not in self._streams:
            self._streams[key] = step.stream(fresh=fresh)
        return self._streams[key]

    def _measure(self, draft: Draft) -> Measure:
        key = _but(("alloc_conf",), draft.step.setup)
        if key not in self._measures:
            own = replace(
                draft.script, first=draft.stream, later=draft.later, again=None
            )  # nothing beside it
            self._measures[key] = roughly_reserved(own.largest(), int(draft.setting.sizes.seq))
        return self._measures[key]

    def _shorter(
        self, step: Step, longest: Sizes, lengths: Iterable[int]
    ) -> dict[int, list[Stamped]]:
        """By length; those on one side of the model's window are recorded together."""
        known = self._shorter_streams.setdefault(_but(NOT_FOR_PASSES, step.setup), {})
        window = window_of(self.config)
        for beyond in (False, True):
            new = sorted(
                {
                    n
                    for n in lengths
                    if n not in known and (window is not None and n >= window) == beyond
                }
            )
            if new:
                known.update(
                    zip(
                        new,
                        self._of_lengths(step, replace(longest, beyond_window=beyond), new),
                        strict=True,
                    )
                )
        return known

    def _of_lengths(
        self, step: Step, longest: Sizes, lengths: list[int]
    ) -> Iterator[list[Stamped]]:
        """Gradients are of the same parameters, so they go by the keys that those have in the longest batch."""
        import numpy  # which most estimates do not need

        grid = numpy.array(lengths)
        program = record_job(
            step.setup, self.config, self.gpu, replace(longest, seq=grid, target_seq=grid)
        )
        states = States(params=unique(program.params()), setup=step.setup)
        columns = Columns(
            of_same(replace(step, program=program, states=states).stream(), program, step.program)
        )
        alike = {id(nbytes): nbytes for nbytes in columns.sizes}
        made = {
            key: numpy.broadcast_to(nbytes, grid.shape).tolist() for key, nbytes in alike.items()
        }
        yield from map(
            columns.with_sizes, zip(*(made[id(nbytes)] for nbytes in columns.sizes), strict=True)
        )


def _is_shared(draft: Draft) -> bool:
    """Is nothing of an optimizer in it before the first step is taken: states, a critic's?"""
    return draft.script.first is draft.stream and not draft.script.states_from_start


def _but(parts: tuple[str, ...], setup: Setup) -> Hashable:
    """The key of everything in a setup except these parts; and whether the step is taken inside backward."""
    rest = (getattr(setup, field.name) for field in fields(setup) if field.name not in parts)
    return (*rest, setup.optimizer.implementation == "in-backward")
