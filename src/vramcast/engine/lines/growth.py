"""How activations saved for backward grow with the sequence length: a linear and a quadratic part."""

from __future__ import annotations

from vramcast.engine.stream.checkpointing import recompute_rule
from vramcast.engine.stream.events import Event
from vramcast.engine.stream.timeline import Mode, passes
from vramcast.forecast import Scaling
from vramcast.job import MOST_TOKENS
from vramcast.ledger import BACKWARD
from vramcast.models.record.program import Program
from vramcast.setup import Setup
from vramcast.setup.records import Checkpointing
from vramcast.units import round_up

ROUND = 128  # kernels pad lengths to smaller multiples, so these lengths are never padded


def lengths(seq: int) -> tuple[int, int, int]:
    """Three lengths, enough to determine a parabola."""
    base = round_up(min(seq, MOST_TOKENS // 4), ROUND)
    return base, 2 * base, 3 * base


def scaling(setup: Setup, programs: tuple[Program, Program, Program], base: int) -> Scaling:
    """The growth, from the job recorded at one, two and three times the length `base`."""
    one, two, three = (_kept(setup.checkpointing, program) for program in programs)
    bend = three - 2 * two + one
    quadratic = bend / (2 * base * base)
    linear = (two - one) / base - 3 * quadratic * base
    crossover = round(linear / quadratic) if bend > 0 and linear > 0 else None
    return Scaling(
        linear_bytes=max(round(linear), 0),
        quadratic_bytes=quadratic,
        crossover_seq=crossover,
        batch=setup.data.batch,
    )


def _kept(checkpointing: Checkpointing, program: Program) -> int:
    """Bytes alive when backward starts."""
    level, known = 0, dict[int, tuple[list[Event], int]]()
    for chunk in passes(program, Mode(recompute=recompute_rule(checkpointing))):
        if chunk.phase == BACKWARD:
            break
        if id(chunk.events) not in known:
            known[id(chunk.events)] = (
                chunk.events,
                sum(e.sign * int(e.nbytes) for e in chunk.events),
            )
        level += known[id(chunk.events)][1]
    return level
