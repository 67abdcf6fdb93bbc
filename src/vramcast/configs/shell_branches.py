"""Which branch of `if`, `case` and `while` a launch script takes, as far as its text says it.

A script is read as if it were started without arguments and without variables from outside: `$1` and a variable
that nobody set are empty. A test that asks for more (`[ -f FILE ]`, `$(nproc)`) has no answer here: its first branch
is read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

NOT_SET = re.compile(r"\$(\{?[A-Za-z_]\w*\}?|\{?[0-9@*]+\}?)")
COUNT = re.compile(r"\$\{?#\}?")
NUMBERS = ("-eq", "-ne", "-gt", "-lt", "-ge", "-le")
LAST = 8  # nested tests that one line of `-a` and `-o` may have


@dataclass(slots=True)
class Branch:
    """One open `if`, `case` or loop."""

    kind: str
    line: int
    is_active: bool = False
    is_taken: bool = False  # one of the branches was
    in_condition: bool = True
    is_known: bool = True
    value: bool | None = True
    join: str = "&&"  # how the next part of the condition is added
    subject: str | None = None  # of `case`
    patterns: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Branches:
    """The branches that are open where the script is read."""

    open: list[Branch] = field(default_factory=list)
    unknown: list[Branch] = field(default_factory=list)  # taken without an answer

    @property
    def is_active(self) -> bool:
        """Is what stands here carried out?"""
        return all(each.is_active or each.in_condition for each in self.open)

    @property
    def in_condition(self) -> bool:
        return bool(self.open) and self.open[-1].in_condition

    def keyword(self, word: str, line: int) -> None:
        last = self.open[-1] if self.open else None
        if word in ("if", "while", "until", "case"):
            self.open.append(Branch(kind=word, line=line))
        elif word == "do" and (last is None or not (last.in_condition and last.kind != "case")):
            self.open.append(Branch(kind="for", line=line, is_active=True, in_condition=False))
        elif last is not None:
            self._go_on(word, last)

    def _go_on(self, word: str, last: Branch) -> None:
        if word in ("then", "do") and last.in_condition:
            last.in_condition = False
            is_met = last.value is not False or last.kind == "until"
            last.is_active = is_met and not last.is_taken
            last.is_known = last.value is not None or last.is_taken
            last.is_taken = last.is_taken or is_met
        elif word == "elif" and last.kind == "if":
            last.is_active, last.in_condition, last.value, last.join = False, True, True, "&&"
        elif word == "else" and last.kind == "if":
            last.is_active, last.in_condition, last.is_taken = not last.is_taken, False, True
        elif word == {"if": "fi", "case": "esac"}.get(last.kind, "done"):
            self.open.pop()

    def assigned(self) -> None:
        """A variable gets a value in a branch that was taken without an answer."""
        self.unknown += [each for each in self.open if each.is_active and not each.is_known]

    def test(self, words: Sequence[str], sign: str) -> None:
        """A part of the condition, and the sign behind it."""
        last = self.open[-1]
        if last.kind == "case":
            self._case(last, words, sign)
            return
        if words:
            found = answer(words)
            last.value = (
                _both(last.value, found) if last.join == "&&" else _either(last.value, found)
            )
        if sign in ("&&", "||"):
            last.join = sign

    def _case(self, last: Branch, words: Sequence[str], sign: str) -> None:
        rest = list(words)
        if last.subject is None and rest:
            last.subject = _filled(rest[0])
            rest = rest[2:] if rest[1:2] == ["in"] else rest[1:]
            last.is_known = last.subject is not None
        last.patterns += [each for each in rest if each != "in"]
        if sign != ")" or not last.patterns:
            return
        subject = last.subject or ""
        is_met = any(fnmatchcase(subject, pattern) for pattern in last.patterns)
        last.is_active = not last.is_taken and (is_met or not last.is_known)
        last.is_taken = last.is_taken or last.is_active
        last.in_condition, last.patterns = False, []

    def end_clause(self) -> None:
        """`;;`"""
        last = self.open[-1] if self.open else None
        if last is not None and last.kind == "case":
            last.is_active, last.in_condition = False, True


def answer(words: Sequence[str]) -> bool | None:
    """Of `[ "$A" = 7B ]`; None: only a shell knows."""
    inner = [each for each in words if each not in ("[", "[[", "]", "]]", "test")]
    is_test = (bool(words) and words[0] in ("[", "[[", "test")) or words[-1:] in (["]"], ["]]"])
    if words[:1] == ["true"] or words[:1] == ["false"]:
        return words[0] == "true"
    return _judge(inner, 0) if is_test or (len(inner) == 3 and inner[1] in ("==", "!=")) else None


def _judge(words: list[str], depth: int) -> bool | None:
    for sign, join in (("-o", _either), ("-a", _both)):
        if sign in words and depth < LAST:
            at = words.index(sign)
            return join(_judge(words[:at], depth + 1), _judge(words[at + 1 :], depth + 1))
    if words[:1] == ["!"]:
        found = _judge(words[1:], depth + 1) if depth < LAST else None
        return None if found is None else not found
    if words[:1] in (["-z"], ["-n"]):
        value = _filled(words[1]) if len(words) > 1 else ""
        return None if value is None else (value == "") == (words[0] == "-z")
    if len(words) == 1:
        value = _filled(words[0])
        return None if value is None else value != ""
    return _compared(words)


def _compared(words: list[str]) -> bool | None:
    at = next((n for n, word in enumerate(words) if word in ("=", "==", "!=", *NUMBERS)), None)
    if at is None:
        return None
    left, right = (_filled(" ".join(part)) for part in (words[:at], words[at + 1 :]))
    if left is None or right is None:
        return None
    if words[at] in ("=", "==", "!="):
        return fnmatchcase(left, right) == (words[at] != "!=")
    try:
        one, other = int(left or 0), int(right or 0)
    except ValueError:
        return None
    return {
        "-eq": one == other,
        "-ne": one != other,
        "-gt": one > other,
        "-lt": one < other,
        "-ge": one >= other,
        "-le": one <= other,
    }[words[at]]


def _filled(text: str) -> str | None:
    """With nothing in the place of what nobody set."""
    text = NOT_SET.sub("", COUNT.sub("0", text))
    return None if "$" in text or "`" in text else text


def _both(one: bool | None, other: bool | None) -> bool | None:
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def _either(one: bool | None, other: bool | None) -> bool | None:
    if one is True or other is True:
        return True
    return None if one is None or other is None else False
