"""Outcomes → the ranges that predictions carry, and how often a range made without a source covers that source."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vramcast.accuracy.run import LEVEL_OF, Outcome
from vramcast.catalog.residuals import answering_classes, classes_of, range_from

TAIL = 20  # of a source's rows one in so many is left out at either end: the central nine of ten are held


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Rows of a source inside the ranges made from all other sources."""

    source: str
    rows: int
    with_range: int
    inside: int
    width: float | None  # the median of (high − low) ÷ prediction


def classes(outcomes: Iterable[Outcome]) -> dict[str, dict[str, Any]]:
    """For every class, between which multiples of the prediction the measured peaks lay."""
    ratios: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for outcome in outcomes:
        for name in classes_of(outcome.job, LEVEL_OF[outcome.row.metric]):
            ratios[name][outcome.row.source].append(outcome.row.peak_bytes / outcome.predicted_bytes)
    return {name: _class(by_source) for name, by_source in sorted(ratios.items())}


def _class(by_source: dict[str, list[float]]) -> dict[str, Any]:
    """From the lowest to the highest end of the sources' own central shares: rows of one source err alike (the same
    code, the same habits of measuring), so the next job is like the next source. The farthest of k draws lies, on
    average, at k/(k + 1) of the largest possible, so both ends go out by (k + 1)/k, in logarithms. A range always holds
    the prediction itself."""
    ends = [_central(sorted(ratios)) for ratios in by_source.values()]
    beyond = (len(ends) + 1) / len(ends)
    low, high = min(1.0, *(low for low, _ in ends)), max(1.0, *(high for _, high in ends))
    return {
        "rows": sum(map(len, by_source.values())), "sources": len(by_source),
        "low": round(low**beyond, 4), "high": round(high**beyond, 4),
    }  # fmt: skip


def _central(ratios: list[float]) -> tuple[float, float]:
    """The ends of the central share; all rows where they are few."""
    outside = len(ratios) // TAIL
    return ratios[outside], ratios[-1 - outside]


def coverage(outcomes: Sequence[Outcome]) -> list[Coverage]:
    """Leave one source out at a time."""
    return [_covered(source, outcomes) for source in sorted({outcome.row.source for outcome in outcomes})]


def _covered(source: str, outcomes: Sequence[Outcome]) -> Coverage:
    others = classes(outcome for outcome in outcomes if outcome.row.source != source)
    own = [outcome for outcome in outcomes if outcome.row.source == source]
    ranges = [
        (range_from(others, answering_classes(each.job, LEVEL_OF[each.row.metric]), each.predicted_bytes), each)
        for each in own
    ]
    known = [(span, each) for span, each in ranges if span is not None]
    widths = sorted((span[1] - span[0]) / each.predicted_bytes for span, each in known)
    return Coverage(
        source=source, rows=len(own), with_range=len(known),
        inside=sum(span[0] <= each.row.peak_bytes <= span[1] for span, each in known),
        width=widths[len(widths) // 2] if widths else None,
    )  # fmt: skip
