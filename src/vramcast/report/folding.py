"""Text for a terminal of some width: lines end between words, never inside one, and go on where their text began."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vramcast.report.table import cell_width, fold

COLUMN_GAP = re.compile(r"\S {2,}(?=\S)")


def fold_text(text: str, width: int | None) -> str:
    """Every line within `width` cells; None: as it is."""
    if width is None:
        return text
    return "\n".join(part for line in text.split("\n") for part in fold_line(line, width))


def fold_line(line: str, width: int) -> Iterator[str]:
    """The rest of a line stands below the beginning of its last column, where that leaves half of the width."""
    if cell_width(line) <= width:
        yield line
        return
    at = _last_column(line, width)
    indent = " " * cell_width(line[:at])
    first, *others = fold(line[at:], width - len(indent))
    yield line[:at] + first
    yield from (indent + other for other in others)


def _last_column(line: str, width: int) -> int:
    """Where the last column starts that stands in the left half; else the line's own indent and a little more."""
    starts = [found.end() for found in COLUMN_GAP.finditer(line)]
    fitting = [at for at in starts if cell_width(line[:at]) <= width // 2]
    if fitting:
        return fitting[-1]
    return len(line) - len(line.lstrip()) if line.startswith(" ") else 0
