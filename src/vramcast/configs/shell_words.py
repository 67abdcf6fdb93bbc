"""Words of a launch script, and what stands for them: parts of a variable, sums of whole numbers."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace


def _in_brackets(depth: int) -> str:
    """Text whose brackets are balanced, so many deep."""
    inner = rf"(?:\({_in_brackets(depth - 1)}\)[^()]*)*" if depth else ""
    return rf"[^()]*{inner}"


# What splitting at spaces leaves whole: `$(date "+%d %m")`.
PIECE = re.compile(rf"(?:\$\({_in_brackets(3)}\)|`[^`]*`|\S)+")
# `$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)`: the script's own folder, or one above it.
_OWN = r"""\$\(\s*dirname\s+(?:--\s+)?"?(?:\$0|\$\{?BASH_SOURCE(?:\[0\])?\}?|\$\{BASH_SOURCE\[0\]:-\$0\})"?\s*\)"""
OWN_FOLDER = re.compile(
    rf"""\$\(\s*cd\s+(?:--\s+|-P\s+)?"?{_OWN}"?((?:/[\w.-]+)*)"?(?:\s*[12]?>\s*/dev/null(?:\s*2>&1)?)?\s*&&\s*pwd(?:\s+-P)?\s*\)|{_OWN}"""
)
ONE_VARIABLE = re.compile(r'"?\$\{?([A-Za-z_]\w*)\}?"?')
SUM = re.compile(r"[\d\s+\-*/%()]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    text: str
    line: int
    # Of the text in the file; None where variables were filled in.
    span: tuple[int, int] | None = None
    pieces: tuple[Word, ...] = ()  # of a text with variables in it, where they can be told apart


@dataclass(slots=True)
class Command:
    words: list[Word] = field(default_factory=list)
    environment: dict[str, Word] = field(default_factory=dict)


@dataclass(slots=True)
class Script:
    commands: list[Command] = field(default_factory=list)
    variables: dict[str, list[Word]] = field(default_factory=dict)
    exported: dict[str, Word] = field(default_factory=dict)
    open_lines: list[int] = field(default_factory=list)  # of tests whose first branch is read
    loose_lines: list[int] = field(default_factory=list)  # a backslash, and more behind it
    not_sourced: list[Word] = field(default_factory=list)  # files that are taken in and not here


def pieces_of(raw: str, start: int, line: int, word: Word, known: Mapping[str, list[Word]]) -> Word:
    """`"--batch $B --seq 2048"` with the places of its words: of 2048 here, of $B where it gets its value."""
    named, texts = PIECE.findall(raw.strip('"').replace("\\\n", "  ")), PIECE.findall(word.text)
    if len(named) != len(texts) or not raw.startswith('"'):
        return word
    made, at = [], 0
    for each, text in zip(named, texts, strict=True):
        at = raw.find(each, at)
        variable = ONE_VARIABLE.fullmatch(each)
        values = known.get(variable[1], []) if variable else []
        span = values[0].span if len(values) == 1 and values[0].text == text else None
        if each == text and at >= 0:
            span = (start + at, start + at + len(each))
        made.append(Word(text=text, line=line + raw.count("\n", 0, max(at, 0)), span=span))
        at = max(at, 0) + len(each)
    return replace(word, pieces=tuple(made))


def spans_of(parts: list[str], word: Word, text: str) -> list[tuple[int, int]] | None:
    """Where the words of a variable's value stand in the file; None: not as they are."""
    if word.span is None or not parts or "".join(parts) == "":
        return None
    if len(parts) == 1 and parts[0] == word.text:
        return [word.span]
    spans, at = [], word.span[0]
    for part in parts:
        found = text.find(part, at, word.span[1])
        if found < 0:
            return None
        at = found + len(part)
        spans.append((found, at))
    return spans


def item_of(values: list[str], index: str | None) -> list[str]:
    if index is None:
        return values[:1]
    number = index.strip("[]")
    if number in ("@", "*"):
        return values
    return values[int(number) : int(number) + 1] or [""]


def sum_of(text: str) -> int | None:
    """`8 * 4` of whole numbers; anything else is left alone."""
    if not SUM.fullmatch(text) or len(text) > 100 or "**" in text:
        return None
    known = {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Div: operator.floordiv,
        ast.FloorDiv: operator.floordiv,
        ast.Mod: operator.mod,
    }

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in known:
            return int(known[type(node.op)](value(node.left), value(node.right)))
        raise ValueError

    try:
        return value(ast.parse(text.strip(), mode="eval").body)
    except (ValueError, SyntaxError, ZeroDivisionError, RecursionError):
        return None
