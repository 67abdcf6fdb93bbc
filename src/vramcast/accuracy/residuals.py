"""Outcomes → the ranges that predictions carry, and how often a range made without a source covers that source."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from vramcast.accuracy.run import LEVEL_OF, Outcome
from vramcast.catalog.residuals import classes_of, range_from

TAIL = 0.05  # of the rows' weight is left out at either end: the central nine of ten are held


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
        for name in _names(outcome):
            ratios[name][outcome.row.source].append(
                outcome.row.peak_bytes / outcome.predicted_bytes
            )
    return {name: _class(by_source) for name, by_source in sorted(ratios.items())}


def _names(outcome: Outcome) -> tuple[str, ...]:
    assumed = outcome.row.lengths == "assumed"
    return classes_of(outcome.job, LEVEL_OF[outcome.row.metric], assumed_lengths=assumed)


def _class(by_source: dict[str, list[float]]) -> dict[str, Any]:
    """The central nine of ten, every source weighing the same: rows of one source err alike (the same code, the same
    habits of measuring), so the next job is like the next source. The farthest of k draws lies, on average, at
    k/(k + 1) of the largest possible, so both ends go out by (k + 1)/k, in logarithms. A range always holds the
    prediction."""
    weighted = sorted(
        (ratio, 1 / len(ratios) / len(by_source))
        for ratios in by_source.values()
        for ratio in ratios
    )
    beyond = (len(by_source) + 1) / len(by_source)
    return {
        "rows": len(weighted),
        "sources": len(by_source),
        "low": round(min(1.0, _at(TAIL, weighted)) ** beyond, 4),
        "high": round(max(1.0, _at(1 - TAIL, weighted)) ** beyond, 4),
    }


def _at(share: float, weighted: list[tuple[float, float]]) -> float:
    """The ratio up to which `share` of the weight lies."""
    sums = accumulate(weight for _, weight in weighted)
    return next(
        ratio for (ratio, _), total in zip(weighted, sums, strict=True) if total >= share - 1e-9
    )


def coverage(outcomes: Sequence[Outcome]) -> list[Coverage]:
    """Leave one source out at a time."""
    return [
        _covered(source, outcomes)
        for source in sorted({outcome.row.source for outcome in outcomes})
    ]


def _covered(source: str, outcomes: Sequence[Outcome]) -> Coverage:
    others = classes(outcome for outcome in outcomes if outcome.row.source != source)
    own = [outcome for outcome in outcomes if outcome.row.source == source]
    known = _with_ranges(own, others)
    widths = sorted((span[1] - span[0]) / each.predicted_bytes for span, each in known)
    return Coverage(
        source=source,
        rows=len(own),
        with_range=len(known),
        inside=sum(span[0] <= each.row.peak_bytes <= span[1] for span, each in known),
        width=widths[len(widths) // 2] if widths else None,
    )


def _with_ranges(
    outcomes: Iterable[Outcome], known: dict[str, dict[str, Any]]
) -> list[tuple[tuple[int, int], Outcome]]:
    """The outcomes whose classes are known, each with its range."""
    found = []
    for outcome in outcomes:
        span = range_from(known, _names(outcome), outcome.predicted_bytes)
        if span is not None:
            found.append((span, outcome))
    return found
