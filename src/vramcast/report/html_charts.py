"""Pictures of several forecasts as HTML: growth with length or batch, and one job on every card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from vramcast.plan.cards import Card
from vramcast.report.html_document import gib
from vramcast.report.svg import Curve, Piece, area_chart, round_steps, stacked_bar, step_text
from vramcast.report.words import say
from vramcast.report.words.page import PAGE
from vramcast.units import GiB

UNITS = {"seq": "tokens", "prompt": "prompt_tokens", "batch": "samples"}
MOST_OVER_THE_CARD = 3  # a chart's height in capacities, where the curve goes far beyond


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The peak at one length or batch, and how much of it grows with the square of the length."""

    at: int
    nbytes: int
    quadratic_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    axis: str  # seq, prompt or batch
    points: Sequence[Point]
    now: int
    capacity: int | None


def growth_html(growth: Growth, lang: str) -> str:
    """Areas: what grows with the square of the length above everything else; the card's line across."""
    points = growth.points
    title = say(PAGE, "growth_batch" if growth.axis == "batch" else "growth_seq", lang)
    if len(points) < 2:
        return f"<figure><figcaption>{escape(title)}</figcaption></figure>"
    highest = max(max(point.nbytes for point in points), growth.capacity or 0) * 1.06
    limit = None
    if growth.capacity is not None:
        limit = (growth.capacity / GiB, say(PAGE, "capacity", lang, size=gib(growth.capacity)))
    chart = area_chart(
        Curve(
            positions=[point.at for point in points],
            heights=[
                [(point.nbytes - point.quadratic_bytes) / GiB for point in points],
                [point.quadratic_bytes / GiB for point in points],
            ],
            parts=("rest", "logits"),
        ),
        label=f"{title}: " + ", ".join(f"{point.at:,}: {gib(point.nbytes)}" for point in points),
        ticks=_ticks(points),
        steps=[(step, step_text(step)) for step in round_steps(highest / GiB)],
        highest=highest / GiB,
        limit=limit,
        now=growth.now if points[0].at <= growth.now <= points[-1].at else None,
    )
    unit = say(PAGE, UNITS[growth.axis], lang)
    legend = _growth_legend(points, lang)
    return (
        f"<figure><figcaption>{escape(title)} ({escape(unit)})</figcaption>{chart}{legend}</figure>"
    )


def _growth_legend(points: Sequence[Point], lang: str) -> str:
    """Says in words where no part of the picture grows with the square."""
    if any(point.quadratic_bytes for point in points):
        return _legend(("logits", "quadratic"), ("rest", "rest"), lang=lang)
    return f'<p class="soft">{escape(say(PAGE, "no_quadratic", lang))}</p>'


def _ticks(points: Sequence[Point]) -> list[tuple[float, str]]:
    """The ends, and what is far enough from its neighbours."""
    first, last = points[0].at, points[-1].at
    found = [first]
    for point in points[1:]:
        if point.at - found[-1] >= (last - first) / 4:
            found.append(point.at)
    if found[-1] != last:
        found[-1:] = [last] if last - found[-1] < (last - first) / 4 else [found[-1], last]
    return [(at, f"{at:,}") for at in found]


def _legend(*items: tuple[str, str], lang: str) -> str:
    shown = "".join(
        f'<li><svg class="swatch" width="10" height="10" aria-hidden="true"><rect class="part-{part}" width="10" '
        f'height="10"/></svg> {escape(say(PAGE, key, lang))}</li>'
        for part, key in items
    )
    return f'<ul class="legend">{shown}</ul>'


def cards_html(cards: Sequence[Card], lang: str) -> str:
    """A bar for every card: the peak against its capacity."""
    whole = max((max(card.process_bytes, card.total_bytes) for card in cards), default=1) * 1.02
    rows = []
    for card in cards:
        count = f" × {card.count}" if card.count > 1 else ""
        part = "fits" if card.fits else "does-not-fit"
        piece = Piece(part=part, size=card.process_bytes, text=gib(card.process_bytes))
        capacity = card.gpu.capacity_bytes()
        label = f"{card.gpu.name}{count}: {gib(card.process_bytes)} / {gib(capacity)}"
        bar = stacked_bar([piece], whole, label=label, limit=capacity, height=20)
        mark = "✓" if card.fits else "✕"
        sizes = say(PAGE, "size_of", lang, size=gib(card.process_bytes), whole=gib(capacity))
        rows.append(
            f'<li class="phase"><span class="name">{mark} {escape(card.gpu.name + count)}</span>{bar}'
            f'<span class="size">{escape(sizes)}</span></li>'
        )
    return (
        f"<figure><figcaption>{escape(say(PAGE, 'cards', lang))}</figcaption>"
        f'<ol class="phases cards">{"".join(rows)}</ol></figure>'
    )
