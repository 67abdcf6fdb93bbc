"""Outcomes → the ranges that predictions carry, and how often a range made without a source covers that source."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from vramcast.accuracy.run import LEVEL_OF, Outcome
from vramcast.catalog.residuals import classes_of, range_from

COVERED = 0.9  # the share of rows that a range is made to hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Rows of a source inside the ranges made from all other sources."""

    source: str
    rows: int
    with_range: int
    inside: int


def classes(outcomes: Iterable[Outcome]) -> dict[str, dict[str, Any]]:
    """For every class, between which multiples of the prediction the measured peaks lay."""
    ratios: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for outcome in outcomes:
        for name in classes_of(outcome.job, LEVEL_OF[outcome.row.metric]):
            ratios[name].append((outcome.row.peak_bytes / outcome.predicted_bytes, outcome.row.source))
    return {name: _class(sorted(values)) for name, values in sorted(ratios.items())}


def _class(values: list[tuple[float, str]]) -> dict[str, Any]:
    """The central share, each source weighing the same however many rows it has: a new job is like a new source. A
    range always holds the prediction itself."""
    rows_of = Counter(source for _, source in values)
    shares = [1 / (rows_of[source] * len(rows_of)) for _, source in values]
    below = list(accumulate(shares))
    tail = (1 - COVERED) / 2
    low = next(ratio for (ratio, _), share in zip(values, below, strict=True) if share > tail)
    high = next(ratio for (ratio, _), share in zip(values, below, strict=True) if share >= 1 - tail)
    return {
        "rows": len(values), "sources": len(rows_of), "low": round(min(low, 1.0), 4), "high": round(max(high, 1.0), 4)
    }  # fmt: skip


def coverage(outcomes: Sequence[Outcome]) -> list[Coverage]:
    """Leave one source out at a time."""
    found = []
    for source in sorted({outcome.row.source for outcome in outcomes}):
        others = classes(outcome for outcome in outcomes if outcome.row.source != source)
        own = [outcome for outcome in outcomes if outcome.row.source == source]
        ranges = [
            (range_from(others, classes_of(each.job, LEVEL_OF[each.row.metric]), each.predicted_bytes), each)
            for each in own
        ]
        known = [(span, each) for span, each in ranges if span is not None]
        inside = sum(span[0] <= each.row.peak_bytes <= span[1] for span, each in known)
        found.append(Coverage(source=source, rows=len(own), with_range=len(known), inside=inside))
    return found
