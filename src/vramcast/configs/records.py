"""What a configuration file says, and what was understood of it.

    Record     one setting: key, value, file, line, and where its value stands in the text
    Settings   the records of one part of a job; remembers which of them somebody looked at
    Draft      the Job that is being understood: values with their origins, gaps, assumptions

A framework's module reads Settings and writes a Draft. A record that nobody looked at is named in the report.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from vramcast.errors import InputError

TRUE = ("true", "yes", "on", "1")
OPEN = re.compile(r"\$[A-Za-z_{(0-9]|`")
FALSE = ("false", "no", "off", "0", "none", "null", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    key: str
    value: Any
    file: str
    line: int
    span: tuple[int, int] | None = None  # of the value, in characters of the file

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file

    @property
    def name(self) -> str:
        """The key; of what the reader found out by itself (`_verb`), the word that it found."""
        return str(self.value) if self.key.startswith("_") else self.key

    @property
    def text(self) -> str:
        """`train.yaml:12 use_badam: true`, short enough for a line of a report."""
        if self.key.startswith("_"):
            return f"{self.place} {self.name}"
        shown = repr(self.value) if isinstance(self.value, str) else str(self.value)
        return f"{self.place} {self.key}: {shown if len(shown) <= 60 else shown[:60] + '…'}"


class Settings:
    """Records by key. A key that occurs twice has its last value, as every reader of YAML and of flags has it."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.records = {record.key: record for record in records}
        self.used: set[str] = set()
        self.asked: set[str] = set()  # looked at, but their value is not in the files

    def __contains__(self, key: str) -> bool:
        return key in self.records

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records.values())

    def record(self, *keys: str) -> Record | None:
        """The first of these keys that has a value; all of them count as looked at."""
        self.used.update(keys)
        for key in keys:
            record = self.records.get(key)
            if record is None or is_unset(record.value):
                continue
            if not is_open(record.value):
                return record
            self.asked.add(key)
        return None

    def value(self, *keys: str, default: Any = None) -> Any:
        record = self.record(*keys)
        return default if record is None else record.value

    def text(self, *keys: str, default: str = "") -> str:
        """A word in lower case."""
        return str(self.value(*keys, default=default)).strip().lower()

    def is_on(self, *keys: str, default: bool = False) -> bool:
        record = self.record(*keys)
        return default if record is None else truth(record)

    def number(self, *keys: str, default: int | None = None) -> int | None:
        record = self.record(*keys)
        return default if record is None else whole(record)

    def under(self, prefix: str) -> list[Record]:
        """Records of a nested part, all looked at."""
        found = [record for record in self if record.key.startswith(f"{prefix}.")]
        self.used.update(record.key for record in found)
        return found

    def unused(self) -> list[Record]:
        return [record for record in self if record.key not in self.used]


def is_unset(value: Any) -> bool:
    return value is None or (
        isinstance(value, str) and value.strip().lower() in ("", "null", "none", "~")
    )


def is_open(value: Any) -> bool:
    """`$N_GPUS`, `${PP}`, `$(nvidia-smi -L | wc -l)`: only a shell, or whoever starts it, knows the value."""
    return isinstance(value, str) and OPEN.search(value) is not None


def truth(record: Record) -> bool:
    value = record.value
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in TRUE or word in FALSE:
        return word in TRUE
    raise InputError(f"{record.place}: {record.key} must be true or false, not {str(value)[:80]!r}")


def whole(record: Record) -> int:
    try:
        number = float(record.value)
    except (TypeError, ValueError):
        number = float("nan")
    if isinstance(record.value, bool) or not number.is_integer():
        shown = str(record.value)[:80]
        raise InputError(f"{record.place}: {record.key} must be a whole number, not {shown!r}")
    return int(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A value of the Job and where it is from."""

    value: Any
    origin: str
    record: Record | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A setting that matters and that no word of the Job can say."""

    record: Record | None
    text: str

    def __str__(self) -> str:
        return self.text if self.record is None else f"{self.record.text}: {self.text}"


@dataclass(slots=True)
class Draft:
    """The Job as it is understood so far, in the Job's keys (`lora-rank`)."""

    said: dict[str, Said] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)
    framework: str = ""  # the main file's; "" before it was recognised
    version: tuple[int, ...] | None = None  # of the framework, where somebody says it
    # What several files decide together: compute (bf16, fp16, no), weights (dtype they are loaded in), pairs, …
    facts: dict[str, Any] = field(default_factory=dict)

    def say(self, key: str, value: Any, source: Record | str | None) -> None:
        """Two files that contradict each other are an assumption that must be seen: the first holds."""
        if value is None or source is None:
            return
        made = (
            Said(value=value, origin=source)
            if isinstance(source, str)
            else Said(value=value, origin=f"{source.place} {source.name}", record=source)
        )
        known = self.said.setdefault(key, made)
        if known.value != value:
            self.assumptions.append(
                f"{key} {show(known.value)} ({known.origin}) holds, not {show(value)} ({made.origin})"
            )

    def replace(self, key: str, value: Any, source: Record | str | None) -> None:
        self.said.pop(key, None)
        self.say(key, value, source)

    def value(self, key: str, default: Any = None) -> Any:
        found = self.said.get(key)
        return default if found is None else found.value

    def is_before(self, *version: int) -> bool:
        """Is the framework older than this, as far as anybody says how old it is?"""
        return self.version is not None and self.version < version

    def gap(self, record: Record | None, text: str) -> None:
        self.gaps.append(Gap(record=record, text=text))

    def assume(self, text: str) -> None:
        if text not in self.assumptions:
            self.assumptions.append(text)


def show(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
