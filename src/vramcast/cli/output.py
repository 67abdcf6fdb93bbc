"""How a table or a record reaches the terminal: text folded to its width, markdown, or JSON."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable
from typing import Any

from vramcast.cli.options import print_json
from vramcast.report.table import Table, as_markdown, as_text

NARROWEST = 60


def print_table(
    args: argparse.Namespace, table: Callable[[str], Table], data: Callable[[], Any]
) -> None:
    """`table`: made for a language."""
    if args.json:
        print_json(data())
        return
    made = table(args.lang)
    print(as_markdown(made) if args.markdown else as_text(made, terminal_width()))


def terminal_width() -> int | None:
    """None when the output goes to a file or a pipe, where nothing may be folded."""
    if not sys.stdout.isatty():
        return None
    return max(NARROWEST, shutil.get_terminal_size().columns)


def show_progress(text: str) -> None:
    """A line on a terminal's standard error, in place of the one before; empty when there is nothing more to say."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
