"""Peaks of many jobs at once: a fold over the chunks of a step, on plain numbers or on grids of sizes.

In come a Program and a Mode, out come the largest sum in each phase and what is left. Alike layers, whose chunks are
the same lists, are added up once and multiplied. Which tensors are alive at a peak is `timeline`'s business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from vramcast.engine.stream.events import Event
from vramcast.engine.stream.timeline import Memo, Mode, passes
from vramcast.ledger import FORWARD, LOSS
from vramcast.models.record.dims import Dim, Number, maximum
from vramcast.models.record.program import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """The largest sum in each phase, and what is left at the end beside gradients; for number-like sizes. Forward and
    loss are over where anything else begins: what is alive there, and the largest sums until then."""

    peaks: dict[str, Number]
    left: Number
    over: Number
    peaks_until_over: dict[str, Number]


Sums = tuple[
    Number, Number, Number
]  # how far above the start, what is added in all, and beside gradients
LONGEST_PERIOD = 8  # chunks that a layer has in a phase


def fold(program: Program, mode: Mode) -> Fold:
    level: Number = 0
    left: Number = 0
    peaks: dict[str, Number] = {}
    over: tuple[Number, dict[str, Number]] | None = None
    sums = sums_of(program)
    made = list(passes(program, mode))
    for at, length, times in repetitions([(chunk.phase, id(chunk.events)) for chunk in made]):
        above, net, beside = _joined([sums(chunk.events) for chunk in made[at : at + length]])
        top, phase = level + above, made[at].phase
        if over is None and phase not in (FORWARD, LOSS):
            over = level, dict(peaks)
        if (
            times > 1
        ):  # alike layers change the level evenly, so that the first or the last of them is the highest
            top = maximum(top, top + (times - 1) * net)
        peaks[phase] = maximum(peaks[phase], top) if phase in peaks else top
        level, left = level + times * net, left + times * beside
    level, until = over or (level, peaks)
    return Fold(peaks=peaks, left=left, over=level, peaks_until_over=until)


def repetitions(keys: Sequence[tuple[str, int]]) -> Iterator[tuple[int, int, int]]:
    """The list from left to right as (start, length, times); what is repeated lies in one phase."""
    at = 0
    while at < len(keys):
        length, times, here = 1, 1, keys[at]
        for period in range(1, min(LONGEST_PERIOD + 1, len(keys) - at)):
            if keys[at + period - 1][0] != here[0]:
                break
            if keys[at + period] != here:
                continue
            first, count = keys[at : at + period], 1
            while keys[at + count * period : at + (count + 1) * period] == first:
                count += 1
            if count > 1 and count * period > length * times:
                length, times = period, count
        yield at, length, times
        at += length * times


def sums_of(program: Program) -> Callable[[list[Event]], Sums]:
    """Of a chunk's events, added up once for all layers that share them."""
    return partial(Memo(program.cache).of_list, _sums)


def _joined(parts: list[Sums]) -> Sums:
    """One after the other."""
    above, net, beside = parts[0]
    for more, adds, beside_adds in parts[1:]:
        above = maximum(above, net + more)
        net, beside = net + adds, beside + beside_adds
    return above, net, beside


def _sums(events: list[Event]) -> Sums:
    """How far the events rise above where they start; what they add in all, and beside gradients."""
    level: Number = 0
    top: Number = 0
    gradients: Number = 0
    rising = False
    for sign, _, nbytes, kind, _ in events:
        if sign < 0 and rising:  # a sum is largest before something dies
            top = (top if top >= level else level) if type(level) is int else maximum(top, level)
        rising = sign > 0
        if isinstance(nbytes, Dim):
            nbytes = int(nbytes)
        level = level + nbytes if rising else level - nbytes
        if kind == "gradient":
            gradients = gradients + sign * nbytes
    return maximum(top, level), level, level - gradients


def peak_by_phase(program: Program, mode: Mode) -> dict[str, Number]:
    return fold(program, mode).peaks
