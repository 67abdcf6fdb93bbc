"""Two forecasts side by side as HTML: verdicts, bars on one scale, and every group with its difference."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from vramcast.forecast import Forecast
from vramcast.report.html import Scale, bar_html, common_scale, parts_at, verdict_html
from vramcast.report.html_document import gib
from vramcast.report.words import say
from vramcast.report.words.page import PAGE, PARTS


def compare_html(names: Sequence[str], forecasts: Sequence[Forecast], lang: str) -> str:
    """The first is what the others are compared with."""
    whole = common_scale(forecasts).whole
    blocks = []
    for name, forecast in zip(names, forecasts, strict=True):
        verdict = forecast.verdict()
        scale = Scale(whole=whole, capacity=verdict.capacity_bytes)
        blocks.append(
            f"<section><h2>{escape(name)}</h2>{verdict_html(verdict, lang)}{bar_html(forecast, scale, lang)}</section>"
        )
    return "".join(blocks) + _table(names, forecasts, lang)


def _table(names: Sequence[str], forecasts: Sequence[Forecast], lang: str) -> str:
    peaks = [forecast.verdict().peak for forecast in forecasts]
    sums = [
        parts_at(forecast.ledger, peak.phase, peak.place)
        for forecast, peak in zip(forecasts, peaks, strict=True)
    ]
    head = "".join(f'<th scope="col" class="number">{escape(name)}</th>' for name in names)
    rows = []
    for part in PARTS:
        if any(part in each for each in sums):
            rows.append(_row(say(PARTS, part, lang), [each.get(part, 0) for each in sums]))
    total = [forecast.verdict().highest_bytes for forecast in forecasts]
    rows.append(_row(say(PAGE, "peak", lang), total))
    head += f'<th scope="col" class="number">{escape(say(PAGE, "difference", lang))}</th>'
    top = f"<thead><tr><td></td>{head}</tr></thead>"
    return f'<div class="wide"><table>{top}<tbody>{"".join(rows)}</tbody></table></div>'


def _row(name: str, sizes: Sequence[int]) -> str:
    change = sizes[-1] - sizes[0]
    sign = "−" if change < 0 else "+"
    text = f"{sign}{gib(abs(change))}" if change else "·"
    cells = "".join(f'<td class="number">{gib(size)}</td>' for size in sizes)
    return f'<tr><th scope="row">{escape(name)}</th>{cells}<td class="number">{text}</td></tr>'
