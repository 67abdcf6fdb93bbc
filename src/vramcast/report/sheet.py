"""A sheet of rows, rendered as text or markdown. Knows nothing about what the rows mean."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass

Words = Callable[[str], str]  # a fixed English label → the reader's language
UNBOUNDED_WIDTH = 100_000  # for pipes and files: nothing is folded or cut


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
class Sheet:
    """A title, a table, and lines below it."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    below: tuple[str, ...] = ()


def as_text(sheet: Sheet, width: int | None = None) -> str:
    """Aligned columns; folded to `width` where one is given (a terminal), else as wide as needed."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="")
    for column in sheet.columns:
        table.add_column(column.title, justify="right" if column.right else "left", overflow="fold")
    for row in sheet.rows:
        table.add_row("  " * row.depth + row.cells[0], *row.cells[1:])
    console = Console(file=io.StringIO(), width=width or UNBOUNDED_WIDTH, color_system=None, emoji=False, markup=False)
    console.print(table, highlight=False)
    assert isinstance(console.file, io.StringIO)
    body = [line.rstrip() for line in console.file.getvalue().splitlines()]
    return "\n".join((sheet.title, "", *body, *(("", *sheet.below) if sheet.below else ())))


def as_markdown(sheet: Sheet) -> str:
    head = "| " + " | ".join(_escaped(column.title) for column in sheet.columns) + " |"
    rule = "|" + "|".join("---:" if column.right else "---" for column in sheet.columns) + "|"
    rows = ("| " + " | ".join(_markdown_cells(row)) + " |" for row in sheet.rows)
    below = tuple(line for text in sheet.below for line in ("", _escaped(text)))
    return "\n".join((f"## {_escaped(sheet.title)}", "", head, rule, *rows, *below))


def _markdown_cells(row: Row) -> tuple[str, ...]:
    cells = ("&nbsp;&nbsp;" * row.depth + _escaped(row.cells[0]), *map(_escaped, row.cells[1:]))
    return tuple(f"**{cell}**" if cell else "" for cell in cells) if row.strong else cells


def _escaped(text: str) -> str:
    """A name from a stranger's file must not become markup."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;").replace("_", "\\_")
