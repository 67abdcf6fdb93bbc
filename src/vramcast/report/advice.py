"""Advice that was priced, as text, Markdown or JSON: one line for each, with what it frees and whether it fits."""

from __future__ import annotations

from typing import Any

from vramcast.forecast import Forecast
from vramcast.job import fields, job_values
from vramcast.plan.advice import Priced
from vramcast.plan.ranking import fits_surely, peak_bytes
from vramcast.report.as_json import SCHEMA, verdict_json
from vramcast.report.bill import headline
from vramcast.report.plan_report import columns, ratio
from vramcast.report.sheet import Row, Sheet, as_markdown, as_text
from vramcast.report.words.plan import plan_word
from vramcast.units import GiB, format_gib

TITLES = ("advice", "allocated", "frees", "process", "left", "time per token", "fits")


def render_advice(base: Forecast, priced: tuple[Priced, ...], *, markdown: bool = False, lang: str = "en") -> str:
    show = as_markdown if markdown else as_text
    first = headline(base.verdict(), lang)
    sheet = Sheet(
        title=plan_word("advice, priced line by line", lang), columns=columns(lang, *TITLES),
        rows=(_given(base, lang), *(_row(line, lang) for line in priced)), below=_notes(priced),
    )  # fmt: skip
    return "\n\n".join((f"**{first}**" if markdown else first, show(sheet)))


def _notes(priced: tuple[Priced, ...]) -> tuple[str, ...]:
    return tuple(f"{line.text}: {line.reason}" for line in priced if line.reason)


def _given(base: Forecast, lang: str) -> Row:
    return Row(cells=(plan_word("as given", lang), *_levels(base, "–", "×1.00", lang)))


def _row(line: Priced, lang: str) -> Row:
    name = plan_word(line.text, lang)
    if line.forecast is None:
        return Row(cells=(name, *("–",) * (len(TITLES) - 1)))
    frees = round(line.frees_bytes / GiB, 2) + 0.0  # no minus before nothing
    return Row(cells=(name, *_levels(line.forecast, f"{frees:,.2f} GiB", ratio(line.slowdown), lang)))


def _levels(forecast: Forecast, frees: str, time: str, lang: str) -> tuple[str, ...]:
    verdict = forecast.verdict()
    left = "–" if verdict.headroom_bytes is None else f"{verdict.headroom_bytes / GiB:+,.2f}"
    allocated = "–" if verdict.allocated_bytes is None else format_gib(verdict.allocated_bytes)
    return allocated, frees, format_gib(peak_bytes(forecast)), left, time, plan_word(_answer(forecast), lang)


def _answer(forecast: Forecast) -> str:
    if fits_surely(forecast):
        return "yes"
    return "barely" if forecast.verdict().fits else "no"


def advice_json(base: Forecast, priced: tuple[Priced, ...]) -> dict[str, Any]:
    return {
        "schema": SCHEMA, "verdict": verdict_json(base.verdict()), "advice": [_line_json(line, base) for line in priced]
    }  # fmt: skip


def _line_json(line: Priced, base: Forecast) -> dict[str, Any]:
    assert base.job is not None
    given, now = job_values(base.job), job_values(line.job)
    verdict = None if line.forecast is None else line.forecast.verdict()
    return {
        "advice": line.text, "changes": {name: now[name] for name in fields() if now[name] != given[name]},
        "fits": None if line.forecast is None else fits_surely(line.forecast),
        "frees_bytes": None if line.forecast is None else line.frees_bytes,
        "peak": None if verdict is None else {
            "allocated_bytes": verdict.allocated_bytes, "reserved_bytes": verdict.reserved_bytes,
            "process_bytes": verdict.process_bytes, "phase": verdict.peak.phase, "place": verdict.peak.place,
            "headroom_bytes": verdict.headroom_bytes,
        },
        "slowdown": None if line.slowdown is None else list(line.slowdown), "reason": line.reason,
    }  # fmt: skip
