"""An editing step for the allocator: passes tensor by tensor, everything else as blocks that change with the phase.

Input: the lines and events of `editing/lines.py`. Output: a Script of two editing steps per device.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from vramcast.engine.lines.amounts import Amounts
from vramcast.engine.replay.extras import Blocks, alone
from vramcast.engine.replay.run import Script
from vramcast.engine.stream.events import Event
from vramcast.engine.stream.timeline import Stamped
from vramcast.ledger import BACKWARD, EDIT, FORWARD, LOSS, STEP

FORWARD_PHASES = (FORWARD, LOSS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """The model's events on one device: of the inner pass, and of each of the `together` forwards of the edited model.
    `making` and `replaying`: sizes of tensors allocated together at the end of the edit and at the end of backward."""

    inner: Sequence[Stamped]
    edited: Sequence[Stamped]
    together: int
    making: Sequence[int]
    replaying: Sequence[int]


def edit_script(
    weights: Iterable[int], held: Sequence[Amounts], passes: Passes, small: tuple[int, ...]
) -> Script:
    first, later = (list(_step(Blocks(held, since), passes)) for since in (None, STEP))
    return Script(
        weights=tuple(weights),
        first=first,
        later=later,
        states=(),
        step_temporaries=(),
        small=small,
        zero_grad_first=True,
    )


def _step(blocks: Blocks, passes: Passes) -> Iterator[Stamped]:
    yield from blocks.at(EDIT)
    yield from alone([*passes.inner, *_made(passes.making, EDIT)], EDIT)
    yield from blocks.at(FORWARD)
    runs = [list(_numbered(passes.edited, index)) for index in range(passes.together)]
    yield from (item for run in runs for item in run if item.phase in FORWARD_PHASES)
    yield from blocks.at(LOSS)
    yield from blocks.at(BACKWARD)
    yield from (item for run in reversed(runs) for item in run if item.phase not in FORWARD_PHASES)
    yield from _gone(item for run in runs for item in run)
    yield from alone(_made(passes.replaying, BACKWARD), BACKWARD)
    yield from blocks.at(STEP)


def _numbered(stream: Sequence[Stamped], index: int) -> Iterator[Stamped]:
    """The events of one of several runs. Only the first allocates gradients; the others add to them."""
    for item in stream:
        if index == 0 or item.event.kind != "gradient":
            yield Stamped(item.phase, item.section, item.event, ("edited", index, item.key))


def _gone(items: Iterable[Stamped]) -> Iterator[Stamped]:
    """Frees of what the runs leave alive."""
    alive: dict[Hashable, Stamped] = {}
    for item in items:
        if item.event.sign > 0:
            alive[item.key] = item
        else:
            alive.pop(item.key, None)
    for key, item in alive.items():
        event = item.event
        yield Stamped(
            BACKWARD, item.section, Event(-1, event.key, event.nbytes, event.kind, event.label), key
        )


def _made(sizes: Sequence[int], phase: str) -> list[Stamped]:
    return [
        Stamped(phase, 0, Event(1, ("made", index), nbytes, "working", "made"), ("made", index))
        for index, nbytes in enumerate(sizes)
    ]
