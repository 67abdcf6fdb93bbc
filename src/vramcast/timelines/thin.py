"""A long timeline made short enough for a file, with the same fullest moments.

The events are cut into equal shares. What is allocated and freed within one share, and is not alive at the share's
fullest moment, changes nothing that is drawn: it is left out. If too much is left, allocations with one label that
begin in one share and end in one share become one, and shares become longer until the rest is short enough.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace

from vramcast.timelines.record import Label, Timeline, renumbered

MOST_LABELS = 1500
REST = "all others"
NUMBERS = re.compile(r"(?<![^.])\d+(?![^.])")  # parts of a dotted name that are a number


def thin(timeline: Timeline, most_events: int) -> Timeline:
    """At most `most_events` events; the peak, and what is alive there by label, stay as they are."""
    if len(timeline.events) <= most_events:
        return _with_fewer_labels(timeline)
    shares = most_events // 2
    while True:
        shorter = _joined(_without_passing(timeline, shares), shares, len(timeline.events))
        if len(shorter.events) <= most_events or shares == 1:
            return _with_fewer_labels(shorter)
        shares = max(shares // 2, 1)


def _bounds(count: int, shares: int) -> list[int]:
    """The first event of every share."""
    return [count * share // shares for share in range(shares)]


def _fullest(totals: Sequence[int], bounds: Sequence[int]) -> list[int]:
    """Of every share, its fullest moment."""
    ends = [*bounds[1:], len(totals)]
    return [
        max(range(start, end), key=totals.__getitem__) if end > start else start
        for start, end in zip(bounds, ends, strict=True)
    ]


def _without_passing(timeline: Timeline, shares: int) -> Timeline:
    totals = list(timeline.totals())
    bounds = _bounds(len(totals), shares)
    fullest = _fullest(totals, bounds)
    born: dict[int, int] = {}
    passing: set[int] = set()
    for moment, event in enumerate(timeline.events):
        if event >= 0:
            born[event] = moment
            continue
        start = born.get(~event, -1)
        share = bisect_right(bounds, moment) - 1
        in_one = start >= 0 and bisect_right(bounds, start) - 1 == share
        if in_one and not start <= fullest[share] < moment:
            passing.add(~event)
    kept = [
        (moment, event)
        for moment, event in enumerate(timeline.events)
        if (event if event >= 0 else ~event) not in passing
    ]
    return _moved(timeline, kept)


def _moved(timeline: Timeline, kept: list[tuple[int, int]]) -> Timeline:
    """Phases and reserved bytes go to where their events have gone."""
    moments = [moment for moment, _ in kept]

    def place(moment: int) -> int:
        return min(max(bisect_right(moments, moment - 1), 0), max(len(moments) - 1, 0))

    return renumbered(
        timeline,
        [event for _, event in kept],
        phases=tuple((place(start), phase) for start, phase in timeline.phases),
        reserved=_newest((place(start), nbytes) for start, nbytes in timeline.reserved),
    )


def _newest(changes: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Of several changes at one event the most that was reserved."""
    found: dict[int, int] = {}
    for at, nbytes in changes:
        found[at] = max(found.get(at, 0), nbytes)
    return tuple(found.items())


def _joined(timeline: Timeline, shares: int, count: int) -> Timeline:
    """Allocations that begin together and end together, as one. It begins when the last of them does and ends when the
    first of them does, on the same side of the share's fullest moment: no other moment becomes fuller than it was."""
    totals = list(timeline.totals())
    bounds = _bounds(len(totals), min(shares, max(len(totals), 1)))
    fullest = _fullest(totals, bounds) if totals else []

    def side(moment: int) -> tuple[int, bool]:
        share = bisect_right(bounds, moment) - 1
        return share, moment <= fullest[share]

    born = {event: moment for moment, event in enumerate(timeline.events) if event >= 0}
    died = {~event: moment for moment, event in enumerate(timeline.events) if event < 0}
    groups: dict[object, list[int]] = {}
    for index, moment in born.items():
        end = died.get(index)
        key = (timeline.label[index], side(moment), None if end is None else side(end))
        groups.setdefault(key, []).append(index)
    if len(groups) == len(born):
        return timeline
    nbytes = list(timeline.nbytes)
    events: list[tuple[int, int]] = []
    for members in groups.values():
        first = members[0]
        start = max(born[index] for index in members)
        end = min(died[index] for index in members) if first in died else None
        if end is not None and end < start:
            continue  # never alive at a fullest moment
        nbytes[first] = sum(timeline.nbytes[index] for index in members)
        events.append((start, first))
        if end is not None:
            events.append((end, ~first))
    return _moved(replace(timeline, nbytes=tuple(nbytes)), sorted(events))


def _with_fewer_labels(timeline: Timeline) -> Timeline:
    """Layers of a model as one, then the labels that ever hold most; the others become one for each category."""
    if len(timeline.labels) <= MOST_LABELS:
        return timeline
    timeline = _with_folded_layers(timeline)
    if len(timeline.labels) <= MOST_LABELS:
        return timeline
    weight = [0] * len(timeline.labels)
    for index, nbytes in zip(timeline.label, timeline.nbytes, strict=True):
        weight[index] += nbytes
    kept = sorted(range(len(weight)), key=lambda index: -weight[index])[: MOST_LABELS - 30]
    labels = [timeline.labels[index] for index in kept]
    number = {index: place for place, index in enumerate(kept)}
    rest: dict[str, int] = {}
    for index, label in enumerate(timeline.labels):
        if index not in number:
            if label.category not in rest:
                rest[label.category] = len(labels)
                labels.append(Label(label.category, REST, "", REST))
            number[index] = rest[label.category]
    return replace(
        timeline, labels=tuple(labels), label=tuple(number[index] for index in timeline.label)
    )


def _with_folded_layers(timeline: Timeline) -> Timeline:
    """`layers.17.mlp` and `layers.18.mlp` are `layers.*.mlp`."""
    folded: dict[Label, int] = {}
    number = [
        folded.setdefault(
            label._replace(
                module=NUMBERS.sub("*", label.module), tensor=NUMBERS.sub("*", label.tensor)
            ),
            len(folded),
        )
        for label in timeline.labels
    ]
    return replace(
        timeline, labels=tuple(folded), label=tuple(number[index] for index in timeline.label)
    )
