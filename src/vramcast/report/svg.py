"""Pictures as SVG: bars and curves that stretch with the page while their text keeps its size.

Positions across are per cent, so a picture needs no script to fit a phone; colours are classes (`part-weights`) that
`style.css` defines for light and dark. Nothing here knows of jobs: numbers and texts in, markup out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

NEAR_THE_RIGHT = 60.0  # per cent: a label further right than this ends at its mark


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A piece of a stacked bar: `part` is its colour, `text` what a pointer over it says."""

    part: str
    size: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Areas over common positions, stacked from the bottom: `parts` are their colours."""

    positions: Sequence[float]
    heights: Sequence[Sequence[float]]  # one row per part
    parts: Sequence[str]


def percent(size: float, whole: float) -> str:
    return f"{100 * size / whole:.3f}%" if whole > 0 else "0%"


def stacked_bar(
    pieces: Iterable[Piece],
    whole: float,
    *,
    label: str,
    limit: float | None = None,
    span: tuple[float, float] | None = None,
    beside: float | None = None,
    height: int = 28,
) -> str:
    """One bar. `limit` is a line across it, `span` a range at its end, `beside` where another bar would end."""
    shapes: list[str] = []
    at = 0.0
    for piece in pieces:
        shapes.append(
            f'<rect class="part-{piece.part}" data-part="{piece.part}" x="{percent(at, whole)}" y="4" '
            f'width="{percent(piece.size, whole)}" height="{height - 8}"><title>{escape(piece.text)}</title></rect>'
        )
        at += piece.size
    if span is not None:
        shapes.append(_span(span, whole, height))
    if beside is not None:
        x = percent(beside, whole)
        shapes.append(f'<line class="beside" x1="{x}" x2="{x}" y1="1" y2="{height - 1}"/>')
    if limit is not None:
        x = percent(limit, whole)
        shapes.append(f'<line class="limit" x1="{x}" x2="{x}" y1="0" y2="{height}"/>')
    return (
        f'<svg class="bar" role="img" aria-label="{escape(label)}" width="100%" height="{height}">'
        f"{''.join(shapes)}</svg>"
    )


def _span(span: tuple[float, float], whole: float, height: int) -> str:
    low, high = (percent(end, whole) for end in span)
    middle = height // 2
    ends = "".join(
        f'<line x1="{x}" x2="{x}" y1="{middle - 5}" y2="{middle + 5}"/>' for x in (low, high)
    )
    line = f'<line x1="{low}" x2="{high}" y1="{middle}" y2="{middle}"/>'
    return f'<g class="span-under">{line}{ends}</g><g class="span">{line}{ends}</g>'


def mark_label(at: float, whole: float, text: str) -> str:
    """A text under or over a mark of a bar, on the side where there is room."""
    share = 100 * at / whole if whole > 0 else 0
    side = "end" if share > NEAR_THE_RIGHT else "start"
    return (
        f'<svg class="mark" aria-hidden="true" width="100%" height="16">'
        f'<text x="{share:.3f}%" y="12" text-anchor="{side}">{escape(text)}</text></svg>'
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """Where values stand in a chart, in per cent of its width and height."""

    first: float
    last: float
    highest: float

    def x(self, value: float) -> float:
        return 100 * (value - self.first) / ((self.last - self.first) or 1.0)

    def y(self, value: float) -> float:
        return 100 - 100 * value / self.highest if self.highest > 0 else 100


def area_chart(
    curve: Curve,
    *,
    label: str,
    ticks: Sequence[tuple[float, str]],
    steps: Sequence[tuple[float, str]],
    highest: float,
    limit: tuple[float, str] | None = None,
    now: float | None = None,
    height: int = 220,
) -> str:
    """Stacked areas over an axis: `ticks` below, `steps` at the left, a limit across, a mark where the job stands."""
    axes = Axes(first=curve.positions[0], last=curve.positions[-1], highest=highest)
    shapes = [*_areas(curve, axes)]
    lines = [_across("grid", axes.y(value)) for value, _ in steps]
    texts = [*_side_texts(steps, axes, "tick", limit)]
    if limit is not None:
        lines.append(_across("limit", axes.y(limit[0])))
        texts += _side_texts((limit,), axes, "limit-text", None)
    if now is not None:
        at = axes.x(now)
        lines.append(f'<line class="now" x1="{at:.2f}%" x2="{at:.2f}%" y1="0" y2="100%"/>')
    inner = height - 36
    return (
        f'<svg class="chart" role="img" aria-label="{escape(label)}" width="100%" height="{height}">'
        f'<svg x="0" y="12" width="100%" height="{inner}" viewBox="0 0 100 100" preserveAspectRatio="none">'
        f"{''.join(shapes)}</svg>"
        f'<svg x="0" y="12" width="100%" height="{inner}" overflow="visible">{"".join(lines)}{"".join(texts)}</svg>'
        f'<svg x="0" y="{height - 24}" width="100%" height="24">{"".join(_below_texts(ticks, axes))}</svg></svg>'
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A point of a chart: `part` is its colour, `text` what a pointer over it says, `name` how a page finds it."""

    x: float
    y: float
    shape: str  # circle, square or triangle
    part: str
    text: str
    name: str


