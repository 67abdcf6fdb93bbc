"""Cards and whether a job fits on them, as text, Markdown or JSON."""

from __future__ import annotations

from typing import Any

from vramcast.plan.cards import Card
from vramcast.report.as_json import SCHEMA
from vramcast.report.table import Column, Row, Table, as_markdown, as_text
from vramcast.report.verdict import fits_text
from vramcast.report.words import say
from vramcast.report.words.tables import FIT
from vramcast.units import GiB, format_gib


def render_text(cards: list[Card], *, markdown: bool, lang: str) -> str:
    in_numbers = any(card.count > 1 for card in cards)
    has_prices = any(card.price is not None for card in cards)
    shown = _shown_columns(in_numbers=in_numbers, has_prices=has_prices)
    columns = [Column(title=say(FIT, key, lang), right=key != "gpu") for key in shown]
    table = Table(
        title="",
        columns=(*columns, Column(title="")),
        rows=tuple(Row(cells=_cells(card, shown, lang)) for card in cards),
        below=_cheapest(cards, lang) if in_numbers or has_prices else (),
    )
    return as_markdown(table) if markdown else as_text(table)


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
    return (*(cells[key] for key in shown), fits_text(card.fits, lang))


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
                "fits": card.fits,
            }
            for card in cards
        ],
    }
