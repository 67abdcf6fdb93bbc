"""A sweep over requests and lengths of a serving engine, as a table, CSV or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramcast.report.as_json import SCHEMA
from vramcast.report.serving import NAMES
from vramcast.report.table import Column, Row, Table, as_markdown, as_text
from vramcast.report.words import say
from vramcast.report.words.serving import SWEEP
from vramcast.units import GiB, format_gib

if TYPE_CHECKING:
    from vramcast.engine import ServingSweep


def render_text(
    sweep: ServingSweep, *, markdown: bool = False, lang: str = "en", width: int | None = None
) -> str:
    columns = (
        Column(title=say(SWEEP, "corner", lang), right=True),
        *(Column(title=f"{length:,} ", right=True) for length in sweep.lengths),
    )
    rows = [
        Row(cells=(f"{count:,}", *_cells(sweep, row))) for row, count in enumerate(sweep.requests)
    ]
    rows.append(Row(cells=(say(SWEEP, "most", lang), *(f"{one:,} " for one in sweep.at_once))))
    table = Table(title=_title(sweep, lang), columns=columns, rows=tuple(rows), below=())
    return as_markdown(table) if markdown else as_text(table, width)


def _cells(sweep: ServingSweep, row: int) -> list[str]:
    marks = ["×" if _is_too_much(sweep, row, at) else " " for at in range(len(sweep.lengths))]
    return [f"{sweep.needed_bytes[row][at] / GiB:,.2f}{mark}" for at, mark in enumerate(marks)]


def _is_too_much(sweep: ServingSweep, row: int, column: int) -> bool:
    return sweep.needed_bytes[row][column] > sweep.kv_bytes[column]


def _title(sweep: ServingSweep, lang: str) -> str:
    gpu = sweep.forecast.gpu
    return say(
        SWEEP,
        "title",
        lang,
        model=sweep.job.model,
        gpu=gpu.name if gpu else "",
        engine=NAMES[sweep.job.engine or ""],
        capacity=format_gib(max(sweep.kv_bytes, default=0)),
    )


def render_csv(sweep: ServingSweep) -> str:
    lines = ["requests,tokens,kv_bytes,fits"]
    for row, count in enumerate(sweep.requests):
        lines += [
            f"{count},{length},{sweep.needed_bytes[row][at]},{int(not _is_too_much(sweep, row, at))}"
            for at, length in enumerate(sweep.lengths)
        ]
    return "\n".join(lines)


def sweep_json(sweep: ServingSweep) -> dict[str, Any]:
    points = [
        {
            "requests": count,
            "tokens": length,
            "kv_bytes": sweep.needed_bytes[row][at],
            "fits": not _is_too_much(sweep, row, at),
        }
        for row, count in enumerate(sweep.requests)
        for at, length in enumerate(sweep.lengths)
    ]
    at_once = [
        {"tokens": length, "requests": count, "kv_bytes": kv}
        for length, count, kv in zip(sweep.lengths, sweep.at_once, sweep.kv_bytes, strict=True)
    ]
    return {"schema": SCHEMA, "points": points, "requests_at_once": at_once}