def dot_chart(
    dots: Sequence[Dot],
    *,
    line: Sequence[tuple[float, float]],
    label: str,
    span: tuple[float, float],
    ticks: Sequence[tuple[float, str]],
    steps: Sequence[tuple[float, str]],
    highest: float,
    limit: tuple[float, str] | None = None,
    height: int = 280,
) -> str:
    """Points over an axis, and a line through some of them."""
    axes = Axes(first=span[0], last=span[1], highest=highest)
    under = [_across("grid", axes.y(value)) for value, _ in steps]
    for (x, y), (right, low) in pairwise(line):
        under.append(
            f'<line class="front-line" x1="{axes.x(x):.2f}%" y1="{axes.y(y):.2f}%" x2="{axes.x(right):.2f}%" '
            f'y2="{axes.y(low):.2f}%"/>'
        )
    texts = [*_side_texts(steps, axes, "tick", limit)]
    if limit is not None:
        under.append(_across("limit", axes.y(limit[0])))
        texts += _side_texts((limit,), axes, "limit-text", None)
    inner = height - 36
    marks = "".join(_dot(dot, axes) for dot in dots)
    return (
        f'<svg class="chart" role="img" aria-label="{escape(label)}" width="100%" height="{height}">'
        f'<svg x="0" y="12" width="100%" height="{inner}" overflow="visible">{"".join(under)}{"".join(texts)}{marks}'
        f'</svg><svg x="0" y="{height - 24}" width="100%" height="24">{"".join(_below_texts(ticks, axes))}</svg></svg>'
    )


def _dot(dot: Dot, axes: Axes) -> str:
    shapes = {
        "circle": '<circle r="5.5"/>',
        "square": '<rect x="-5" y="-5" width="10" height="10"/>',
        "triangle": '<polygon points="0,-6.5 6.5,5.5 -6.5,5.5"/>',
    }
    return (
        f'<svg x="{axes.x(dot.x):.2f}%" y="{axes.y(dot.y):.2f}%" overflow="visible">'
        f'<g class="dot part-{dot.part}" data-point="{escape(dot.name)}"><title>{escape(dot.text)}</title>'
        f"{shapes[dot.shape]}</g></svg>"
    )


def _across(kind: str, y: float) -> str:
    return f'<line class="{kind}" x1="0" x2="100%" y1="{y:.2f}%" y2="{y:.2f}%"/>'


def _areas(curve: Curve, axes: Axes) -> Iterator[str]:
    below = [0.0] * len(curve.positions)
    for part, heights in zip(curve.parts, curve.heights, strict=True):
        above = [base + more for base, more in zip(below, heights, strict=True)]
        edges = (
            *zip(curve.positions, above, strict=True),
            *reversed(list(zip(curve.positions, below, strict=True))),
        )
        points = " ".join(f"{axes.x(at):.2f},{axes.y(value):.2f}" for at, value in edges)
        yield f'<polygon class="part-{part}" points="{points}"/>'
        below = above


def _side_texts(
    steps: Sequence[tuple[float, str]], axes: Axes, kind: str, beside: tuple[float, str] | None
) -> Iterator[str]:
    """Texts at heights; one that would touch the limit's own is left out."""
    for value, text in steps:
        if beside is None or abs(axes.y(value) - axes.y(beside[0])) > 9:
            yield f'<text class="{kind}" x="4" y="{axes.y(value):.2f}%" dy="-3">{escape(text)}</text>'


def _below_texts(ticks: Sequence[tuple[float, str]], axes: Axes) -> Iterator[str]:
    for value, text in ticks:
        share = axes.x(value)
        side = "start" if share < 8 else "end" if share > 92 else "middle"
        yield f'<text class="tick" x="{share:.2f}%" y="16" text-anchor="{side}">{escape(text)}</text>'


def step_text(step: float) -> str:
    """Of an axis in GiB."""
    return f"{step:,g} GiB"


def round_steps(highest: float, most: int = 4) -> list[float]:
    """Round figures from zero up to the highest: 1, 2 or 5 times a power of ten apart."""
    if highest <= 0:
        return []
    power = 10.0 ** len(str(int(highest)))
    widths = [power / divisor for divisor in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)]
    width = min((each for each in widths if highest / each <= most), default=power)
    return [width * number for number in range(1, int(highest / width) + 1)]
