"""Advice that was priced, as text, Markdown or JSON: one line for each, with what it frees and whether it fits."""

from __future__ import annotations

from typing import Any

from vramcast.forecast import Forecast
from vramcast.job import fields, job_values
from vramcast.plan.advice import Priced
from vramcast.report.as_json import SCHEMA, answer_json, verdict_json
from vramcast.report.plan_report import columns, ratio
from vramcast.report.table import Row, Table, as_markdown, as_text
from vramcast.report.verdict import headline
from vramcast.report.words import say
from vramcast.report.words.plan import ANSWERS, HEADINGS, MOVES
from vramcast.units import GiB, format_gib

TITLES = ("advice", "allocated", "frees", "process", "left", "time", "fits")


def render_advice(
    given: Forecast,
    priced: tuple[Priced, ...],
    *,
    markdown: bool = False,
    lang: str = "en",
    width: int | None = None,
) -> str:
    """`given`: the job as it is. The first of `priced` is the same job, without any advice."""
    first = headline(given.verdict(), lang)
    table = Table(
        title=say(HEADINGS, "advice", lang),
        columns=columns(lang, *TITLES),
        rows=tuple(_row(line, lang) for line in priced),
        below=tuple(f"{line.text}: {line.reason}" for line in priced if line.reason),
    )
    shown = as_markdown(table) if markdown else as_text(table, width)
    return "\n\n".join((f"**{first}**" if markdown else first, shown))


def _row(line: Priced, lang: str) -> Row:
    name = _name(line, lang)
    if line.forecast is None:
        return Row(cells=(name, *("–",) * (len(TITLES) - 1)))
    verdict = line.forecast.verdict()
    left = "–" if verdict.headroom_bytes is None else f"{verdict.headroom_bytes / GiB:+,.2f}"
    allocated = "–" if verdict.allocated_bytes is None else format_gib(verdict.allocated_bytes)
    cells = (
        name,
        allocated,
        _freed(line),
        format_gib(verdict.highest_bytes),
        left,
        ratio(line.slowdown),
        say(ANSWERS, _answer(line), lang),
    )
    return Row(cells=cells)


def _name(line: Priced, lang: str) -> str:
    """A move by its name; job keys as the user wrote them."""
    if line.is_given:
        return say(HEADINGS, "as_given", lang)
    return say(MOVES, line.text, lang) if line.text in MOVES else line.text


def _freed(line: Priced) -> str:
    if line.is_given:
        return "–"
    gib = round(line.frees_bytes / GiB, 2) + 0.0  # no minus before nothing
    return f"{gib:,.2f} GiB"


def _answer(line: Priced) -> str:
    if line.fits:
        return "yes"
    fits_by_the_estimate = line.forecast is not None and line.forecast.verdict().fits
    return "barely" if fits_by_the_estimate else "no"


def advice_json(given: Forecast, priced: tuple[Priced, ...]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "verdict": verdict_json(given.verdict()),
        "advice": [_line_json(line, given) for line in priced if not line.is_given],
    }


def _line_json(line: Priced, given: Forecast) -> dict[str, Any]:
    assert given.job is not None
    before, after = job_values(given.job), job_values(line.job)
    verdict = None if line.forecast is None else line.forecast.verdict()
    return {
        "advice": line.text,
        "changes": {name: after[name] for name in fields() if after[name] != before[name]},
        "answer": None if verdict is None else answer_json(verdict.answer),
        "fits": None if line.forecast is None else line.fits,
        "frees_bytes": None if line.forecast is None else line.frees_bytes,
        "peak": None
        if verdict is None
        else {
            "allocated_bytes": verdict.allocated_bytes,
            "reserved_bytes": verdict.reserved_bytes,
            "process_bytes": verdict.process_bytes,
            "phase": verdict.peak.phase,
            "place": verdict.peak.place,
            "headroom_bytes": verdict.headroom_bytes,
        },
        "slowdown": None if line.slowdown is None else list(line.slowdown),
        "reason": line.reason,
    }
