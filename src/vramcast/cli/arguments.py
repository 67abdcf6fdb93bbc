"""What is wrong with a command line before anybody asks what it means: a value that is empty, an option said twice."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from vramcast.cli.terminal import print_error
from vramcast.errors import InputError

# Their emptiness is a value, or they say better what to give.
MAY_BE_EMPTY = ("--gpu", "--alloc-conf", "--cublas-workspace")


def in_language(text: str, arguments: Sequence[str]) -> str:
    """An error in the language that was asked for, else in the terminal's."""
    from vramcast.report.words import language_of

    lang = language_of(os.environ)
    if "--lang" in arguments[:-1]:
        lang = arguments[arguments.index("--lang") + 1]
    if lang != "zh":
        return text
    from vramcast.report.words.sentences import translate

    return translate(text, lang)


class Once(argparse.Action):
    """An option that keeps one value. Where two are given the last one counts, as everywhere; the first is named."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        seen: dict[str, Any] = vars(parser).setdefault("seen_values", {})
        before = seen.get(self.dest, values)
        if option_string is not None:
            seen[self.dest] = values
            if before != values:
                text = f"{option_string} is given twice: {_shown(values)} counts, {_shown(before)} is ignored"
                print_error(f"warning: {in_language(text, sys.argv[1:])}")
        setattr(namespace, self.dest, values)


def _shown(values: Any) -> str:
    return " ".join(map(str, values)) if isinstance(values, list) else str(values)


def check_empty(arguments: Sequence[str]) -> None:
    """A shell's unset variable leaves an empty word; what it should have said cannot be guessed."""
    for before, word in pairwise(("", *arguments)):
        name, equals, value = word.partition("=")
        if name.startswith("--") and equals and not value.strip():
            _refuse_empty(name)
        elif not word.strip():
            _refuse_empty(before if before.startswith("-") else "")


def _refuse_empty(flag: str) -> None:
    if flag in MAY_BE_EMPTY:
        return
    if not flag:
        raise InputError("one of the arguments is empty: give a name, or leave it out")
    raise InputError(f"{flag} is empty: give a value, or leave it out")
