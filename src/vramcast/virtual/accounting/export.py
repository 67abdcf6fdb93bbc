"""What a trace is saved as: plain numbers and words, in the form that `vramcast.traces.record` reads."""

from __future__ import annotations

import os
from typing import Any

from vramcast.ledger import Category, Entry
from vramcast.traces.record import FORMAT, VERSION
from vramcast.virtual.accounting.cards import Cards
from vramcast.virtual.accounting.history import Allocation, History


def trace_json(cards: Cards, command: list[str], steps: int, ending: str) -> dict[str, Any]:
    """`cards` after the run, with their history kept."""
    ledger = cards.ledger()
    streams = {}
    for place in ledger.devices():
        history = cards.meters[place].history
        if history is not None:
            streams[place] = _stream_json(cards, history)
    return {
        "format": FORMAT,
        "version": VERSION,
        "command": command,
        "card": cards.card.name,
        "capacity_bytes": cards.card.capacity_bytes(),
        "context_bytes": cards.card.context_bytes or 0,
        "allocator": os.environ.get("PYTORCH_ALLOC_CONF")
        or os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
        or "",
        "steps": steps,
        "ending": ending,
        "entries": [_entry_json(entry) for entry in ledger.entries],
        "cards": streams,
    }


def _stream_json(cards: Cards, history: History) -> dict[str, Any]:
    labels: dict[tuple[str, ...], int] = {}
    numbers = []
    passing = _within_one_phase(history)
    for index, made in enumerate(history.allocations):
        label = _label(cards, made, passes=index in passing)
        numbers.append(labels.setdefault(label, len(labels)))
    return {
        "labels": [list(label) for label in labels],
        "bytes": [made.requested_bytes for made in history.allocations],
        "label": numbers,
        "stream": [made.stream for made in history.allocations],
        "events": history.events,
    }


def _within_one_phase(history: History) -> set[int]:
    """Allocations that are freed before the next phase allocates."""
    found, begun = set(), dict[int, int]()
    phase, count = "", 0
    for event in history.events:
        if event < 0:
            if begun.get(~event) == count:
                found.add(~event)
            continue
        if history.allocations[event].phase != phase:
            phase, count = history.allocations[event].phase, count + 1
        begun[event] = count
    return found


def _label(cards: Cards, made: Allocation, *, passes: bool) -> tuple[str, ...]:
    """`passes`: it ends within its phase. What a later phase still has is kept for it."""
    if made.record is None:
        return (str(Category.TEMPORARY), "inside a kernel", "", "", made.phase)
    line = cards.bill.line(made.record, made.phase if passes else "")
    return (str(line.category), line.component, line.source, made.record.cause, made.phase)


def _entry_json(entry: Entry) -> dict[str, Any]:
    return {
        "category": str(entry.category),
        "component": entry.component,
        "place": entry.place,
        "phases": list(entry.phases),
        "nbytes": entry.nbytes,
        "origin": str(entry.origin),
        "level": str(entry.level),
        "source": entry.source,
        "range_bytes": None if entry.range_bytes is None else list(entry.range_bytes),
    }
