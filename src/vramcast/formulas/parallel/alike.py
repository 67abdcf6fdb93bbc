"""Peaks of a stage whose layers are alike, the first one perhaps apart, from those of two short stages.

Every such layer adds the same bytes to what is alive at the ends (the first layer, the last, the parts around them) and
between them, and the fullest of the layers between is the one next to an end. So peaks at each of these places grow
evenly with the number of layers, and two short stages give those of a long one. A program goes in whole; what a mode
does to it must concern neighbours only, not all layers together (as ZeRO-3's reuse distance does).
"""

from __future__ import annotations

from collections.abc import Callable

from vramcast.formulas.fold import peak_by_phase, sums_of
from vramcast.formulas.parallel.layout import stage_program
from vramcast.formulas.timeline import Mode, passes
from vramcast.models.dims import Number, maximum
from vramcast.models.program import Program

MIDDLE = "layers between"
SHORT = (4, 5)  # layers: two between the ends, each with another neighbour; more where a mode looks farther

Peaks = dict[tuple[str, str], Number]  # by phase and place


def peaks_by_place(program: Program, mode: Mode) -> Peaks:
    """The largest sum in each phase at the first layer, at the last one, between them, and in the parts around."""
    blocks = [index for index, placed in enumerate(program.placed) if placed.section.is_block]
    places = {blocks[0]: "first layer", blocks[-1]: "last layer", **dict.fromkeys(blocks[1:-1], MIDDLE)}
    level: Number = 0
    peaks: Peaks = {}
    sums = sums_of(program)
    for chunk in passes(program, mode):
        place = (chunk.phase, places.get(chunk.section, program.placed[chunk.section].name))
        above, net, _ = sums(chunk.events)
        peaks[place] = maximum(peaks[place], level + above) if place in peaks else level + above
        level = level + net
    return peaks


def stretched(low: Peaks, high: Peaks, more: int) -> Peaks:
    """To a stage with `more` layers than the shorter of two that differ by one."""
    return {place: peak + (high[place] - peak) * more for place, peak in low.items()}


def phase_peaks_of(program: Program, mode_of: Callable[[Program], Mode], farther: int = 0) -> dict[str, Number]:
    """What `peak_by_phase` says of the program, from short ones where its layers are alike. `farther`: how many layers
    beyond the next one a mode looks."""
    blocks = [placed for placed in program.placed if placed.section.is_block]
    few, more = (layers + farther for layers in SHORT)
    if len(blocks) <= more or any(placed.section is not blocks[1].section for placed in blocks[1:]):
        return peak_by_phase(program, mode_of(program))
    programs = [_of_length(program, layers) for layers in (few, more)]
    modes = [mode_of(short) for short in programs]
    if len({modes[0].recompute(placed) for placed in blocks}) > 1:
        return peak_by_phase(program, mode_of(program))
    low, high = (peaks_by_place(short, mode) for short, mode in zip(programs, modes, strict=True))
    found: dict[str, Number] = {}
    for (phase, _), peak in stretched(low, high, len(blocks) - few).items():
        found[phase] = maximum(found[phase], peak) if phase in found else peak
    return found


def _of_length(program: Program, layers: int) -> Program:
    """Its first layers alone, cut once however often they are asked for."""
    key = (_of_length, id(program.tape), layers)
    if key not in program.folded:  # what has the id is kept with it
        program.folded[key] = (program.tape, stage_program(program, [layers], (0,)))
    found: Program = program.folded[key][1]
    return found
