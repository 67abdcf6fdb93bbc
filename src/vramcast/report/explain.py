"""`--explain LINE`: the lines whose name matches, with formula, numbers put in, who needs it and the source."""

from __future__ import annotations

from collections.abc import Iterator

from vramcast.catalog.gpus import find_gpu
from vramcast.engine.lines.training_step import stack_name
from vramcast.engine.program import record_job
from vramcast.engine.recording.record import sizes_of
from vramcast.engine.stream.checkpointing import recompute_rule
from vramcast.engine.stream.saved_tensors import Kept, kept
from vramcast.errors import UnsupportedError
from vramcast.forecast import Forecast
from vramcast.job import Job
from vramcast.ledger import Entry
from vramcast.models.read.model import read_model
from vramcast.models.record.dims import product_text
from vramcast.models.record.program import Program
from vramcast.models.record.tape import Placed, Value
from vramcast.units import format_bytes


def explain(job: Job, forecast: Forecast, line: str) -> str:
    entries = [entry for entry in forecast.ledger.entries if _matches(entry, line)]
    if not entries:
        names = dict.fromkeys(f"{entry.category}: {entry.component}" for entry in forecast.ledger.entries)
        raise UnsupportedError(f"no line matches {line!r}. Lines of this bill: {'; '.join(names)}.")
    parts = [text for entry in entries for text in _entry_text(entry)]
    if job.model is not None and any(str(entry.category) == "activations" for entry in entries):
        parts += _tensors(job, {entry.component for entry in entries})
    return "\n".join(parts)


def _matches(entry: Entry, line: str) -> bool:
    return line.lower() in f"{entry.category}: {entry.component}".lower()


def _entry_text(entry: Entry) -> Iterator[str]:
    yield f"{entry.category}: {entry.component}   {format_bytes(entry.nbytes)} = {entry.nbytes:,} B   on {entry.place}"
    yield f"  alive in   {', '.join(entry.phases)}"
    if entry.formula:
        yield f"  formula    {entry.formula}"
    if entry.range_bytes:
        yield f"  range      {format_bytes(entry.range_bytes[0])} to {format_bytes(entry.range_bytes[1])}"
    yield f"  known by   {entry.origin}{f', {entry.source}' if entry.source else ''}"


def _tensors(job: Job, components: set[str]) -> list[str]:
    """What one layer of each named stack keeps, tensor by tensor."""
    assert job.model is not None
    config = read_model(job.model).config
    if config is None:
        return []
    program = record_job(job, config, find_gpu(job.gpu) if job.gpu else None, sizes_of(job, config))
    lines: list[str] = []
    for placed, count in _kinds(program):
        if stack_name(placed) in components:
            how = recompute_rule(job)(placed)
            note = "" if how == "none" else " while it is recomputed"
            lines += ["", f"{placed.section.name} × {count}: kept for backward{note}, tensor by tensor"]
            lines += [_kept_text(item) for item in kept(placed.section)]
    return lines


def _kinds(program: Program) -> list[tuple[Placed, int]]:
    counts: dict[int, tuple[Placed, int]] = {}
    for placed in program.placed:
        first, count = counts.get(id(placed.section), (placed, 0))
        counts[id(placed.section)] = (first, count + 1)
    return list(counts.values())


def _kept_text(item: Kept) -> str:
    value = item.value
    return (
        f"  {format_bytes(int(value.nbytes)):>12}  {value.label or 'statistics'} {value.dtype.name}   "
        f"{formula_text(value)}   needed by {', '.join(item.needed_by)}"
    )


def formula_text(value: Value) -> str:
    """`b·s·h·4 = 2·256·3072·4`: the names, then the numbers put in."""
    names = product_text(value.shape, value.dtype.nbytes)
    numbers = product_text([int(dim) for dim in value.shape], value.dtype.nbytes)
    return numbers if names == numbers else f"{names} = {numbers}"
