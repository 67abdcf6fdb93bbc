"""A ParamBill → sheet and JSON."""

from __future__ import annotations

from typing import Any

from vramcast.models.blocks import Block, Line, ParamBill, layer_ranges
from vramcast.models.record.tape import Param
from vramcast.report.sheet import Column, Row, Sheet, Words
from vramcast.units import format_gib

SCHEMA = "vramcast/1"


def params_sheet(bill: ParamBill, w: Words) -> Sheet:
    """Blocks with their tensors: what one layer has, and what all of them have."""
    columns = (
        Column(title=w("part")), Column(title=w("shape"), right=True), Column(title=w("each"), right=True),
        Column(title=w("all"), right=True), Column(title=w("share"), right=True),
    )  # fmt: skip
    rows = [row for block in bill.blocks for row in _block_rows(block, bill.total, w)]
    rows.append(Row(cells=(w("total"), "", "", f"{bill.total:,}", _share(bill.total, bill.total)), strong=True))
    return Sheet(title=_title(bill, w), columns=columns, rows=tuple(rows), below=_remarks(bill, w))


def tensors_sheet(bill: ParamBill, w: Words) -> Sheet:
    """Every tensor under its full name."""
    columns = (
        Column(title=w("tensor")), Column(title=w("shape"), right=True), Column(title=w("kind")),
        Column(title=w("parameters"), right=True),
    )  # fmt: skip
    rows = [
        Row(cells=(param.name, _shape(param.shape), param.kind, w("tied") if param.tied_to else f"{param.numel:,}"))
        for param in bill.source.table()
    ]
    rows.append(Row(cells=(w("total"), "", "", f"{bill.total:,}"), strong=True))
    return Sheet(title=_title(bill, w), columns=columns, rows=tuple(rows), below=_remarks(bill, w))


def params_json(bill: ParamBill, *, tensors: bool) -> dict[str, Any]:
    model = {"name": bill.source.name, "params_total": bill.total, "params_trainable": bill.trainable}
    data: dict[str, Any] = {"schema": SCHEMA, "model": model, "blocks": [_block_json(block) for block in bill.blocks]}
    if tensors:
        data["tensors"] = [_tensor_json(param) for param in bill.source.table()]
    return data | {"assumptions": list(bill.source.notes), "warnings": list(bill.source.warnings)}


def _title(bill: ParamBill, w: Words) -> str:
    sizes = f"{format_gib(4 * bill.total)} {w('in fp32')}, {format_gib(2 * bill.total)} {w('in 16 bit')}"
    if bill.source.params is not None and bill.source.config is None:
        stored = sum(param.nbytes for param in bill.source.params if param.tied_to is None)
        sizes = f"{format_gib(stored)} {w('as stored')}"
    frozen = f" ({bill.trainable:,} {w('trainable')})" if bill.trainable != bill.total else ""
    return f"{bill.source.name}: {bill.total:,} {w('parameters')}{frozen}, {sizes}"


def _remarks(bill: ParamBill, w: Words) -> tuple[str, ...]:
    ties = (
        f"{param.name} {w('is the same tensor as')} {param.tied_to}"
        for param in bill.source.table() if param.tied_to
    )  # fmt: skip
    notes = (f"{w('note')}: {text}" for text in bill.source.notes)
    return (*ties, *notes, *(f"{w('warning')}: {text}" for text in bill.source.warnings))


def _block_rows(block: Block, total: int, w: Words) -> list[Row]:
    each = f"{block.numel_each:,}" if block.layers else ""
    head = Row(cells=(_block_name(block, w), "", each, f"{block.numel:,}", _share(block.numel, total)), strong=True)
    return [head, *(_line_row(line, block, total, w) for line in block.lines)]


def _block_name(block: Block, w: Words) -> str:
    if not block.layers:
        return w(block.name) if block.name in ("embedding", "head") else block.name
    name, ranges = block.name.removesuffix(".{i}"), layer_ranges(block.layers)
    if len(block.layers) == 1:
        return f"{name}: {w('layer')} {ranges}"
    return f"{name}: {w('layers')} {ranges} (×{len(block.layers)})"


def _line_row(line: Line, block: Block, total: int, w: Words) -> Row:
    name = line.name if line.count == 1 else f"{line.name} ×{line.count}"
    if line.tied_to:
        return Row(cells=(name, _shape(line.shape), "", w("tied"), ""), depth=1)
    numel = line.numel * max(1, len(block.layers))
    each = f"{line.numel:,}" if block.layers else ""
    return Row(cells=(name, _shape(line.shape), each, f"{numel:,}", _share(numel, total)), depth=1)


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(str(int(n)) for n in shape)


def _share(part: int, total: int) -> str:
    return f"{part / total:.2%}" if total else ""


def _block_json(block: Block) -> dict[str, Any]:
    return {
        "name": block.name, "layers": list(block.layers), "params_each": block.numel_each, "params": block.numel,
        "lines": [
            {"name": line.name, "shape": list(line.shape), "kind": line.kind, "count": line.count,
             "params": line.numel, "tied_to": line.tied_to, "trainable": line.trainable}
            for line in block.lines
        ],
    }  # fmt: skip


def _tensor_json(param: Param) -> dict[str, Any]:
    return {
        "name": param.name, "shape": [int(n) for n in param.shape], "kind": param.kind, "params": param.numel,
        "tied_to": param.tied_to, "trainable": param.trainable,
    }  # fmt: skip
