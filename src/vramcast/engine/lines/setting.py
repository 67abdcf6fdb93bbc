"""What the parts of the bill beside the step need to know: the job, its model as recorded, and where it runs."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TypeVar

from vramcast.catalog.gpus import Gpu
from vramcast.engine.lines.amounts import Amounts
from vramcast.engine.lines.states import States
from vramcast.engine.stream.events import Event
from vramcast.engine.stream.fold import peak_by_phase
from vramcast.engine.stream.timeline import Mode, Stamped, passes, step_events
from vramcast.ledger import FORWARD, LOSS
from vramcast.models.families import record
from vramcast.models.read.config import Config
from vramcast.models.record.dims import Number, maximum
from vramcast.models.record.program import Program, Sizes
from vramcast.models.record.tape import Dtype
from vramcast.setup import Setup

Made = TypeVar("Made")
KEPT = Mode(recompute=lambda placed: "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    setup: Setup
    config: Config
    gpu: Gpu | None
    sizes: Sizes
    program: Program
    states: States
    device: str


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass beside the step, for the allocator: in which phase, on which device, and its births and deaths."""

    phase: str
    place: str
    stream: Callable[[], list[Stamped]]


def passing(phase: str, place: str, program: Program) -> Pass:
    """A program that runs for itself and leaves nothing."""
    return Pass(phase, place, lambda: list(step_events(program, KEPT)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Lines of the bill whose bytes may be grids, and remarks. For the allocator, sizes of tensors that lie on the
    training device, passes, and which lines are held as a block of their own (see `alongside`)."""

    lines: tuple[Amounts, ...] = ()
    resident: tuple[int, ...] = ()
    assumptions: tuple[str, ...] = ()
    passes: tuple[Pass, ...] = ()
    blocks: tuple[Amounts, ...] = ()

    def __add__(self, other: Beside) -> Beside:
        return Beside(
            lines=(*self.lines, *other.lines),
            resident=(*self.resident, *other.resident),
            assumptions=(*self.assumptions, *other.assumptions),
            passes=(*self.passes, *other.passes),
            blocks=(*self.blocks, *other.blocks),
        )


def once(setting: Setting, make: Callable[[Setting], Made], *reads: Hashable) -> Made:
    """Made once for a recorded program and the fields of the job that `make` reads, however many optimizers a search
    puts beside it."""
    known, key = setting.program.cache, (make, setting.device, *reads)
    if key not in known:
        known[key] = make(setting)
    found: Made = known[key]
    return found


def without_graph(
    setting: Setting,
    config: Config,
    *,
    sizes: Sizes | None = None,
    dtype: Dtype | None = None,
    head: bool = True,
    kv_cache: str | None = None,
) -> Program:
    """A model recorded under no_grad and eval(). `dtype`: a companion's own weights, without the policy's adapters."""
    own = setting.program.regime
    regime = replace(own, grad=False, training=False, fused=own.fused - {"loss"})
    if kv_cache is not None:
        regime = replace(regime, kv_cache=kv_cache)
    if dtype is not None:
        regime = replace(regime, weights=dtype, lora=None, quantized=None)
    program = record(config, regime, sizes or setting.sizes)
    return program if head else backbone(program)


def backbone(program: Program) -> Program:
    """Without the head over the vocabulary: what a reward or value model runs."""
    names = [placed.name for placed in program.sections]
    if "head" in names:
        del program.sections[names.index("head") :]
    return program


def peak_of(program: Program) -> Number:
    """The largest moment of a pass without graph."""
    peaks = peak_by_phase(program, KEPT)
    return maximum(peaks[FORWARD], peaks[LOSS]) if LOSS in peaks else peaks[FORWARD]


def kept_after_forward(program: Program) -> Number:
    """What a forward pass with graph leaves alive."""
    level: Number = 0
    known: dict[int, tuple[list[Event], Number]] = {}  # with the lists whose ids are keys
    for chunk in passes(program, KEPT):
        if chunk.phase in (FORWARD, LOSS):
            if id(chunk.events) not in known:
                net = sum((event.sign * event.nbytes for event in chunk.events), 0)
                known[id(chunk.events)] = (chunk.events, net)
            level = level + known[id(chunk.events)][1]
    return level
