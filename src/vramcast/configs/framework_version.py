"""Which version of its framework a configuration is for: a flag says it, or a pin beside the files, else it is the one
whose source was read. Readers ask `Draft.is_before` where a default changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from vramcast.configs.records import Draft, Record
from vramcast.errors import InputError
from vramcast.setup.profiles import PROFILES
from vramcast.setup.versions import TRL_BESIDE, parse_numbers, parse_version

FLAG = "--framework-version"
WRITTEN = re.compile(r"v?\d+(\.\d+){0,3}([.\-+]?(dev|post|rc|a|b)\d*)?")
LEADING = re.compile(r"\d+(\.\d+)*")
# What pip calls a framework.
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "hf": ("transformers",),
    "peft": ("peft",),
    "trl": ("trl",),
    "accelerate": ("accelerate",),
    "deepspeed": ("deepspeed",),
    "llama-factory": ("llamafactory", "llama-factory"),
    "llama-factory-v1": ("llamafactory", "llama-factory"),
    "axolotl": ("axolotl",),
    "ms-swift": ("ms-swift",),
    "ms-swift-megatron": ("ms-swift",),
    "megatron": ("megatron-core",),
    "openrlhf": ("openrlhf",),
    "verl": ("verl",),
    "unsloth": ("unsloth",),
    "torchtune": ("torchtune",),
    "litgpt": ("litgpt",),
    "nemo": ("nemo-automodel", "nemo-rl"),
    "llm-foundry": ("llm-foundry",),
    "nanotron": ("nanotron",),
}
# Frameworks whose version is a word of the Job.
JOB_WORDS = {
    "hf": "transformers-version",
    "trl": "trl-version",
    "peft": "peft-version",
}


# What was read of frameworks that have no profile of their own.
READ = {
    "openrlhf": ("3c3be623", "2026-08-13"),
    "llm-foundry": ("8c8dd48f", "2025-07-21"),
    "nanotron": ("2411b022", "2026-04-07"),
    "deepspeed": ("edaa7221", "2026-08-22"),
    "peft": ("0.21", "2026-08-21"),
}
SAME_AS = {"llama-factory-v1": "llama-factory", "ms-swift-megatron": "ms-swift"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkVersion:
    """What is said of it: `0.9.1` and where that stands; `read` is the one that was read, and its day."""

    said: str | None = None
    origin: str = ""
    read: str = ""
    day: str = ""

    @property
    def text(self) -> str:
        return self.said or self.read


def check_version(text: str | None) -> None:
    if text is not None and not WRITTEN.fullmatch(text.strip()):
        raise InputError(f"{FLAG} is written like 0.9.6, with numbers and dots, not {text[:40]!r}")


def _read_of(framework: str) -> tuple[str, str]:
    """The version whose source was read, and the day."""
    profile = PROFILES.get(SAME_AS.get(framework, framework))
    return READ.get(framework, ("", "")) if profile is None else (profile.version, profile.read)


def decide_version(draft: Draft, asked: str | None, pins: Mapping[str, Record]) -> FrameworkVersion:
    """Of the draft's framework; sets what `is_before` compares with."""
    pinned = next((pins[name] for name in PACKAGES.get(draft.framework, ()) if name in pins), None)
    read, day = _read_of(draft.framework)
    if asked is None and pinned is None:
        return FrameworkVersion(read=read, day=day)
    source = pinned if asked is None else None
    said = (
        asked.strip().lstrip("v") if source is None and asked else str(getattr(source, "value", ""))
    )
    draft.version = _numbers(said)
    _say(draft, said, source, knows_transformers="transformers" in pins)
    origin = FLAG if source is None else source.place
    return FrameworkVersion(said=said, origin=origin, read=read, day=day)


def _numbers(text: str) -> tuple[int, ...]:
    """Those in front: 0.9.6 of `0.9.6.dev0`."""
    found = LEADING.match(text)
    return parse_numbers(found[0]) if found else (0,)


def _say(draft: Draft, said: str, pinned: Record | None, *, knows_transformers: bool) -> None:
    """In the Job's words, where it has them; with TRL goes the transformers of its day."""
    word = JOB_WORDS.get(draft.framework)
    if word is None:
        return
    numbers = ".".join(map(str, _numbers(said)))
    draft.say(word, numbers, pinned or FLAG)
    if draft.framework == "trl" and not knows_transformers:
        version = parse_version(numbers)
        beside = [first for first, trl in TRL_BESIDE if trl <= version]
        first = max(beside, default=TRL_BESIDE[-1][0])
        draft.say(
            "transformers-version",
            ".".join(map(str, first)),
            f"the transformers of TRL {said}'s day",
        )
