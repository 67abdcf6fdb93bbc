"""A traced run as data, and the file it is saved in: gzipped JSON with a version, no pickle.

{"format": "vramcast trace", "version": 1, "command": […], "card": "RTX 4090", …,
 "entries": […],                                 the lines of the bill
 "cards": {"cuda:0": {"labels": [[category, component, source, op, phase], …],
                      "bytes": […], "label": […], "stream": […],      one for every allocation
                      "events": [0, 1, -2, 2, …]}}}                   an index: allocated; its complement: freed
"""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vramcast.errors import InputError, OutputError
from vramcast.files import read_bytes
from vramcast.ledger import Category, Entry, Ledger, Level, Origin

FORMAT, VERSION, SUFFIX = "vramcast trace", 1, ".trace"
_MOST_BYTES = 256 << 20
_MOST_UNPACKED_BYTES = (2 << 30) - 1  # in a browser Python counts with 32 bits


@dataclass(frozen=True, slots=True)
class Label:
    """What an allocation is for; one label stands for many."""

    category: str
    component: str
    source: str
    op: str
    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CardStream:
    """Every allocation and free of one card, in order."""

    labels: tuple[Label, ...]
    requested_bytes: tuple[int, ...]
    label: tuple[int, ...]
    stream: tuple[int, ...]
    events: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    command: tuple[str, ...]
    card: str
    capacity_bytes: int
    context_bytes: int
    steps: int
    ending: str
    ledger: Ledger
    cards: dict[str, CardStream]
    allocator: str = ""  # PYTORCH_CUDA_ALLOC_CONF


def write(path: str | Path, data: dict[str, Any]) -> None:
    """`data` as `virtual/accounting/export.py` makes it."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode()
    try:
        Path(path).write_bytes(gzip.compress(text, 6, mtime=0))
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror})") from None


def read(path: str | Path, most_unpacked_bytes: int = _MOST_UNPACKED_BYTES) -> Trace:
    packed = read_bytes(path, _MOST_BYTES)
    unpacker = zlib.decompressobj(wbits=31)
    try:
        text = unpacker.decompress(packed, most_unpacked_bytes)
        data = json.loads(text)
    except (zlib.error, ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a trace that vramcast saved ({error})") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise InputError(f"{path} is not a trace that vramcast saved")
    if data.get("version") != VERSION:
        raise InputError(
            f"{path} is of version {data.get('version')!r}; this vramcast reads version {VERSION}: trace again."
        )
    try:
        return from_json(data)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(f"{path} is damaged: {type(error).__name__} {error}") from None


def from_json(data: dict[str, Any]) -> Trace:
    return Trace(
        command=tuple(map(str, data["command"])),
        card=str(data["card"]),
        capacity_bytes=int(data["capacity_bytes"]),
        context_bytes=int(data["context_bytes"]),
        steps=int(data["steps"]),
        ending=str(data["ending"]),
        ledger=Ledger(entries=tuple(_entry(form) for form in data["entries"])),
        cards={str(place): _stream(form) for place, form in data["cards"].items()},
        allocator=str(data.get("allocator", "")),
    )


def _entry(form: dict[str, Any]) -> Entry:
    bounds = form.get("range_bytes")
    return Entry(
        category=Category(form["category"]),
        component=str(form["component"]),
        place=str(form["place"]),
        phases=tuple(map(str, form["phases"])),
        nbytes=int(form["nbytes"]),
        origin=Origin(form["origin"]),
        level=Level(form["level"]),
        source=str(form["source"]),
        range_bytes=None if bounds is None else (int(bounds[0]), int(bounds[1])),
    )


def _stream(form: dict[str, Any]) -> CardStream:
    found = CardStream(
        labels=tuple(Label(*map(str, label)) for label in form["labels"]),
        requested_bytes=tuple(map(int, form["bytes"])),
        label=tuple(map(int, form["label"])),
        stream=tuple(map(int, form["stream"])),
        events=tuple(map(int, form["events"])),
    )
    count = len(found.requested_bytes)
    in_order = len(found.label) == len(found.stream) == count
    if not in_order or any(not -count <= event < count for event in found.events):
        raise ValueError("events of allocations that are not there")
    if any(not 0 <= index < len(found.labels) for index in found.label):
        raise ValueError("labels that are not there")
    return found
