"""A whole HTML file around fragments, and the small pieces that all of them use.

A document is self-contained: styles inside, no network, and no script but the one that it names in its policy.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from html import escape
from importlib.resources import files

from vramcast.report.table import Table
from vramcast.units import GiB, format_bytes

LANGUAGE_TAGS = {"en": "en", "zh": "zh-CN"}


def gib(nbytes: float) -> str:
    """For pictures: one decimal, two below 10 GiB; what is too small for that in its own unit."""
    size = nbytes / GiB
    if abs(size) < 0.01:
        return format_bytes(int(nbytes))
    return f"{size:,.1f} GiB" if abs(size) >= 10 else f"{size:.2f} GiB"


def document(title: str, body: str, lang: str, script: str = "") -> str:
    """One file that opens from disk. `script` is the only one that runs in it."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    end = ""
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'"
        end = f'<script type="module">{script}</script>'
    return (
        f'<!doctype html><html lang="{LANGUAGE_TAGS[lang]}"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{escape(title)}</title><style>{stylesheet()}</style></head>"
        f'<body class="vramcast document"><main><h1>{escape(title)}</h1>{body}</main>{end}</body></html>\n'
    )


def notebook(inner: str) -> str:
    """For a notebook's cell: fragments with their styles."""
    return f'<style>{stylesheet()}</style><div class="vramcast">{inner}</div>'


def stylesheet() -> str:
    return files("vramcast.report").joinpath("style.css").read_text(encoding="utf-8")


def section(heading: str, inner: str) -> str:
    """Nothing where there is nothing to show."""
    return f"<section><h2>{escape(heading)}</h2>{inner}</section>" if inner else ""


def bullets(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<ul class="plain">{items}</ul>' if items else ""


def preformatted(text: str) -> str:
    return f"<pre>{escape(text)}</pre>" if text else ""


def table_html(table: Table) -> str:
    """A table of a text report."""
    head = "".join(_cell("th", column.title, right=column.right) for column in table.columns)
    rows = "".join(
        "<tr>"
        + "".join(
            _cell("td", cell, right=column.right)
            for column, cell in zip(table.columns, row.cells, strict=False)
        )
        + "</tr>"
        for row in table.rows
    )
    below = "".join(f'<p class="soft">{escape(line)}</p>' for line in table.below)
    title = f"<h2>{escape(table.title)}</h2>" if table.title else ""
    return (
        f'<section>{title}<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        f"{below}</section>"
    )


def _cell(tag: str, text: str, *, right: bool) -> str:
    kind = ' class="number"' if right else ""
    return f"<{tag}{kind}>{escape(text)}</{tag}>"
