"""What generate() took on the virtual GPU → Forecast: the same phases and lines as by formula."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from vramcast.catalog.gpus import Gpu
from vramcast.engine.bill import Bill, Remarks
from vramcast.engine.generation import (
    PHASES_OF_GENERATION,
    Generation,
    assumptions_of,
    host_entries,
)
from vramcast.engine.lines.amounts import Amounts
from vramcast.engine.lines.overheads import context_entries
from vramcast.engine.lines.states import from_count
from vramcast.engine.recording.record import DEVICE
from vramcast.forecast import Forecast, ModelSummary
from vramcast.ledger import DECODE, PREFILL, Category, Entry, Level, Origin
from vramcast.models.read.source import ModelSource

SOURCE = "generate() on the virtual GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedGeneration:
    """Bytes that the virtual GPU saw. A phase has `allocated` at its end, `peak`, `reserved` and `cache_bytes`."""

    params_total: int
    weight_bytes: int
    buffer_bytes: int
    prefill: Mapping[str, int]
    decode: Mapping[str, int]


def bill_traced_generation(
    run: Generation,
    source: ModelSource,
    gpu: Gpu | None,
    traced: TracedGeneration,
    remarks: Remarks,
) -> Forecast:
    """The forecast of a job whose generate() was traced. `remarks`: what the trace has to say."""
    states = from_count(traced.params_total, run.setup)
    layers = run.config.data.get("num_hidden_layers")
    entries = [
        *_lines(run, traced),
        *context_entries(run.setup.versions, run.gpu, DEVICE),
        *host_entries(run, states),
    ]
    bill = Bill(
        job=run.job,
        gpu=gpu,
        model=ModelSummary(
            name=source.name,
            params_total=traced.params_total,
            params_trainable=0,
            family=run.config.model_type,
            num_layers=layers if isinstance(layers, int) else None,
        ),
        entries=entries,
        phases=PHASES_OF_GENERATION,
        remarks=Remarks(
            assumptions=(*remarks.assumptions, *assumptions_of(run)),
            warnings=(*source.notes, *source.warnings, *remarks.warnings),
            notes=remarks.notes,
        ),
    )
    return bill.forecast()


def _lines(run: Generation, traced: TracedGeneration) -> Iterator[Entry]:
    """The parts of each phase's peak: weights, what the cache holds, and the rest, which a pass takes while it runs."""
    weights = run.setup.precision.weights.name
    yield from _line(
        Category.WEIGHTS,
        f"frozen, {weights}",
        dict.fromkeys(PHASES_OF_GENERATION, traced.weight_bytes),
        f"{traced.params_total:,} parameters",
    )
    yield from _line(
        Category.WEIGHTS,
        "buffers",
        dict.fromkeys(PHASES_OF_GENERATION, traced.buffer_bytes),
        "tensors that the model registers beside its parameters",
    )
    phases = {PREFILL: traced.prefill, DECODE: traced.decode}
    held = traced.weight_bytes + traced.buffer_bytes
    caches = {phase: found["cache_bytes"] for phase, found in phases.items()}
    yield from _line(
        Category.CACHE, "keys, values and states", caches, "tensors of past_key_values"
    )
    rest = {phase: max(found["peak"] - held - caches[phase], 0) for phase, found in phases.items()}
    yield from _line(
        Category.TEMPORARY,
        "a pass's tensors, one layer at a time",
        rest,
        "the peak without weights and cache",
    )
    # Blocks that the pass over the prompt left are there for decoding too.
    reserved = traced.prefill["reserved"]
    slack = {phase: max(reserved - found["peak"], 0) for phase, found in phases.items()}
    yield from _line(
        Category.SLACK,
        "reserved but unallocated",
        slack,
        "torch.cuda.max_memory_reserved",
        level=Level.RESERVED,
        origin=Origin.SIMULATED,
    )


def _line(
    category: Category,
    component: str,
    by_phase: Mapping[str, int],
    formula: str,
    *,
    level: Level = Level.ALLOCATED,
    origin: Origin = Origin.TRACED,
) -> Iterator[Entry]:
    amounts = Amounts(
        category=category,
        component=component,
        place=DEVICE,
        origin=origin,
        level=level,
        formula=formula,
        source=SOURCE,
        by_phase=dict(by_phase),
    )
    yield from amounts.entries()
