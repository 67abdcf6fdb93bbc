"""A ParamBreakdown → sheet and JSON."""

from __future__ import annotations

from typing import Any

from vramcast.models.blocks import Block, Line, ParamBreakdown, layer_ranges
from vramcast.models.record.tape import Param
from vramcast.report.as_json import SCHEMA
from vramcast.report.table import Column, Row, Table
from vramcast.report.words import say
from vramcast.report.words.catalog import LABELS
from vramcast.units import format_gib


def params_table(bill: ParamBreakdown, lang: str) -> Table:
    """Blocks with their tensors: what one layer has, and what all of them have."""
    columns = (
        Column(title=say(LABELS, "part", lang)),
        Column(title=say(LABELS, "shape", lang), right=True),
        Column(title=say(LABELS, "each", lang), right=True),
        Column(title=say(LABELS, "all", lang), right=True),
        Column(title=say(LABELS, "share", lang), right=True),
    )
    rows = [row for block in bill.blocks for row in _block_rows(block, bill.total, lang)]
    rows.append(
        Row(
            cells=(
                say(LABELS, "total", lang),
                "",
                "",
                f"{bill.total:,}",
                _share(bill.total, bill.total),
            ),
            strong=True,
        )
    )
    return Table(
        title=_title(bill, lang), columns=columns, rows=tuple(rows), below=_remarks(bill, lang)
    )


def tensors_table(bill: ParamBreakdown, lang: str) -> Table:
    """Every tensor under its full name."""
    columns = (
        Column(title=say(LABELS, "tensor", lang)),
        Column(title=say(LABELS, "shape", lang), right=True),
        Column(title=say(LABELS, "kind", lang)),
        Column(title=say(LABELS, "parameters", lang), right=True),
    )
    rows = [
        Row(
            cells=(
                param.name,
                _shape(param.shape),
                param.kind,
                say(LABELS, "tied", lang) if param.tied_to else f"{param.numel:,}",
            )
        )
        for param in bill.source.table()
    ]
    rows.append(Row(cells=(say(LABELS, "total", lang), "", "", f"{bill.total:,}"), strong=True))
    return Table(
        title=_title(bill, lang), columns=columns, rows=tuple(rows), below=_remarks(bill, lang)
    )


def params_json(bill: ParamBreakdown, *, tensors: bool) -> dict[str, Any]:
    model = {
        "name": bill.source.name,
        "params_total": bill.total,
        "params_trainable": bill.trainable,
    }
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "model": model,
        "blocks": [_block_json(block) for block in bill.blocks],
    }
    if tensors:
        data["tensors"] = [_tensor_json(param) for param in bill.source.table()]
    return data | {"assumptions": list(bill.source.notes), "warnings": list(bill.source.warnings)}


def _title(bill: ParamBreakdown, lang: str) -> str:
    in_fp32 = f"{format_gib(4 * bill.total)} {say(LABELS, 'in fp32', lang)}"
    in_16_bit = f"{format_gib(2 * bill.total)} {say(LABELS, 'in 16 bit', lang)}"
    sizes = f"{in_fp32}, {in_16_bit}"
    if bill.source.params is not None and bill.source.config is None:
        stored = sum(param.nbytes for param in bill.source.params if param.tied_to is None)
        sizes = f"{format_gib(stored)} {say(LABELS, 'as stored', lang)}"
    count = f"{bill.total:,} {say(LABELS, 'parameters', lang)}"
    if bill.trainable != bill.total:
        count += f" ({bill.trainable:,} {say(LABELS, 'trainable', lang)})"
    return f"{bill.source.name}: {count}, {sizes}"


def _remarks(bill: ParamBreakdown, lang: str) -> tuple[str, ...]:
    ties = (
        say(LABELS, "same tensor", lang, name=param.name, other=param.tied_to)
        for param in bill.source.table()
        if param.tied_to
    )
    notes = (f"{say(LABELS, 'note', lang)}: {text}" for text in bill.source.notes)
    warnings = (f"{say(LABELS, 'warning', lang)}: {text}" for text in bill.source.warnings)
    return (*ties, *notes, *warnings)


def _block_rows(block: Block, total: int, lang: str) -> list[Row]:
    each = f"{block.numel_each:,}" if block.layers else ""
    head = Row(
        cells=(_block_name(block, lang), "", each, f"{block.numel:,}", _share(block.numel, total)),
        strong=True,
    )
    return [head, *(_line_row(line, block, total, lang) for line in block.lines)]


def _block_name(block: Block, lang: str) -> str:
    if not block.layers:
        return say(LABELS, block.name, lang) if block.name in ("embedding", "head") else block.name
    name, ranges = block.name.removesuffix(".{i}"), layer_ranges(block.layers)
    if len(block.layers) == 1:
        return f"{name}: {say(LABELS, 'layer', lang)} {ranges}"
    return f"{name}: {say(LABELS, 'layers', lang)} {ranges} (×{len(block.layers)})"


def _line_row(line: Line, block: Block, total: int, lang: str) -> Row:
    name = line.name if line.count == 1 else f"{line.name} ×{line.count}"
    if line.tied_to:
        return Row(cells=(name, _shape(line.shape), "", say(LABELS, "tied", lang), ""), depth=1)
    numel = line.numel * max(1, len(block.layers))
    each = f"{line.numel:,}" if block.layers else ""
    return Row(cells=(name, _shape(line.shape), each, f"{numel:,}", _share(numel, total)), depth=1)


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(str(int(n)) for n in shape)


def _share(part: int, total: int) -> str:
    return f"{part / total:.2%}" if total else ""


def _block_json(block: Block) -> dict[str, Any]:
    return {
        "name": block.name,
        "layers": list(block.layers),
        "params_each": block.numel_each,
        "params": block.numel,
        "lines": [
            {
                "name": line.name,
                "shape": list(line.shape),
                "kind": line.kind,
                "count": line.count,
                "params": line.numel,
                "tied_to": line.tied_to,
                "trainable": line.trainable,
            }
            for line in block.lines
        ],
    }


def _tensor_json(param: Param) -> dict[str, Any]:
    return {
        "name": param.name,
        "shape": [int(n) for n in param.shape],
        "kind": param.kind,
        "params": param.numel,
        "tied_to": param.tied_to,
        "trainable": param.trainable,
    }
