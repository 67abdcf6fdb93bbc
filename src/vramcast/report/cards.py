"""Cards and whether a job fits on them, as text, Markdown or JSON."""

from __future__ import annotations

from typing import Any

from vramcast.plan.cards import Card
from vramcast.report.as_json import SCHEMA
from vramcast.report.bill_words import word
from vramcast.units import GiB, format_gib


def render_text(cards: list[Card], *, markdown: bool, lang: str) -> str:
    rows = [
        (card.gpu.name, format_gib(card.gpu.capacity_bytes()), format_gib(card.process_bytes),
         f"{card.headroom_bytes / GiB:+,.2f}", word("FITS" if card.fits else "DOES NOT FIT", lang))
        for card in cards
    ]  # fmt: skip
    header = ("GPU", "capacity", word("peak", lang), word("free", lang), "")
    if markdown:
        lines = [f"| {' | '.join(row)} |" for row in (header, *rows)]
        return "\n".join([lines[0], "|---|--:|--:|--:|---|", *lines[1:]])
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(5)]
    return "\n".join(
        "  ".join(text.ljust(width) if column in (0, 4) else text.rjust(width)
                  for column, (text, width) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in (header, *rows)
    )  # fmt: skip


def cards_json(cards: list[Card]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "cards": [
            {"gpu": card.gpu.name, "capacity_bytes": card.gpu.total_bytes, "process_bytes": card.process_bytes,
             "headroom_bytes": card.headroom_bytes, "fits": card.fits}
            for card in cards
        ],
    }  # fmt: skip
