"""How a table or a record reaches the terminal: text folded to its width, markdown, or JSON."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from vramcast.cli.arguments import in_language
from vramcast.cli.options import print_json
from vramcast.cli.terminal import NARROWEST, Screen, print_error, width_of
from vramcast.errors import InputError
from vramcast.report.table import Table, as_markdown, as_text, cell_width, fold

QUIET_SECONDS = 1.0  # what takes no longer needs no progress


def print_table(
    args: argparse.Namespace, table: Callable[[str], Table], data: Callable[[], Any]
) -> None:
    """`table`: made for a language."""
    if args.json:
        print_json(data())
        return
    made = table(args.lang)
    if args.markdown:
        print(as_markdown(made))
    else:
        print_report(as_text(made, terminal_width()))


def terminal_width() -> int | None:
    return width_of(sys.stdout)


def print_report(text: str, *, as_it_is: bool = False) -> None:
    """For people: folded between words and in colour on a terminal. `as_it_is`: JSON, CSV and Markdown."""
    if isinstance(sys.stdout, Screen) and not as_it_is:
        sys.stdout.show(text)
    else:
        print(text)


def print_warnings(texts: Iterable[str], lang: str) -> None:
    """On standard error, beside a report that has no place for them."""
    from vramcast.report.words import say
    from vramcast.report.words.forecast import LABELS
    from vramcast.report.words.sentences import translate

    for text in dict.fromkeys(texts):
        print_error(f"{say(LABELS, 'warning', lang)}: {translate(text, lang)}")


def write_text(flag: str, path: Path, text: str) -> None:
    """A file that the user named with a flag."""
    try:
        path.write_text(text, encoding="utf-8", errors="replace")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{flag} {path}: cannot be written ({reason})") from None


def show_progress(text: str) -> None:
    """A line on a terminal's standard error, in place of the one before; empty when there is nothing more to say."""
    if sys.stderr.isatty():
        text = in_language(text, sys.argv[1:])
        columns = max(NARROWEST, shutil.get_terminal_size().columns)
        shown = text if cell_width(text) < columns else f"{fold(text, columns - 2)[0]}…"
        print(f"\r\x1b[K{shown}", end="", file=sys.stderr, flush=True)
