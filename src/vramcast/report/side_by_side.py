"""Several Forecasts as one table: a column each, a row per category at its peak, what differs in the jobs on top."""

from __future__ import annotations

from vramcast.forecast import Forecast
from vramcast.job import job_values
from vramcast.ledger import Level
from vramcast.report.words.bill import word
from vramcast.units import GiB


def render(names: list[str], forecasts: list[Forecast], *, markdown: bool, lang: str) -> str:
    header = ["", *(_short(name) for name in names)]
    rows = [*_differences(forecasts), *_categories(forecasts, lang), *_totals(forecasts, lang)]
    return _markdown(header, rows) if markdown else _plain(header, rows)


def _short(name: str) -> str:
    return name if len(name) <= 40 else f"{name[:39]}…"


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
    at_peak = []
    for forecast in forecasts:
        peak = forecast.verdict().peak
        at_peak.append(forecast.ledger.grouped(lambda entry: str(entry.category), phase=peak.phase, place=peak.place))
    names = dict.fromkeys(name for groups in at_peak for name in groups)
    return [[word(name, lang), *(_gib(groups.get(name)) for groups in at_peak)] for name in names]


def _gib(nbytes: int | None) -> str:
    return "–" if nbytes is None else f"{nbytes / GiB:,.2f}"


def _totals(forecasts: list[Forecast], lang: str) -> list[list[str]]:
    verdicts = [forecast.verdict() for forecast in forecasts]
    fits = {True: "FITS", False: "DOES NOT FIT", None: "–"}
    return [
        [str(Level.ALLOCATED), *(_gib(verdict.allocated_bytes) for verdict in verdicts)],
        [str(Level.RESERVED), *(_gib(verdict.reserved_bytes) for verdict in verdicts)],
        [str(Level.PROCESS), *(_gib(verdict.process_bytes) for verdict in verdicts)],
        [word("at", lang), *(word(verdict.peak.phase, lang) for verdict in verdicts)],
        ["GPU", *(_gib(verdict.capacity_bytes) for verdict in verdicts)],
        ["", *(word(fits[verdict.fits], lang) for verdict in verdicts)],
    ]


def _plain(header: list[str], rows: list[list[str]]) -> str:
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = ["  ".join(_cell(text, width, column) for column, (text, width) in enumerate(zip(row, widths, strict=True)))
             for row in (header, *rows)]  # fmt: skip
    return "\n".join(line.rstrip() for line in ("GiB at the peak of each job", *lines))


def _cell(text: str, width: int, column: int) -> str:
    return text.ljust(width) if column == 0 else text.rjust(width)


def _markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (header, *rows)]
    return "\n".join([lines[0], "|---" + "|--:" * (len(header) - 1) + "|", *lines[1:]])
