"""Every aligned text of the reports is made here: rows of cells → lines, or a Markdown table.

Widths are counted in terminal cells, so columns with Chinese text, whose characters take two cells, line up too.
Knows nothing about what the cells mean.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

GAP = 2  # cells between columns
NARROWEST = 8  # cells that a column keeps when a table is folded to a terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    title: str
    right: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    cells: tuple[str, ...]
    strong: bool = False
    depth: int = 0  # how far the first cell is indented


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A title, columns with rows, and lines below them."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    below: tuple[str, ...] = ()


# ---- width of text


def cell_width(text: str) -> int:
    """How many cells of a terminal the text takes."""
    if text.isascii():
        return len(text)
    return sum(map(_character_width, text))


def _character_width(character: str) -> int:
    if unicodedata.east_asian_width(character) in ("W", "F"):
        return 2
    is_invisible = unicodedata.category(character) in ("Mn", "Me", "Cf")
    return 0 if is_invisible else 1


def pad(text: str, width: int, *, right: bool = False) -> str:
    spaces = " " * (width - cell_width(text))
    return spaces + text if right else text + spaces


# ---- lines


def align(rows: Sequence[Sequence[str]], sides: str, *, indent: int = 2) -> list[str]:
    """One line per row. `sides` has one letter per column: l for text, r for numbers."""
    widths = _widths(rows, len(sides))
    return [" " * indent + _line(row, sides, widths) for row in rows]


def _widths(rows: Iterable[Sequence[str]], num_columns: int) -> list[int]:
    widths = [0] * num_columns
    for row in rows:
        for column, text in enumerate(row):
            widths[column] = max(widths[column], cell_width(text))
    return widths


def _line(row: Sequence[str], sides: str, widths: Sequence[int]) -> str:
    cells = (
        pad(text, width, right=side == "r")
        for text, side, width in zip(row, sides, widths, strict=True)
    )
    return (" " * GAP).join(cells).rstrip()


def as_text(table: Table, width: int | None = None) -> str:
    """Aligned columns; folded to `width` where one is given (a terminal), else as wide as needed."""
    rows = [tuple(column.title for column in table.columns), *map(_indented, table.rows)]
    sides = "".join("r" if column.right else "l" for column in table.columns)
    widths = _widths(rows, len(sides))
    if width is not None:
        widths = _folded_widths(rows, sides, width)
    body = [_line(part, sides, widths) for row in rows for part in _fold_row(row, widths)]
    title = (table.title, "") if table.title else ()
    below = ("", *table.below) if table.below else ()
    return "\n".join((*title, *body, *below))


def _indented(row: Row) -> tuple[str, ...]:
    return ("  " * row.depth + row.cells[0], *row.cells[1:])


# ---- folding to a terminal


def _folded_widths(rows: Sequence[Sequence[str]], sides: str, most: int) -> list[int]:
    """Takes cells from the widest column until the table fits: from text, then from numbers' titles, as far as no word
    breaks; only then from any column."""
    found = _widths(rows, len(sides))
    least = [max(NARROWEST, *(_longest_part(row[at]) for row in rows)) for at in range(len(found))]
    while sum(found) + GAP * (len(found) - 1) > most:
        roomy = [at for at in range(len(found)) if found[at] > least[at]]
        texts = [at for at in roomy if sides[at] == "l"]
        others = [at for at in range(len(found)) if found[at] > NARROWEST]
        if not others:
            return found
        found[max(texts or roomy or others, key=lambda at: found[at])] -= 1
    return found


def _longest_part(text: str) -> int:
    """Cells of the longest piece that a line should not end inside; wide characters may end a line anywhere."""
    parts = (part for word in text.split() for part in _name_parts(word))
    return max((2 if _has_wide(part) else cell_width(part) for part in parts), default=0)


def _fold_row(row: Sequence[str], widths: Sequence[int]) -> Iterator[tuple[str, ...]]:
    """The row as lines of cells, each within its column's width."""
    columns = [fold(text, width) for text, width in zip(row, widths, strict=True)]
    return zip_longest(*columns, fillvalue="")


