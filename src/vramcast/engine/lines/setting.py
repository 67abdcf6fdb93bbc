"""Setting: what lines other than the step's are computed from (job, recorded model, device); and OtherLines: their
result."""

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
    """A pass in addition to the step, for the allocator: its phase, its device, its allocations and frees."""

    phase: str
    place: str
    stream: Callable[[], list[Stamped]]


def passing(phase: str, place: str, program: Program) -> Pass:
    """A pass that runs a program on its own and leaves nothing alive."""
    return Pass(phase, place, lambda: list(step_events(program, KEPT)))


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherLines:
    """What a part of the job adds to the step. `lines` of the breakdown (bytes may be numpy arrays) and `assumptions`
    for the report; for the allocator, `resident` (sizes of tensors on the training device), `passes`, and `blocks`
    (lines that are replayed as one block each, see `replay/extras.py`)."""

    lines: tuple[Amounts, ...] = ()
    resident: tuple[int, ...] = ()
    assumptions: tuple[str, ...] = ()
    passes: tuple[Pass, ...] = ()
    blocks: tuple[Amounts, ...] = ()

    def __add__(self, other: OtherLines) -> OtherLines:
        return OtherLines(
            lines=(*self.lines, *other.lines),
            resident=(*self.resident, *other.resident),
            assumptions=(*self.assumptions, *other.assumptions),
            passes=(*self.passes, *other.passes),
            blocks=(*self.blocks, *other.blocks),
        )


def once(setting: Setting, make: Callable[[Setting], Made], *reads: Hashable) -> Made:
    """The result of `make`, cached per recorded program and per value of the job's fields that `make` reads. A search
    that tries many optimizers computes it once."""
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
    adapters: bool = True,
) -> Program:
    """A model recorded under no_grad and eval(). With `dtype` it has its own weights, without the policy's adapters;
    with `adapters` False it is the policy itself without them."""
    own = setting.program.regime
    scores_in_tiles = own.tiled_loss and kv_cache is None  # TRL gives references the same head
    fused = own.fused if scores_in_tiles else own.fused - {"loss"}
    regime = replace(own, grad=False, training=False, fused=fused)
    if not adapters:
        regime = replace(regime, lora=None, copies=(), virtual_tokens=None)
    if kv_cache is not None:
        regime = replace(regime, kv_cache=kv_cache)
    if dtype is not None:
        regime = replace(
            regime, weights=dtype, lora=None, copies=(), virtual_tokens=None, quantized=None
        )
    program = record(config, regime, sizes or setting.sizes)
    return program if head else backbone(program)


def backbone(program: Program) -> Program:
    """The program without the head over the vocabulary, as a reward or value model runs it."""
    names = [placed.name for placed in program.sections]
    if "head" in names:
        del program.sections[names.index("head") :]
    return program


def peak_of(program: Program) -> Number:
    """Peak bytes of a pass without graph."""
    peaks = peak_by_phase(program, KEPT)
    return maximum(peaks[FORWARD], peaks[LOSS]) if LOSS in peaks else peaks[FORWARD]


def kept_after_forward(program: Program) -> Number:
    """Bytes that a forward pass with graph leaves alive."""
    level: Number = 0
    known: dict[int, tuple[list[Event], Number]] = {}  # by id of the list, which is kept with it
    for chunk in passes(program, KEPT):
        if chunk.phase in (FORWARD, LOSS):
            if id(chunk.events) not in known:
                net = sum((event.sign * event.nbytes for event in chunk.events), 0)
                known[id(chunk.events)] = (chunk.events, net)
            level = level + known[id(chunk.events)][1]
    return level
