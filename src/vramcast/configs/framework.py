"""One framework's table: which key says what. One mechanism for all of them.

    direct       keys that are a word of the Job under another name
    rules        functions for what follows from several keys together; they look at Settings and write the Draft
    gaps         keys that matter and cannot be said, with the reason; not where they are off
    no_effect    keys that are known not to matter for memory (patterns); a pattern for a whole group (`train.*`) leaves
                 out names in it that memory settings have
    apart        groups about something else than the model that is trained

What none of these looks at is named in the report as not understood.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from vramcast.configs.records import Draft, Record, Settings, is_unset

# Names that memory settings have, of whatever framework.
SUGGESTIVE = re.compile(
    r"lora|adapter|quant|_bits|batch_size|seq_len|max_len|offload|zero|checkpoint(?!s?_|.*(path|dir|save|load|file))"
    r"|fp16|bf16|fp8|dtype|precision|parallel|freeze|shard|pixels|n_gpu|gpus|optimizer|compile",
    re.IGNORECASE,
)
Rule = Callable[[Settings, Draft], None]

OFF: tuple[Any, ...] = (False, 0, "none", "null", "no", "off", "false", "", "auto", [], {}, "0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    name: str
    title: str
    direct: Mapping[str, str] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    gaps: Mapping[str, str] = field(default_factory=dict)
    no_effect: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()  # groups about something else than the model that is trained
    marks: Mapping[str, int] = field(
        default_factory=dict
    )  # keys that tell it from others, with their weight

    def likeness(self, settings: Settings) -> int:
        return sum(weight for key, weight in self.marks.items() if _occurs(key, settings))

    def read(self, settings: Settings, draft: Draft) -> None:
        for rule in self.rules:
            rule(settings, draft)
        for key, word in self.direct.items():
            record = settings.record(key)
            if record is not None and not _is_auto(record.value):
                draft.say(word, record.value, record)
        for key, text in self.gaps.items():
            found = [
                record for record in _matching(key, settings) if record.key not in settings.used
            ]
            asked = [record for record in found if not is_off(record.value)]
            if asked:  # a nested part is one gap
                draft.gap(asked[0], text)
            settings.used.update(record.key for record in found)
        for key in settings.asked:
            draft.gap(settings.records[key], "its value is not in the files: say it with flags")
        is_harmless = _any_of(self.no_effect)
        settings.used.update(
            record.key
            for record in settings
            if record.key.startswith(self.apart) or is_harmless(record.key)
        )


def is_off(value: Any) -> bool:
    return is_unset(value) or (str(value).lower() if isinstance(value, str) else value) in OFF


def words(text: str) -> tuple[str, ...]:
    """A table's keys, written as a paragraph."""
    return tuple(text.split())


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value.lower() == "auto"


def _occurs(key: str, settings: Settings) -> bool:
    if key.endswith("*"):
        return any(record.key.startswith(key[:-1]) for record in settings)
    return key in settings


def _matching(key: str, settings: Settings) -> Iterable[Record]:
    if "*" not in key:
        return [settings.records[key]] if key in settings else []
    return [record for record in settings if record.key.startswith(key.rstrip("*"))]


@cache
def _any_of(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    """Names, beginnings (`lr_*`), and few patterns that need more: a compiled expression of all would take longer."""
    names = frozenset(pattern for pattern in patterns if "*" not in pattern)
    starts = tuple(each[:-1] for each in patterns if each.endswith("*") and each.count("*") == 1)
    others = tuple(each for each in patterns if "*" in each[:-1])

    def is_harmless(key: str) -> bool:
        if key in names or any(fnmatchcase(key, each) for each in others):
            return True
        last = key.rfind(".") + 1
        begins = [each for each in starts if key.startswith(each)]
        return any(len(each) > last or not SUGGESTIVE.search(key, last) for each in begins)

    return is_harmless
