"""A serving engine's cache as HTML: what it holds, what the engine prints, and how many requests run at once."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from vramcast.forecast import Served
from vramcast.report.html_document import bullets, preformatted
from vramcast.report.serving import NAMES, answer_lines
from vramcast.report.words import say
from vramcast.report.words.serving import SERVING, SWEEP
from vramcast.units import GiB, format_gib

if TYPE_CHECKING:
    from vramcast.engine import ServingSweep


def served_html(served: Served, lang: str) -> str:
    """Tokens and requests that the cache holds, or why the engine would not start; then its own lines."""
    printed = say(SERVING, "prints", lang, engine=NAMES[served.engine])
    lines = preformatted("\n".join(served.lines))
    return f"{bullets(answer_lines(served, lang))}<p>{escape(printed)}:</p>{lines}"


def requests_html(sweep: ServingSweep, lang: str) -> str:
    """Bytes of cache for so many requests of so many tokens; those that do not fit are marked."""
    head = "".join(f'<th scope="col" class="number">{length:,}</th>' for length in sweep.lengths)
    rows = [
        f'<tr><th scope="row" class="number">{count:,}</th>{_cells(sweep, row)}</tr>'
        for row, count in enumerate(sweep.requests)
    ]
    most = "".join(f'<td class="number"><b>{one:,}</b></td>' for one in sweep.at_once)
    rows.append(f'<tr><th scope="row">{escape(say(SWEEP, "most", lang))}</th>{most}</tr>')
    name = NAMES[sweep.job.engine or ""]
    capacity = format_gib(max(sweep.kv_bytes, default=0))
    title = say(SWEEP, "caption", lang, engine=name, capacity=capacity)
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<div class="wide"><table><thead><tr><th scope="col">{escape(say(SWEEP, "corner", lang))}</th>{head}</tr>'
        f"</thead><tbody>{''.join(rows)}</tbody></table></div></figure>"
    )


def _cells(sweep: ServingSweep, row: int) -> str:
    return "".join(
        _cell(sweep.needed_bytes[row][at], sweep.kv_bytes[at]) for at in range(len(sweep.lengths))
    )


def _cell(needed: int, there: int) -> str:
    mark, kind = ("", "fits") if needed <= there else (" ✕", "does-not-fit")
    return f'<td class="number answer-{kind}" title="{needed:,} B">{needed / GiB:,.2f}{mark}</td>'
