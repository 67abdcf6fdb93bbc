"""What a reader is, and the common way of reading: labels near numbers.

In: a Passage. Out: Reads, each an Observation and the last line it took.
A Form is a reader written as data: for each field the words that stand beside its number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from vramcast.diagnose.observation import Figure, Moment, Observation
from vramcast.diagnose.readers.quantity import NUMBER, UNIT, is_gb_word, to_bytes
from vramcast.diagnose.readers.stream import Line, Passage, clean

EXCERPT_CHARS = 200
# unit of a clause that is no size → what it multiplies by, and the unit of the figure
_NOT_BYTES = {
    "%": (1, "%"),
    "share": (1, "share"),
    "count": (1, "count"),
    "billions": (10**9, "count"),
}
_RANK = re.compile(r"\[?rank[ :]?(\d{1,6})\]?\s?[:\]]", re.IGNORECASE)
# Ranks share one terminal: where one has not ended its line, the next begins behind its last number.
_NEXT_RANK = re.compile(r"(?<=\d)(?=\[rank ?\d{1,6}\])", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One observation and the last line it was read from, so that those lines are not read again."""

    observation: Observation
    last_line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A function and the lower-case words without which it need not be asked."""

    words: tuple[str, ...]
    read: Callable[[Passage], Iterable[Read]]
    is_fallback: bool = False  # asked only about lines that no other reader understood


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """A pattern whose groups `n` and `u` are the number and its unit. A field starting with + is a figure's label."""

    field: str
    pattern: re.Pattern[str]
    unit: str | None = None  # where none is printed; "" for a plain count, "%" for a share


def clause(field: str, pattern: str, unit: str | None = None) -> Clause:
    """`{q}` stands for a number with its unit, `{n}` for a number alone."""
    pattern = pattern.replace("{q}", rf"(?P<n>{NUMBER})\s*(?P<u>{UNIT})(?![A-Za-z])")
    return Clause(
        field=field,
        pattern=re.compile(pattern.replace("{n}", rf"(?P<n>{NUMBER})"), re.IGNORECASE),
        unit=unit,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A log format: the clauses, what its GB means, and over how many lines one statement may stretch."""

    kind: str
    words: tuple[str, ...]
    clauses: tuple[Clause, ...]
    moment: Moment = Moment.NOW
    place: str = "cuda"
    binary: bool = True
    span: int = 1
    notes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()  # fields without which the line is about something else
    device: str = ""  # a pattern whose group is the device's number
    is_fallback: bool = False

    def reader(self) -> Reader:
        return Reader(words=self.words, read=self.read, is_fallback=self.is_fallback)

    def read(self, passage: Passage) -> Iterable[Read]:
        line = passage.line
        if "[rank" not in line.raw.lower():
            yield from self._read(passage)
            return
        for raw in _NEXT_RANK.split(line.raw):
            yield from self._read(replace(passage, line=line._replace(raw=raw)))

    def _read(self, passage: Passage) -> Iterable[Read]:
        """One statement, if it says what this form needs."""
        found, last = self._statement(passage)
        if found and all(field in found for field in self.needs):
            yield Read(observation=self._observation(passage, found), last_line=last)

    def _statement(self, passage: Passage) -> tuple[dict[str, tuple[int | float | None, str]], int]:
        """Take lines as long as each adds a field; a field seen again starts the next statement."""
        found: dict[str, tuple[int | float | None, str]] = {}
        last, missed = passage.line.number, 0
        for at, line in enumerate(passage.lines(self.span)):
            is_wrapped = self.moment is Moment.FAILURE and at < len(passage.after)
            values = self._values(line.clean(), passage.after[at].clean() if is_wrapped else "")
            if not values or any(field in found for field in values):
                missed += 1
                if missed > 2 or values:
                    break
                continue
            found.update(values)
            last, missed = line.number, 0
        return found, last

    def _values(self, text: str, follows: str) -> dict[str, tuple[int | float | None, str]]:
        """What one line says; messages are often wrapped, so a number may stand at the beginning of the next."""
        found: dict[str, tuple[int | float | None, str]] = {}
        for item in self.clauses:
            match = item.pattern.search(f"{text} {follows}" if follows else text)
            if match and match.start() < len(text) and item.field not in found:
                unit = match.groupdict().get("u") or item.unit or "B"
                found[item.field] = (self._value(match["n"], unit), unit)
        return found

    def _value(self, number: str, unit: str) -> int | float | None:
        plain = number.replace(",", "")
        if unit in _NOT_BYTES:
            return (
                float(plain)
                if unit in ("%", "share")
                else int(Decimal(plain) * _NOT_BYTES[unit][0])
            )
        return to_bytes(number, unit, binary=self.binary)

    def _place(self, passage: Passage) -> str:
        lines = (
            passage.line,
            *reversed([*passage.preceding(2)]),
        )  # a report names the device in its heading
        found = (
            (re.search(self.device, line.clean(), re.IGNORECASE) for line in lines)
            if self.device
            else ()
        )
        match = next(filter(None, found), None)
        return f"{self.place}:{int(match.group(1))}" if match else self.place

    def _observation(
        self, passage: Passage, found: dict[str, tuple[int | float | None, str]]
    ) -> Observation:
        fields: dict[str, Any] = {
            name: value for name, (value, _) in found.items() if not name.startswith("+")
        }
        figures = tuple(
            Figure(label=name[1:], value=value, unit=_NOT_BYTES.get(unit, (1, "B"))[1])
            for name, (value, unit) in found.items()
            if name.startswith("+") and value is not None
        )
        says_gb = any(is_gb_word(unit) for _, unit in found.values())
        notes = self.notes + (("gb_is_gib",) if self.binary and says_gb else ())
        return observe(
            passage,
            kind=self.kind,
            moment=self.moment,
            place=self._place(passage),
            figures=figures,
            notes=notes,
            **with_reserved(fields),
        )


def with_reserved(fields: dict[str, Any]) -> dict[str, Any]:
    """allocated + reserved but unallocated = reserved, by the definition of the words."""
    allocated, unallocated = fields.get("allocated_bytes"), fields.get("unallocated_bytes")
    if allocated is None or unallocated is None or fields.get("reserved_bytes") is not None:
        return fields
    return {**fields, "reserved_bytes": allocated + unallocated, "derived": ("reserved_bytes",)}


def observe(passage: Passage, **fields: Any) -> Observation:
    """An observation with where it stood."""
    fields.setdefault("rank", rank_of(passage.line))
    return Observation(
        line=passage.line.number,
        excerpt=excerpt(clean(passage.line.raw[: 4 * EXCERPT_CHARS])),
        **fields,
    )


def excerpt(text: str) -> str:
    return text if len(text) <= EXCERPT_CHARS else text[: EXCERPT_CHARS - 1] + "…"


def rank_of(line: Line) -> int | None:
    match = _RANK.search(line.raw[:200])
    return int(match.group(1)) if match else None
