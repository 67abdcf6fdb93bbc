"""Keeps the documentation true: writes docs/commands.md from the parsers, and runs what the pages show.

A fenced block whose first line is `$ vramcast …` is a session: each command is run from the repository's root and what
it prints stands below it. A line of three dots stands for any lines. `make docs` rewrites; the tests compare.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from vramcast.cli import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
COMMANDS_PAGE = ROOT / "docs" / "commands.md"
FENCE = re.compile(r"^```[a-z]*\n(?P<session>\$ vramcast .*?)^```$", re.MULTILINE | re.DOTALL)
ANYTHING = "..."


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One command of a page and what the page says it prints."""

    page: Path
    command: str
    output: str


# ---- sessions


def pages() -> list[Path]:
    return sorted((*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")))


def sessions(page: Path) -> Iterator[Shown]:
    for block in FENCE.finditer(page.read_text(encoding="utf-8")):
        for part in re.split(r"^\$ ", block["session"], flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield Shown(page=page, command=command, output=output)


def run(command: str) -> str:
    """What the command prints, errors included, as on a terminal that does not fold."""
    words = shlex.split(command)
    environment = os.environ | {
        "COLUMNS": "120",
        "NO_COLOR": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False,
    )  # fmt: skip
    return done.stdout


def agrees(shown: str, printed: str) -> bool:
    """Equal line by line, where a line of three dots stands for any lines."""
    pattern = ".*".join(re.escape(part) for part in _lines(shown).split(f"\n{ANYTHING}\n"))
    return re.fullmatch(pattern, _lines(printed), re.DOTALL) is not None


def _lines(text: str) -> str:
    return "\n" + "\n".join(line.rstrip() for line in text.strip("\n").splitlines()) + "\n"


def refreshed(text: str) -> str:
    """The page with every session's output as it is now; sessions with dots are left to their writer."""

    def again(block: re.Match[str]) -> str:
        parts = re.split(r"^\$ ", block["session"], flags=re.MULTILINE)[1:]
        return block[0].replace(block["session"], "".join(map(_refreshed_part, parts)))

    return FENCE.sub(again, text)


def _refreshed_part(part: str) -> str:
    command, _, output = part.partition("\n")
    if f"\n{ANYTHING}\n" in f"\n{output}":
        return f"$ {part}"
    return f"$ {command}\n{_lines(run(command))[1:]}"


# ---- the page of commands


def commands_page() -> str:
    parts = ["# Commands", "", "Written by `make docs` from the commands themselves.", ""]
    for name, text in COMMANDS.items():
        parts += [
            f"## vramcast {name}",
            "",
            f"{text[0].upper()}{text[1:]}.",
            "",
            *_options(parser_of(name)),
            "",
        ]
    return "\n".join(parts).rstrip() + "\n"


def parser_of(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"vramcast {name}", description=COMMANDS[name], allow_abbrev=False
    )
    import_module(f"vramcast.cli.{name}").configure(parser)
    return parser


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield from ("| | |", "|---|---|")
    for action in parser._actions:
        is_hidden = action.help == argparse.SUPPRESS
        if not isinstance(action, argparse._HelpAction) and not is_hidden:
            yield f"| `{_name(action)}` | {_help(parser, action)} |"


def _name(action: argparse.Action) -> str:
    value = action.metavar or (
        "|".join(map(str, action.choices)) if action.choices else action.dest.upper()
    )
    if not action.option_strings:
        return str(value).replace("|", "\\|")
    names = ", ".join(action.option_strings)
    return names if action.nargs == 0 else f"{names} {value}".replace("|", "\\|")


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return parser._get_formatter()._expand_help(action).replace("|", "\\|") if action.help else ""


def main() -> int:
    COMMANDS_PAGE.write_text(commands_page(), encoding="utf-8")
    for page in pages():
        text = page.read_text(encoding="utf-8")
        page.write_text(refreshed(text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
