"""`--explain LINE`: the lines whose name matches, each with its formula, its phases and its source; below them, for
activations, the tensors that one layer saves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from vramcast.ledger import Entry
from vramcast.report.phases import phase_name
from vramcast.report.table import align
from vramcast.units import format_bytes

if TYPE_CHECKING:
    from vramcast.engine import LayerTensors, SavedTensor


def render_entries(entries: Sequence[Entry], layers: Sequence[LayerTensors]) -> str:
    lines = [line for entry in entries for line in _entry_lines(entry)]
    lines += [line for layer in layers for line in _layer_lines(layer)]
    return "\n".join(lines)


def _entry_lines(entry: Entry) -> Iterator[str]:
    size = f"{format_bytes(entry.nbytes)} = {entry.nbytes:,} B"
    yield f"{entry.category}: {entry.component}   {size}   on {entry.place}"
    facts = [("alive in", ", ".join(phase_name(phase, "en") for phase in entry.phases))]
    if entry.formula:
        facts.append(("formula", entry.formula))
    if entry.range_bytes:
        low, high = entry.range_bytes
        facts.append(("range", f"{format_bytes(low)} to {format_bytes(high)}"))
    source = f", {entry.source}" if entry.source else ""
    facts.append(("known by", f"{entry.origin}{source}"))
    yield from align(facts, "ll")


def _layer_lines(layer: LayerTensors) -> Iterator[str]:
    moment = " while it is recomputed" if layer.is_recomputed else ""
    yield ""
    yield f"{layer.layer} × {layer.count}: saved for backward{moment}, tensor by tensor"
    yield from align([_tensor_cells(tensor) for tensor in layer.tensors], "rlll")


def _tensor_cells(tensor: SavedTensor) -> tuple[str, ...]:
    return (
        format_bytes(tensor.nbytes),
        f"{tensor.name or 'statistics'} {tensor.dtype}",
        tensor.formula,
        f"needed by {', '.join(tensor.needed_by)}",
    )
