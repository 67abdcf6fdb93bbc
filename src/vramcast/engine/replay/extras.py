"""Companions, evaluation, rollouts and resuming in the stream that the allocator is given.

A step's stream goes in, the same stream comes out with what happens beside it: passes tensor by tensor where they run,
and what is simply held (a critic's states, a teacher's logits) as one block for as long as its line is alive.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from vramcast.engine.lines.amounts import Amounts
from vramcast.engine.lines.setting import Beside
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
NO_SHARES: Mapping[str, Sequence[int]] = {}


Played = TypeVar("Played", bound=Script)


def played_with(script: Played, extra: Beside, device: str) -> Played:
    """The script with what happens beside both of its steps. What comes between steps comes before the first
    micro-batch of a later one."""
    if not extra.passes and not extra.blocks:
        return script
    accumulates = script.accumulates
    return replace(
        script,
        first=with_beside(script.first, extra, device, later=False),
        again=with_beside(script.first, extra, device, later=True) if accumulates else None,
        later=with_beside(script.later, extra, device, later=True, begins=not accumulates),
    )


def with_beside(
    stream: Sequence[Stamped], extra: Beside, device: str, *, later: bool, begins: bool = True
) -> list[Stamped]:
    """The stream of the first step, or of a `later` one, if it `begins` one."""
    blocks = Blocks(
        (line for line in extra.blocks if line.place == device), STEP if later else None
    )
    passes = [(run.phase, run.stream()) for run in extra.passes if run.place == device]
    found: list[Stamped] = []
    for phase in (BETWEEN if later else (RESUME,)) if begins else ():
        found += blocks.at(phase)
        found += (item for name, made in passes if name == phase for item in alone(made, name))
    seen = ""
    for item in stream:
        if item.phase != seen:
            seen = item.phase
            if seen == BACKWARD:
                found += (
                    event
                    for name, made in passes
                    if name in (FORWARD, LOSS)
                    for event in alone(made, name)
                )
            found += blocks.at(LATER.get(seen, seen) if later else seen)
        found.append(item)
    return [*found, *blocks.at(NEXT_STEP if later else STEP)]


class Blocks:
    """Lines of the bill as blocks, as large as each line is in a phase. `shares` cuts some lines (by their component)
    into tensors in these proportions; others are one tensor."""

    def __init__(
        self,
        lines: Iterable[Amounts],
        since: str | None = None,
        shares: Mapping[str, Sequence[int]] = NO_SHARES,
    ) -> None:
        """`since`: the phase that was the last before."""
        self.lines, self.shares = list(lines), shares
        self._sizes = [int(line.by_phase.get(since, 0)) if since else 0 for line in self.lines]

    def at(self, phase: str) -> Iterator[Stamped]:
        """What goes as the phase begins, and then what comes."""
        sizes = [int(line.by_phase.get(phase, 0)) for line in self.lines]
        changed = [index for index, size in enumerate(sizes) if size != self._sizes[index]]
        for index in changed:
            yield from self._cut(self.lines[index], phase, -1, self._sizes[index])
        for index in changed:
            yield from self._cut(self.lines[index], phase, 1, sizes[index])
        self._sizes = sizes

    def _cut(self, line: Amounts, phase: str, sign: int, nbytes: int) -> Iterator[Stamped]:
        shares = self.shares.get(line.component, (1,))
        for number, share in enumerate(shares if nbytes else ()):
            key: Hashable = ("small", "beside", line.component, number)
            yield Stamped(
                phase,
                0,
                Event(sign, key, nbytes * share // sum(shares), "working", line.component),
                key,
            )


def alone(stream: Sequence[Stamped], name: str) -> Iterator[Stamped]:
    """A pass under keys of its own; what it leaves goes when it is over."""
    alive: dict[Hashable, Stamped] = {}
    for item in stream:
        key: Hashable = ("beside", name, item.key)
        if item.event.sign > 0:
            alive[key] = item
        else:
            alive.pop(key, None)
        yield Stamped(name, item.section, item.event, key)
    for key, item in alive.items():
        event = Event(-1, item.event.key, item.event.nbytes, item.event.kind, item.event.label)
        yield Stamped(name, item.section, event, key)
