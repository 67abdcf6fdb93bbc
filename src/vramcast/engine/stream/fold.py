"""The peak of each phase without going through every event: identical layers are added up once and multiplied.

Input: a Program and a Mode. Output: a Fold. Sizes are ints, or numpy arrays for a grid of jobs. Identical layers share
their lists of events (see `timeline`), which is how they are recognised. Which tensors are alive at a peak is computed
in `timeline`.

Example: the forward events of one layer are +64 +64 -64 +32. They rise 128 above their start and add 96 in all. Of 32
such layers in a row the last has the peak: 31 · 96 + 128 = 3104 bytes.
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
    """`peaks`: the largest sum in each phase. `left`: bytes alive at the end, without gradients of parameters. `over`:
    bytes alive at the end of forward and loss. `peaks_until_over`: the largest sums until then."""

    peaks: dict[str, Number]
    left: Number
    over: Number
    peaks_until_over: dict[str, Number]


Sums = tuple[
    Number, Number, Number
]  # the largest rise above the start; the bytes added in all; the same without gradients of parameters
LONGEST_PERIOD = 8  # at most so many chunks belong to one layer in one phase


def fold(program: Program, mode: Mode) -> Fold:
    level: Number = 0
    left: Number = 0
    peaks: dict[str, Number] = {}
    over: tuple[Number, dict[str, Number]] | None = None
    sums = sums_of(program)
    made = list(passes(program, mode))
    for at, length, times in repetitions([(chunk.phase, id(chunk.events)) for chunk in made]):
        above, net, outside = _joined([sums(chunk.events) for chunk in made[at : at + length]])
        top, phase = level + above, made[at].phase
        if over is None and phase not in (FORWARD, LOSS):
            over = level, dict(peaks)
        if (
            times > 1
        ):  # identical layers add the same bytes each, so the first or the last has the peak
            top = maximum(top, top + (times - 1) * net)
        peaks[phase] = maximum(peaks[phase], top) if phase in peaks else top
        level, left = level + times * net, left + times * outside
    level, until = over or (level, peaks)
    return Fold(peaks=peaks, left=left, over=level, peaks_until_over=until)


def repetitions(keys: Sequence[tuple[str, int]]) -> Iterator[tuple[int, int, int]]:
    """The list as (start, length, times) from left to right. A repeated part never crosses a phase. For example
    A B C B C B C, all in one phase, is (0, 1, 1) and (1, 2, 3)."""
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
    """A function from a chunk's events to their Sums, cached for all layers that share the events."""
    return partial(Memo(program.cache).of_list, _sums)


def _joined(parts: list[Sums]) -> Sums:
    """The Sums of several lists of events that follow each other."""
    above, net, outside = parts[0]
    for more, adds, outside_adds in parts[1:]:
        above = maximum(above, net + more)
        net, outside = net + adds, outside + outside_adds
    return above, net, outside


def _sums(events: list[Event]) -> Sums:
    """The Sums of a list of events."""
    level: Number = 0
    top: Number = 0
    gradients: Number = 0
    rising = False
    for sign, _, nbytes, kind, _ in events:
        if sign < 0 and rising:  # the sum is largest right before a free
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
