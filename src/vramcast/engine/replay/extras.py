"""Adds companions, evaluation, rollouts and resuming to the stream that the allocator replays.

Input: a step's stream. Output: the same stream with these additions. Passes are added tensor by tensor where they run.
What is only held (a critic's states, a teacher's logits) is one block for as long as its line has bytes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import TypeVar

from vramcast.engine.lines.amounts import Amounts
from vramcast.engine.lines.setting import OtherLines, Pass
from vramcast.engine.replay.run import BETWEEN, Script
from vramcast.engine.stream.events import Event
from vramcast.engine.stream.timeline import Stamped
from vramcast.ledger import (
    BACKWARD,
    FORWARD,
    LOSS,
    NEXT_BACKWARD,
    NEXT_FORWARD,
    NEXT_LOSS,
    NEXT_STEP,
    RESUME,
    STEP,
)

LATER = {FORWARD: NEXT_FORWARD, LOSS: NEXT_LOSS, BACKWARD: NEXT_BACKWARD, STEP: NEXT_STEP}


Played = TypeVar("Played", bound=Script)


def played_with(script: Played, extra: OtherLines, device: str) -> Played:
    """The script with additions to both of its steps. Rollouts and evaluation come before the first micro-batch of a
    later step."""
    if not extra.passes and not extra.blocks:
        return script
    accumulates = script.accumulates
    first = _with_extras(script.first, extra, device, later=False)
    again = _with_extras(script.first, extra, device, later=True)
    later = _with_extras(script.later, extra, device, later=True, begins=not accumulates)
    return replace(
        script,
        first=list(first),
        again=list(again) if accumulates else None,
        later=list(later),
    )


def _with_extras(
    stream: Sequence[Stamped], extra: OtherLines, device: str, *, later: bool, begins: bool = True
) -> Iterator[Stamped]:
    """The stream with additions. `later`: it belongs to a step after the first. `begins`: it starts a step, so what
    happens between steps comes before it."""
    lines = (line for line in extra.blocks if line.place == device)
    blocks = Blocks(lines, STEP if later else None)
    passes = [run for run in extra.passes if run.place == device]
    if begins:
        yield from _before_step(BETWEEN if later else (RESUME,), blocks, passes)
    for phase, items in groupby(stream, key=attrgetter("phase")):
        if phase == BACKWARD:
            yield from _passes_in((FORWARD, LOSS), passes)
        yield from blocks.at(LATER.get(phase, phase) if later else phase)
        yield from items
    yield from blocks.at(NEXT_STEP if later else STEP)


def _before_step(
    phases: tuple[str, ...], blocks: Blocks, passes: Sequence[Pass]
) -> Iterator[Stamped]:
    """What comes before a step's forward: resuming, or rollouts and evaluation."""
    for phase in phases:
        yield from blocks.at(phase)
        yield from _passes_in((phase,), passes)


def _passes_in(phases: tuple[str, ...], passes: Sequence[Pass]) -> Iterator[Stamped]:
    """The passes that run in one of these phases, one after the other."""
    for run in passes:
        if run.phase in phases:
            yield from alone(run.stream(), run.phase)


class Blocks:
    """Each line is held as one block per tensor, with the bytes that the line has in the current phase."""

    def __init__(self, lines: Iterable[Amounts], since: str | None = None) -> None:
        """`since`: the phase before, whose blocks are allocated already."""
        self.lines = list(lines)
        self._sizes = [int(line.by_phase.get(since, 0)) if since else 0 for line in self.lines]

    def at(self, phase: str) -> Iterator[Stamped]:
        """When the phase begins: frees of blocks whose size changes, then their new allocations."""
        sizes = [int(line.by_phase.get(phase, 0)) for line in self.lines]
        changed = [index for index, size in enumerate(sizes) if size != self._sizes[index]]
        for index in changed:
            yield from self._cut(self.lines[index], phase, -1, self._sizes[index])
        for index in changed:
            yield from self._cut(self.lines[index], phase, 1, sizes[index])
        self._sizes = sizes

    def _cut(self, line: Amounts, phase: str, sign: int, nbytes: int) -> Iterator[Stamped]:
        whole = sum(line.tensors)
        for number, share in enumerate(line.tensors if nbytes else ()):
            key: Hashable = ("small", "other line", line.component, number)
            yield Stamped(
                phase,
                0,
                Event(sign, key, nbytes * share // whole, "working", line.component),
                key,
            )


def alone(stream: Sequence[Stamped], name: str) -> Iterator[Stamped]:
    """A pass with its own keys. What it leaves alive is freed at its end."""
    alive: dict[Hashable, Stamped] = {}
    for item in stream:
        key: Hashable = ("other pass", name, item.key)
        if item.event.sign > 0:
            alive[key] = item
        else:
            alive.pop(key, None)
        yield Stamped(name, item.section, item.event, key)
    for key, item in alive.items():
        event = Event(-1, item.event.key, item.event.nbytes, item.event.kind, item.event.label)
        yield Stamped(name, item.section, event, key)
