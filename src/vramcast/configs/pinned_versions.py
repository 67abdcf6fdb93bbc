"""Versions that a requirements or lock file beside the configuration pins (`transformers==4.57.1`), as the Job's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from vramcast.configs.folders import Folders
from vramcast.configs.records import Draft, Record
from vramcast.errors import VramcastError

NAMES = (
    "requirements.txt",
    "requirements-lock.txt",
    "requirements.lock",
    "uv.lock",
    "poetry.lock",
)
LOCKED = re.compile(r'^name = "([\w.-]+)"\nversion = "(\d+(?:\.\d+){1,3})', re.MULTILINE)
PIN = re.compile(r"^\s*([A-Za-z][\w.-]*)\s*==\s*(\d+(?:\.\d+){1,3})", re.MULTILINE)
INSTALLED = re.compile(r"(?<![\w./-])([A-Za-z][\w.-]*)(?:\[[\w,]*\])?==(\d+(?:\.\d+){1,3})")
LIBRARIES = {
    "torch": "torch-version",
    "transformers": "transformers-version",
    "trl": "trl-version",
    "peft": "peft-version",
    "bitsandbytes": "bitsandbytes-version",
    "liger-kernel": "liger-version",
}


def pinned_versions(folders: Folders) -> dict[str, Record]:
    """By package, as pip writes its name."""
    found: dict[str, Record] = {}
    for record in (*_pins(folders), *_installed(folders)):
        found.setdefault(record.key.lower().replace("_", "-"), record)
    return found


def say_pinned_versions(pins: Mapping[str, Record], draft: Draft) -> None:
    for package, word in LIBRARIES.items():
        if package in pins and word not in draft.said:
            draft.say(word, pins[package].value, pins[package])


def _installed(folders: Folders) -> Iterator[Record]:
    """`!pip install trl==0.9.6` in a notebook."""
    for path in folders.given:
        if path.suffix != ".ipynb":
            continue
        for number, line in enumerate(folders.read(path).splitlines(), 1):
            if "pip install" not in line:
                continue
            for match in INSTALLED.finditer(line):
                yield Record(key=match[1], value=match[2], file=str(path), line=number)


def _pins(folders: Folders) -> Iterator[Record]:
    """Of the first such file beside the given ones."""
    beside = (path.parent / name for path in folders.given for name in NAMES)
    path = next((path for path in beside if folders.find(path.name, path) == path), None)
    if path is None:
        return
    try:
        text = folders.read(path)
    except VramcastError:
        return
    for match in (LOCKED if path.suffix == ".lock" and "[[package]]" in text else PIN).finditer(
        text
    ):
        line = text.count("\n", 0, match.start(1)) + 1
        yield Record(key=match[1], value=match[2], file=str(Path(path)), line=line)
