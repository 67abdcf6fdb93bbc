"""Every allocation and free of one card, in order, and what follows from them.

nbytes 4 6 4   label 0 1 0   events 0 1 ~0 2 ~1      an index: allocated; its complement: freed
allocated after each event: 4 10 6 10 4              the peak is after event 1, where 0 and 1 are alive
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple


class Label(NamedTuple):
    """What an allocation is for; one label stands for many. What is not known is empty."""

    category: str
    module: str
    source: str  # file:line
    tensor: str  # the tensor, or the op that made it


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """`phases` and `reserved` hold from an event on, until the next one."""

    name: str
    place: str
    origin: str  # formula, traced or measured
    labels: tuple[Label, ...]
    nbytes: tuple[int, ...]  # of every allocation, as torch counts it
    label: tuple[int, ...]
    events: tuple[int, ...]
    phases: tuple[tuple[int, str], ...] = ()
    reserved: tuple[tuple[int, int], ...] = ()
    capacity_bytes: int | None = None
    context_bytes: int = 0
    recorded_events: int = 0  # of which these are left, where the rest was thinned out
    is_unlimited: bool = False  # the card ran out, and this is the run on one without limit

    @property
    def is_thinned(self) -> bool:
        return len(self.events) < self.recorded_events

    def totals(self) -> Iterator[int]:
        """Allocated bytes after each event."""
        total = 0
        for event in self.events:
            total += self.nbytes[event] if event >= 0 else -self.nbytes[~event]
            yield total

    def peak(self) -> tuple[int, int]:
        """The first event after which most is allocated, and the bytes."""
        best, at = 0, 0
        for index, total in enumerate(self.totals()):
            if total > best:
                best, at = total, index
        return at, best

    def alive_at(self, event: int) -> list[int]:
        """The allocations that are alive after an event."""
        alive: dict[int, None] = {}
        for index in self.events[: event + 1]:
            if index >= 0:
                alive[index] = None
            else:
                alive.pop(~index, None)
        return list(alive)

    def holders_at(
        self, event: int, key: Callable[[Label], Hashable] = lambda label: label
    ) -> list[tuple[Any, int, int]]:
        """Who holds memory after an event, largest first: key, bytes, allocations."""
        sums: dict[Hashable, list[int]] = {}
        for index in self.alive_at(event):
            found = sums.setdefault(key(self.labels[self.label[index]]), [0, 0])
            found[0] += self.nbytes[index]
            found[1] += 1
        rows = [(name, nbytes, count) for name, (nbytes, count) in sums.items()]
        return sorted(rows, key=lambda row: -row[1])

    def phase_at(self, event: int) -> str:
        found = ""
        for start, phase in self.phases:
            if start > event:
                break
            found = phase
        return found

    def as_json(self) -> dict[str, Any]:
        at, nbytes = self.peak()
        return {
            "name": self.name,
            "place": self.place,
            "origin": self.origin,
            "labels": [list(label) for label in self.labels],
            "bytes": list(self.nbytes),
            "label": list(self.label),
            "events": list(self.events),
            "phases": [list(each) for each in self.phases],
            "reserved": [list(each) for each in self.reserved],
            "capacity_bytes": self.capacity_bytes,
            "context_bytes": self.context_bytes,
            "recorded_events": self.recorded_events or len(self.events),
            "peak": {"event": at, "bytes": nbytes, "phase": self.phase_at(at)},
            "is_unlimited": self.is_unlimited,
        }


class Recorder:
    """Collects allocations and frees while something plays them. Keys name live allocations."""

    def __init__(self) -> None:
        self._labels: dict[Label, int] = {}
        self._alive: dict[Hashable, int] = {}
        self._nbytes: list[int] = []
        self._label: list[int] = []
        self._events: list[int] = []
        self._phases: list[tuple[int, str]] = []
        self._reserved: list[tuple[int, int]] = []

    def begin_phase(self, phase: str) -> None:
        if not self._phases or self._phases[-1][1] != phase:
            if self._phases and self._phases[-1][0] == len(self._events):
                self._phases.pop()
            self._phases.append((len(self._events), phase))

    def allocate(self, key: Hashable, nbytes: int, label: Label) -> None:
        self._alive[key] = len(self._nbytes)
        self._events.append(len(self._nbytes))
        self._nbytes.append(nbytes)
        self._label.append(self._labels.setdefault(label, len(self._labels)))

    def free(self, key: Hashable) -> None:
        index = self._alive.pop(key, None)
        if index is not None:
            self._events.append(~index)

    def reserve(self, nbytes: int) -> None:
        """What is reserved after the last event."""
        if not self._reserved or self._reserved[-1][1] != nbytes:
            self._reserved.append((max(len(self._events) - 1, 0), nbytes))

    def timeline(self, name: str, place: str, origin: str, **more: Any) -> Timeline:
        return Timeline(
            name=name,
            place=place,
            origin=origin,
            labels=tuple(self._labels),
            nbytes=tuple(self._nbytes),
            label=tuple(self._label),
            events=tuple(self._events),
            phases=tuple(self._phases),
            reserved=tuple(self._reserved),
            recorded_events=len(self._events),
            **more,
        )


def renumbered(timeline: Timeline, events: Sequence[int], **more: Any) -> Timeline:
    """The timeline with these of its events; allocations that none of them mentions are left out."""
    kept = sorted({event if event >= 0 else ~event for event in events})
    number = {index: place for place, index in enumerate(kept)}
    return replace(
        timeline,
        nbytes=tuple(timeline.nbytes[index] for index in kept),
        label=tuple(timeline.label[index] for index in kept),
        events=tuple(number[event] if event >= 0 else ~number[~event] for event in events),
        **more,
    )
