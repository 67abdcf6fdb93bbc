"""Cards and whether a job fits on them, as text, Markdown or JSON."""

from __future__ import annotations

from typing import Any

from vramcast.forecast import Answer
from vramcast.plan.cards import Card
from vramcast.report.as_json import SCHEMA, answer_json
from vramcast.report.table import Column, Row, Table, as_markdown, as_text
from vramcast.report.verdict import APART, answer_text, not_counted_lines, not_understood_text
from vramcast.report.words import say
from vramcast.report.words.tables import FIT
from vramcast.units import GiB, format_gib

TOO_SMALL_SHOWN = 3  # of the cards that are too small, how many the short list shows


def render_text(
    cards: list[Card],
    *,
    markdown: bool,
    lang: str,
    width: int | None = None,
    verbose: bool = False,
    gaps: tuple[str, ...] = (),
) -> str:
    """The answer first. Without `verbose`, few of the cards on which the job does not fit are listed. `gaps`: settings
    of files that matter and are not counted."""
    in_numbers = any(card.count > 1 for card in cards)
    has_prices = any(card.price is not None for card in cards)
    keys = _shown_columns(in_numbers=in_numbers, has_prices=has_prices)
    columns = [Column(title=say(FIT, key, lang), right=key != "gpu") for key in keys]
    listed = cards if verbose else _without_most_too_small(cards)
    table = Table(
        title=_with_gaps(_answer(cards, lang), gaps, lang),
        columns=(*columns, Column(title="")),
        rows=tuple(Row(cells=_cells(card, keys, lang)) for card in listed),
        below=(
            *(_cheapest(cards, lang) if in_numbers or has_prices else ()),
            *_left_out(len(cards) - len(listed), lang),
            *not_counted_lines(gaps, lang),
        ),
    )
    return as_markdown(table) if markdown else as_text(table, width)


def _answer(cards: list[Card], lang: str) -> str:
    """How many cards do, and the smallest of them. One that is only just large enough is not recommended."""
    fitting = [card for card in cards if card.fits]
    if not fitting:
        return say(FIT, "on_none", lang, tried=len(cards))
    roomy = [card for card in fitting if card.answer is Answer.FITS]
    smallest = min(roomy or fitting, key=lambda card: card.total_bytes)
    return say(
        FIT,
        "on_some",
        lang,
        fitting=len(fitting),
        tried=len(cards),
        gpu=smallest.gpu.name if smallest.count == 1 else f"{smallest.count} × {smallest.gpu.name}",
        capacity=format_gib(smallest.total_bytes),
    )


def _with_gaps(answer: str, gaps: tuple[str, ...], lang: str) -> str:
    told = not_understood_text(len(gaps), lang)
    return f"{answer}{APART}{told}" if told else answer


def _without_most_too_small(cards: list[Card]) -> list[Card]:
    """All that fit, and those that come closest to it."""
    too_small = [card for card in cards if not card.fits]
    closest = sorted(too_small, key=lambda card: -card.headroom_bytes)[:TOO_SMALL_SHOWN]
    return [card for card in cards if card.fits or card in closest]


def _left_out(count: int, lang: str) -> tuple[str, ...]:
    return (say(FIT, "left_out", lang, count=count),) if count else ()


def _shown_columns(*, in_numbers: bool, has_prices: bool) -> list[str]:
    keys = ["gpu", "capacity", "peak", "free"]
    if in_numbers:
        keys[1:1] = ["count", "together"]
    if has_prices:
        keys.append("price")
    return keys


def _cells(card: Card, shown: list[str], lang: str) -> tuple[str, ...]:
    cells = {
        "gpu": card.gpu.name,
        "count": str(card.count),
        "together": format_gib(card.total_bytes),
        "capacity": format_gib(card.gpu.capacity_bytes()),
        "peak": format_gib(card.process_bytes),
        "free": f"{card.headroom_bytes / GiB:+,.2f}",
        "price": "" if card.price is None else f"{card.price:g}",
    }
    return (*(cells[key] for key in shown), answer_text(card.answer, lang))


def _cheapest(cards: list[Card], lang: str) -> tuple[str, ...]:
    """The first with room for what is assumed at its upper end."""
    card = next((card for card in cards if card.surely), None)
    if card is None:
        return ()
    key = "by_memory" if card.price is None else "by_price"
    return (say(FIT, key, lang, count=card.count, gpu=card.gpu.name),)


def cards_json(cards: list[Card]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "cards": [
            {
                "gpu": card.gpu.name,
                "count": card.count,
                "capacity_bytes": card.gpu.total_bytes,
                "process_bytes": card.process_bytes,
                "headroom_bytes": card.headroom_bytes,
                "price": card.price,
                "answer": answer_json(card.answer),
                "fits": card.fits,
            }
            for card in cards
        ],
    }
