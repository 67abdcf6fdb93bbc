"""Extrapolates the peaks of a deep stage from two shallow ones.

In a run of identical layers, every layer adds the same bytes to what is alive before, between and after them. So the
peak at each place of a stage grows by a constant per layer, and among the layers inside a run the largest peak is next
to one of its ends. A stage with all its runs cut short, and a second one in which one run has a layer more, therefore
give the peaks of a stage of any depth. A run may consist of groups: where every second block is recomputed, two blocks
together form one group.
What a mode does to a program must concern neighbours only, not all layers together (as ZeRO-3's reuse distance does).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

from vramcast.engine.stream.fold import peak_by_phase, sums_of
from vramcast.engine.stream.timeline import Mode, passes
from vramcast.models.record.dims import Number, maximum
from vramcast.models.record.program import Program
from vramcast.models.record.values import PlacedSection

NEAR = 2  # groups next to each end of a run that differ from those between; more where a mode looks farther
LONGEST_GROUP = 8

Peaks = dict[tuple[str, Hashable], Number]  # by phase and place


@dataclass(frozen=True, slots=True)
class _Run:
    """Sections from `start` on: groups of `length`, so many `times`."""

    start: int
    length: int
    times: int


def phase_peaks_of(
    program: Program,
    recompute: Callable[[PlacedSection], str],
    mode_of: Callable[[Program], Mode],
    farther: int,
) -> dict[str, Number]:
    """What `peak_by_phase` says of the program. `farther`: how many layers beyond the next one a mode looks."""
    near = NEAR + farther
    kinds = [(id(placed.section), recompute(placed)) for placed in program.sections]
    runs = [run for run in _runs(kinds) if run.times > 2 * near + 1]
    cut = sum((run.times - 2 * near) * run.length for run in runs)
    lengths = {run.times for run in runs}
    if (len(kinds) - cut) * (1 + len(lengths)) >= len(kinds):
        return peak_by_phase(program, mode_of(program))
    low = _peaks(program, mode_of, runs, [2 * near] * len(runs), near)
    more = {
        times: _peaks(
            program, mode_of, runs, [2 * near + (run.times == times) for run in runs], near
        )
        for times in lengths
    }
    found: dict[str, Number] = {}
    for place, peak in low.items():
        steps = ((times - 2 * near) * (high[place] - peak) for times, high in more.items())
        whole, phase = peak + sum(steps), place[0]
        found[phase] = maximum(found[phase], whole) if phase in found else whole
    return found


def _runs(kinds: list[tuple[int, str]]) -> Iterator[_Run]:
    """What is repeated, from left to right."""
    at = 0
    while at < len(kinds):
        best = max(
            (_Run(at, length, _times(kinds, at, length)) for length in range(1, LONGEST_GROUP + 1)),
            key=lambda run: run.length * run.times if run.times > 1 else 0,
        )
        yield best
        at += best.length * best.times


def _times(kinds: list[tuple[int, str]], at: int, length: int) -> int:
    first, times = kinds[at : at + length], 1
    while kinds[at + times * length : at + (times + 1) * length] == first:
        times += 1
    return times


def _peaks(
    program: Program,
    mode_of: Callable[[Program], Mode],
    runs: list[_Run],
    times: list[int],
    near: int,
) -> Peaks:
    """Where the runs have so many groups."""
    places = list(_places(len(program.sections), runs, times, near))
    short = _shortened(program, [at for at, _ in places])
    return peaks_at(short, mode_of(short), [name for _, name in places])


def peaks_at(program: Program, mode: Mode, places: Sequence[Hashable | None]) -> Peaks:
    """The largest sum in each phase at each place: one for every section, None where it is not asked for."""
    level: Number = 0
    peaks: Peaks = {}
    sums = sums_of(program)
    for chunk in passes(program, mode):
        above, net, _ = sums(chunk.events)
        if places[chunk.section] is not None:
            place = (chunk.phase, places[chunk.section])
            peaks[place] = maximum(peaks[place], level + above) if place in peaks else level + above
        level = level + net
    return peaks


def _places(
    sections: int, runs: list[_Run], times: list[int], near: int
) -> Iterator[tuple[int, Hashable | None]]:
    """The sections that stay, each with its place: counted from the nearer end of a run, None between."""
    at = 0
    for number, (run, count) in enumerate(zip(runs, times, strict=True)):
        yield from ((own, own) for own in range(at, run.start))
        for group in range(count):
            place = group if group < near else group - count if group >= count - near else None
            for offset in range(run.length):
                name = None if place is None else ("run", number, place, offset)
                yield run.start + group * run.length + offset, name
        at = run.start + run.length * run.times
    yield from ((own, own) for own in range(at, sections))


def _shortened(program: Program, sections: list[int]) -> Program:
    """These sections alone."""

    def cut() -> Program:
        tape = copy.copy(program.tape)
        tape.sections = [program.sections[at] for at in sections]
        return replace(program, tape=tape)

    return program.once((_shortened, *sections), cut)
