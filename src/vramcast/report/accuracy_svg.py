"""Predicted against measured, one dot per row, both axes logarithmic: an SVG written by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import log

from vramcast.accuracy.run import Outcome
from vramcast.units import GiB

SIZE, MARGIN = 640, 60
LOW_GIB, HIGH_GIB = 1.5, 100.0
TICKS_GIB = (2, 4, 8, 16, 32, 64)
COLOR_OF = {"allocated": "#1b6ca8", "active": "#5aa9e6", "reserved": "#d1495b", "nvml": "#2e933c"}
FONT = 'font-family="system-ui, sans-serif" font-size="13"'


def accuracy_svg(outcomes: Sequence[Outcome]) -> str:
    parts = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{SIZE}" height="{SIZE}" viewBox="0 0 {SIZE} {SIZE}">',
        f'<rect width="{SIZE}" height="{SIZE}" fill="white"/>',
        *_axes(),
        *_diagonals(),
        *(_dot(outcome) for outcome in outcomes),
        *_legend(outcomes),
        "</svg>",
    )
    return "\n".join(parts) + "\n"


def _at(gib: float) -> float:
    inner = SIZE - 2 * MARGIN
    return inner * log(gib / LOW_GIB) / log(HIGH_GIB / LOW_GIB)


def _x(gib: float) -> float:
    return round(MARGIN + _at(gib), 1)


def _y(gib: float) -> float:
    return round(SIZE - MARGIN - _at(gib), 1)


def _text(x: float, y: float, words: str, *, anchor: str = "middle", turn: str = "") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" {FONT} fill="#333"{turn}>{escape(words)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" {style}/>'


def _axes() -> Iterator[str]:
    for tick in TICKS_GIB:
        yield _line(_x(tick), _y(LOW_GIB), _x(tick), _y(HIGH_GIB), 'stroke="#e5e5e5"')
        yield _line(_x(LOW_GIB), _y(tick), _x(HIGH_GIB), _y(tick), 'stroke="#e5e5e5"')
        yield _text(_x(tick), SIZE - MARGIN + 20, f"{tick}")
        yield _text(MARGIN - 10, _y(tick) + 4, f"{tick}", anchor="end")
    yield _text(SIZE / 2, SIZE - 15, "measured, GiB")
    yield _text(18, SIZE / 2, "predicted, GiB", turn=f' transform="rotate(-90 18 {SIZE / 2})"')


def _diagonals() -> Iterator[str]:
    yield _line(_x(LOW_GIB), _y(LOW_GIB), _x(HIGH_GIB), _y(HIGH_GIB), 'stroke="#333"')
    for factor in (0.9, 1.1):
        start, end = max(LOW_GIB, LOW_GIB / factor), min(HIGH_GIB, HIGH_GIB / factor)
        style = 'stroke="#999" stroke-dasharray="4 4"'
        yield _line(_x(start), _y(start * factor), _x(end), _y(end * factor), style)


def _dot(outcome: Outcome) -> str:
    x, y = _x(outcome.row.peak_bytes / GiB), _y(outcome.predicted_bytes / GiB)
    title = f"{outcome.row.id}: {100 * outcome.error:+.1f} %"
    color = COLOR_OF[outcome.row.metric]
    return f'<circle cx="{x}" cy="{y}" r="4" fill="{color}" fill-opacity="0.65"><title>{escape(title)}</title></circle>'


def _legend(outcomes: Sequence[Outcome]) -> Iterator[str]:
    metrics = sorted({outcome.row.metric for outcome in outcomes})
    for index, metric in enumerate(metrics):
        y = MARGIN + 20 + 22 * index
        count = sum(outcome.row.metric == metric for outcome in outcomes)
        yield f'<circle cx="{MARGIN + 20}" cy="{y}" r="5" fill="{COLOR_OF[metric]}"/>'
        yield _text(MARGIN + 34, y + 4, f"{metric} ({count} rows)", anchor="start")
    yield _text(MARGIN + 14, MARGIN + 24 + 22 * len(metrics), "dashed: ± 10 %", anchor="start")
