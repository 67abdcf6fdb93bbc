"""Cards and whether a job fits on them, as text, Markdown or JSON."""

from __future__ import annotations

from typing import Any

from vramcast.plan.cards import Card
from vramcast.report.as_json import SCHEMA
from vramcast.report.sheet import Column, Row, Sheet, as_markdown, as_text
from vramcast.report.words.bill import word
from vramcast.report.words.plan import plan_word
from vramcast.units import GiB, format_gib


def render_text(cards: list[Card], *, markdown: bool, lang: str) -> str:
    many = any(card.count > 1 for card in cards)
    priced = any(card.price is not None for card in cards)
    titles = ["GPU", *(["count", "together"] if many else []), "capacity", word("peak", lang), word("free", lang)]
    titles += ["price"] if priced else []
    left = ("GPU", "")
    columns = tuple(Column(title=plan_word(title, lang), right=title not in left) for title in (*titles, ""))
    rows = tuple(Row(cells=_cells(card, many, priced, lang)) for card in cards)
    surely = next((card for card in cards if card.surely), None)
    below = (_cheapest(surely, lang),) if (many or priced) and surely else ()
    sheet = Sheet(title="", columns=columns, rows=rows, below=below)
    return (as_markdown if markdown else as_text)(sheet).strip("\n")


def _cells(card: Card, many: bool, priced: bool, lang: str) -> tuple[str, ...]:
    number = (str(card.count), format_gib(card.total_bytes)) if many else ()
    price = (f"{card.price:g}",) if priced and card.price is not None else ()
    return (
        card.gpu.name, *number, format_gib(card.gpu.capacity_bytes()), format_gib(card.process_bytes),
        f"{card.headroom_bytes / GiB:+,.2f}", *price, word("FITS" if card.fits else "DOES NOT FIT", lang),
    )  # fmt: skip


def _cheapest(card: Card, lang: str) -> str:
    """The first with room for what is assumed at its upper end."""
    by = "by the prices given" if card.price is not None else "by memory, then number of cards; no prices given"
    return f"{plan_word('cheapest', lang)} ({plan_word(by, lang)}): {card.count} × {card.gpu.name}"


def cards_json(cards: list[Card]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "cards": [
            {"gpu": card.gpu.name, "count": card.count, "capacity_bytes": card.gpu.total_bytes,
             "process_bytes": card.process_bytes, "headroom_bytes": card.headroom_bytes, "price": card.price,
             "fits": card.fits}
            for card in cards
        ],
    }  # fmt: skip
