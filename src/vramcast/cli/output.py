"""How a sheet or a record reaches the terminal: text folded to its width, markdown, or JSON."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable
from typing import Any

from vramcast.cli.options import print_json
from vramcast.report.sheet import Sheet, Words, as_markdown, as_text
from vramcast.report.words.catalog import label

NARROWEST = 60


def print_sheet(args: argparse.Namespace, sheet: Callable[[Words], Sheet], data: Callable[[], Any]) -> None:
    if args.json:
        print_json(data())
        return
    drawn = sheet(lambda text: label(text, args.lang))
    print(as_markdown(drawn) if args.markdown else as_text(drawn, terminal_width()))


def terminal_width() -> int | None:
    """None when the output goes to a file or a pipe, where nothing may be folded."""
    if not sys.stdout.isatty():
        return None
    return max(NARROWEST, shutil.get_terminal_size().columns)


def show_progress(text: str) -> None:
    """A line on a terminal's standard error, in place of the one before; empty when there is nothing more to say."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
