"""A job's recording, its stream and its Script for the allocator, before entries are made.

A search drafts dozens of jobs; what they have in common is computed once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial

from vramcast.catalog.gpus import Gpu
from vramcast.engine.lines.other_lines import other_lines
from vramcast.engine.lines.setting import OtherLines, Setting
from vramcast.engine.lines.states import States, unique
from vramcast.engine.lines.training_step import Step
from vramcast.engine.program import record_job
from vramcast.engine.recording.record import DEVICE, sizes_of
from vramcast.engine.recording.regime import kv_cache, needs_input_grads
from vramcast.engine.recording.sequence_limits import check_positions
from vramcast.engine.recording.shared_casts import shares_casts
from vramcast.engine.replay.card import of_same, roughly_reserved, step_script
from vramcast.engine.replay.extras import played_with
from vramcast.engine.replay.run import Columns, Replayed, Run, Script
from vramcast.engine.replay.varying_lengths import Measure, earlier_lengths, has_many_lengths
from vramcast.engine.stream.timeline import Stamped
from vramcast.models.read.config import Config
from vramcast.models.record.program import Program, Sizes
from vramcast.models.record.sliding_windows import window_of
from vramcast.setup import Setup

# Parts of a Setup that a result does not depend on: jobs that differ only there share it. Passes do not depend on the
# optimizer, unless it steps inside backward. A recording does not depend on checkpointing, except for the key/value
# cache, the gradients of inputs and copies that projections share, which are separate parts of its key.
NOT_FOR_PASSES = ("optimizer", "alloc_conf")
NOT_FOR_RECORDING = (*NOT_FOR_PASSES, "checkpointing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    setting: Setting
    step: Step
    stream: list[Stamped]  # of the first step, without companions and other additions
    later: list[Stamped]
    extra: OtherLines
    script: Script


class Drafts:
    """Drafts of jobs with one model on one card. Jobs that run the same program share its recording; jobs with the same
    passes share a stream. If a job runs out of memory before the optimizer's first step, so do all jobs that differ
    only in the optimizer."""

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
        """The draft with the longest batch only, even if batches have many lengths."""
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
        extra, first = other_lines(setting), self._stream(step, fresh=True)
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
        """The draft with whole steps on the shorter batches that come before the longest."""
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
        """The draft and its replay, which also counts as out of memory if it reserves more than `most_bytes`. Shorter
        batches are only replayed if the longest alone fits."""
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
            shares_casts(setup),
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
            )  # without companions and other additions
            self._measures[key] = roughly_reserved(own.largest(), int(draft.setting.sizes.seq))
        return self._measures[key]

    def _shorter(
        self, step: Step, longest: Sizes, lengths: Iterable[int]
    ) -> dict[int, list[Stamped]]:
        """Streams by length. Lengths on the same side of the model's attention window are recorded together."""
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
        """One stream per length. Gradients get the keys that they have in the stream of the longest batch."""
        import numpy  # imported here: most estimates do not need it

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
    """Is the script independent of the optimizer until its first step (no states, also no critic's, before it)?"""
    return draft.script.first is draft.stream and not draft.script.states_from_start


def _but(parts: tuple[str, ...], setup: Setup) -> Hashable:
    """A key of everything in a setup except these parts, and of whether the optimizer steps inside backward."""
    rest = (getattr(setup, field.name) for field in fields(setup) if field.name not in parts)
    return (*rest, setup.optimizer.implementation == "in-backward")