def fold(text: str, width: int) -> list[str]:
    """Broken between words; inside a word only where it alone is wider."""
    if cell_width(text) <= width:
        return [text]
    indent = " " * (len(text) - len(text.lstrip()))
    lines, line = [], indent
    for piece in _words(text.lstrip(), width - len(indent)):
        if cell_width(line) + cell_width(piece.rstrip()) > width and line.strip():
            lines.append(line.rstrip())
            line = indent
        line += piece if line.strip() else piece.lstrip()
    return [*lines, line.rstrip()]


# A number stays with its unit; a word goes up to the next space.
WORD = re.compile(r"\S*\d [KMGT]?i?B\b\S*\s*|\S+\s*")
CLOSING = frozenset("，。、；：！？）】》”’")  # with which no line begins
OPENING = frozenset("（【《“‘")  # with which no line ends


def _words(text: str, width: int) -> Iterator[str]:
    """Pieces that stay in one line: closing marks belong to what they close."""
    held = ""
    for piece in _pieces(text, width):
        belongs = bool(held) and (piece[0] in CLOSING or held[-1] in OPENING)
        if belongs and cell_width(held + piece.rstrip()) <= width:
            held += piece
            continue
        if held:
            yield held
        held = piece
    if held:
        yield held


def _pieces(text: str, width: int) -> Iterator[str]:
    """Words with the spaces after them; wide characters alone; pieces of words that are wider than a line."""
    for word in WORD.findall(text):
        if cell_width(word.rstrip()) <= width and not _has_wide(word):
            yield word
        else:
            yield from _split(word, width)


def _has_wide(text: str) -> bool:
    return not text.isascii() and cell_width(text) > len(text)


def _split(word: str, width: int) -> Iterator[str]:
    """Before and after each wide character, else after the marks inside a name, else where the width is reached."""
    if not _has_wide(word) and len(_name_parts(word)) > 1:
        for part in _name_parts(word):
            yield from (
                [part] if cell_width(part.rstrip()) <= width else _split_anywhere(part, width)
            )
    else:
        yield from _split_anywhere(word, width)


def _name_parts(word: str) -> list[str]:
    """`openai-community/gpt2` may end a line after each mark."""
    return re.findall(r"[^/_-]*[/_-]+|[^/_-]+$", word)


def _split_anywhere(word: str, width: int) -> Iterator[str]:
    piece = ""
    for character in word:
        is_wide = _character_width(character) == 2
        if piece and (is_wide or cell_width(piece) >= width):
            yield piece
            piece = ""
        if is_wide:
            yield character
        else:
            piece += character
    if piece:
        yield piece


# ---- Markdown


def as_markdown(table: Table) -> str:
    columns = tuple(Column(title=_escape(c.title), right=c.right) for c in table.columns)
    body = markdown_lines(columns, map(_markdown_cells, table.rows))
    below = tuple(line for text in table.below for line in ("", _escape(text)))
    title = (f"## {_escape(table.title)}", "") if table.title else ()
    return "\n".join((*title, *body, *below))


def markdown_lines(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> list[str]:
    """Cells go in as they are: Markdown inside them stays Markdown."""
    rule = "|".join("---:" if column.right else "---" for column in columns)
    titles = [column.title for column in columns]
    return [_markdown_row(titles), f"|{rule}|", *map(_markdown_row, rows)]


def _markdown_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_cells(row: Row) -> tuple[str, ...]:
    first, *others = map(_escape, row.cells)
    cells = ("&nbsp;&nbsp;" * row.depth + first, *others)
    return tuple(f"**{cell}**" if cell else "" for cell in cells) if row.strong else cells


def _escape(text: str) -> str:
    """A name from a stranger's file must not become markup."""
    return (
        text.replace("\\", "\\\\")
        .replace("|", "\\|")
        .replace("*", "\\*")
        .replace("<", "&lt;")
        .replace("_", "\\_")
    )
