"""Several Forecasts as one table: a column each, a row per category at its peak, what differs in the jobs on top."""

from __future__ import annotations

from collections.abc import Sequence

from vramcast.forecast import Forecast
from vramcast.job import job_values
from vramcast.ledger import Level
from vramcast.report.phases import phase_name
from vramcast.report.table import Column, Row, Table, as_markdown, as_text
from vramcast.report.verdict import answer_text
from vramcast.report.words import say
from vramcast.report.words.forecast import CATEGORIES, LEVELS
from vramcast.report.words.tables import COMPARE
from vramcast.units import GiB

LONGEST_NAME = 40


def render(
    names: Sequence[str],
    forecasts: list[Forecast],
    *,
    markdown: bool,
    lang: str,
    width: int | None = None,
) -> str:
    columns = (Column(title=""), *(Column(title=_short(name), right=True) for name in names))
    rows = [
        *_differences(forecasts),
        *_categories(forecasts, lang),
        *_totals(forecasts, lang),
    ]
    table = Table(
        title=say(COMPARE, "title", lang),
        columns=columns,
        rows=tuple(Row(cells=tuple(cells)) for cells in rows),
    )
    return as_markdown(table) if markdown else as_text(table, width)


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def _differences(forecasts: list[Forecast]) -> list[list[str]]:
    """Job keys that are not the same everywhere."""
    jobs = [job_values(forecast.job) for forecast in forecasts if forecast.job]
    keys = [key for key in jobs[0] if len({str(job[key]) for job in jobs}) > 1]
    return [[key, *(_shown(job[key]) for job in jobs)] for key in keys]


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "–"
    return "–" if value is None else str(value)


def _categories(forecasts: list[Forecast], lang: str) -> list[list[str]]:
    at_peaks = [_categories_at_peak(forecast) for forecast in forecasts]
    names = dict.fromkeys(name for sums in at_peaks for name in sums)
    return [
        [say(CATEGORIES, name, lang), *(_gib(sums.get(name)) for sums in at_peaks)]
        for name in names
    ]


def _categories_at_peak(forecast: Forecast) -> dict[str, int]:
    peak = forecast.verdict().peak
    return forecast.ledger.grouped(
        lambda entry: str(entry.category), phase=peak.phase, place=peak.place
    )


def _gib(nbytes: int | None) -> str:
    return "–" if nbytes is None else f"{nbytes / GiB:,.2f}"


def _totals(forecasts: list[Forecast], lang: str) -> list[list[str]]:
    verdicts = [forecast.verdict() for forecast in forecasts]
    fits = ["–" if each.answer is None else answer_text(each.answer, lang) for each in verdicts]
    return [
        [_level(Level.ALLOCATED, lang), *(_gib(each.allocated_bytes) for each in verdicts)],
        [_level(Level.RESERVED, lang), *(_gib(each.reserved_bytes) for each in verdicts)],
        [_level(Level.PROCESS, lang), *(_gib(each.process_bytes) for each in verdicts)],
        [say(COMPARE, "phase", lang), *(phase_name(each.peak.phase, lang) for each in verdicts)],
        [say(COMPARE, "gpu", lang), *(_gib(each.capacity_bytes) for each in verdicts)],
        [say(COMPARE, "verdict", lang), *fits],
    ]


def _level(level: Level, lang: str) -> str:
    return say(LEVELS, str(level), lang)
