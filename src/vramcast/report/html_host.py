"""A HostForecast and a Sweep as HTML files."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from vramcast.host.forecast import HostForecast
from vramcast.ledger import Category, Level
from vramcast.report.html_document import document, gib, preformatted, section
from vramcast.report.parts import PART_OF
from vramcast.report.phases import phase_name
from vramcast.report.svg import Piece, stacked_bar
from vramcast.report.words import say
from vramcast.report.words.forecast import CATEGORIES
from vramcast.report.words.page import PAGE
from vramcast.units import GiB

if TYPE_CHECKING:
    from vramcast.engine import Sweep

MOST_ROWS, MOST_COLUMNS = 64, 40  # of a sweep


def host_document(forecast: HostForecast, text: str, lang: str) -> str:
    """A bar for every phase against the machine's memory, and the report."""
    room = forecast.limits.capacity_bytes
    phases = forecast.ledger.phases()
    whole = max([forecast.needed_bytes(phase) for phase in phases] + [room or 0, 1]) * 1.03
    rows = []
    for phase in phases:
        sums: dict[Category, int] = {}
        for entry in forecast.ledger.entries:
            if phase in entry.phases and entry.level == Level.ALLOCATED:
                sums[entry.category] = sums.get(entry.category, 0) + entry.nbytes
        pieces = [
            Piece(
                part=PART_OF[str(category)],
                size=nbytes,
                text=f"{say(CATEGORIES, str(category), lang)} {gib(nbytes)}",
            )
            for category, nbytes in sorted(sums.items(), key=lambda item: -item[1])
        ]
        label = f"{phase_name(phase, lang)}: " + ", ".join(piece.text for piece in pieces)
        bar = stacked_bar(pieces, whole, label=label, limit=room, height=24)
        rows.append(
            f'<li class="phase"><span class="name">{escape(phase_name(phase, lang))}</span>{bar}'
            f'<span class="size">{gib(forecast.needed_bytes(phase))}</span></li>'
        )
    body = section(say(PAGE, "phases", lang), f'<ol class="phases">{"".join(rows)}</ol>')
    return document(say(PAGE, "host_title", lang), body + preformatted(text), lang)


def sweep_document(sweep: Sweep, lang: str) -> str:
    """A table of peaks, coloured by the answer; a large one is thinned out, and says so."""
    rows = _evenly(len(sweep.batches), MOST_ROWS)
    columns = _evenly(len(sweep.seqs), MOST_COLUMNS)
    head = "".join(f'<th scope="col" class="number">{sweep.seqs[c]:,}</th>' for c in columns)
    lines = []
    for row in rows:
        cells = []
        for column in columns:
            nbytes = int(sweep.allocated_bytes[row, column])
            answer = sweep.answer(row, column)
            kind = "" if answer is None else f" answer-{str(answer).replace(' ', '-')}"
            cells.append(f'<td class="number{kind}" title="{nbytes:,} B">{nbytes / GiB:,.2f}</td>')
        lines.append(f'<tr><th scope="row">{sweep.batches[row]}</th>{"".join(cells)}</tr>')
    counts = len(sweep.batches) * len(sweep.seqs), len(rows) * len(columns)
    note = ""
    if counts[0] > counts[1]:
        text = say(PAGE, "left_out", lang, shown=f"{counts[1]:,}", count=f"{counts[0]:,}")
        note = f'<p class="soft">{escape(text)}</p>'
    name = str(sweep.job.model) + (f" · {sweep.gpu.name}" if sweep.gpu else "")
    body = (
        f'<div class="wide"><table><thead><tr><th>{escape(say(PAGE, "corner", lang))} (GiB)</th>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>{note}"
    )
    return document(say(PAGE, "sweep_title", lang, name=name), body, lang)


def _evenly(count: int, most: int) -> list[int]:
    """Places of a list, its ends included."""
    if count <= most:
        return list(range(count))
    return sorted({round(place * (count - 1) / (most - 1)) for place in range(most)})
