"""Layouts of a serving engine over many GPUs, as text, Markdown or JSON."""

from __future__ import annotations

from typing import Any

from vramcast.plan.layouts import ServingLayout
from vramcast.report.as_json import SCHEMA, served_json
from vramcast.report.table import Column, Row, Table, as_markdown, as_text
from vramcast.report.words import say
from vramcast.report.words.serving import LAYOUTS
from vramcast.units import format_gib


def render_text(
    found: list[ServingLayout], *, top: int, markdown: bool, lang: str, width: int | None = None
) -> str:
    numbers = ("weights", "cache", "tokens", "at_once", "peak")
    columns = (
        Column(title="tp", right=True),
        Column(title="pp", right=True),
        *(Column(title=say(LAYOUTS, name, lang), right=True) for name in numbers),
        Column(title=""),
    )
    rows = tuple(Row(cells=_cells(each, lang)) for each in found[:top])
    below = (say(LAYOUTS, "each", lang),)
    table = Table(title="", columns=columns, rows=rows, below=below)
    return as_markdown(table) if markdown else as_text(table, width)


def _cells(each: ServingLayout, lang: str) -> tuple[str, ...]:
    served = each.served
    return (
        str(each.tp),
        str(each.pp),
        format_gib(served.weights_bytes),
        format_gib(served.kv_bytes),
        f"{served.kv_tokens:,}",
        f"{served.concurrency:,.2f}",
        format_gib(each.peak_bytes),
        "" if served.starts else say(LAYOUTS, "starts_not", lang),
    )


def layouts_json(found: list[ServingLayout], top: int) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "layouts": [
            {
                "tp": each.tp,
                "pp": each.pp,
                "peak_bytes": each.peak_bytes,
                "served": served_json(each.served),
            }
            for each in found[:top]
        ],
    }
