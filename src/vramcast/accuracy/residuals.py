"""Outcomes → the ranges that predictions carry, and how often a range made without a source covers that source."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from vramcast.accuracy.run import Outcome
from vramcast.catalog.residuals import ALL, MIN_SOURCES, Spread, classes_of, spread_from

TAIL = 0.05  # of the rows' weight is left out at either end: the central nine of ten are held
UNSAFE = 0.02  # of the rows may lie above the safe limit
VISIBLE_IN = 100  # rows: one in fifty cannot be seen in fewer


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Rows of a source inside the ranges made from all other sources."""

    source: str
    rows: int
    with_range: int
    inside: int
    width: float | None  # the median of (high − low) ÷ prediction
    above_safe: int
    slack: float | None  # the median of safe limit ÷ measured − 1


def classes(outcomes: Iterable[Outcome]) -> dict[str, dict[str, Any]]:
    """For every class, between which multiples of the prediction the measured peaks lay."""
    ratios: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for outcome in outcomes:
        own, *_ = _names(outcome)
        for name in (own, ALL):
            ratios[name][outcome.row.source].append(
                outcome.row.peak_bytes / outcome.predicted_bytes
            )
    return {name: _class(by_source) for name, by_source in sorted(ratios.items())}


def _names(outcome: Outcome) -> tuple[str, ...]:
    return classes_of(outcome.job, assumed_lengths=outcome.row.lengths == "assumed")


def _class(by_source: dict[str, list[float]]) -> dict[str, Any]:
    """The central nine of ten, and what 98 of 100 stay below.

    Rows of one source err in the same way (the same code, the same habits of measuring), so a source weighs as the
    square root of its rows. The farthest of k draws lies, on average, at k/(k + 1) of the largest possible, so both
    ends go out by (k + 1)/k, in logarithms. A range always holds the prediction. For the safe limit every row weighs
    the same, and it goes out by as much; where a class has too few rows to show one in fifty, it is the upper end, gone
    out once more. A class of few sources goes nowhere by itself: it is read together with a wider one.
    """
    rows = sum(map(len, by_source.values()))
    weighted = _weighted(by_source, 0.5)
    sources = len(by_source)
    beyond = (sources + 1) / sources if sources >= MIN_SOURCES else 1.0
    high = round(max(1.0, _at(1 - TAIL, weighted)) ** beyond, 4)
    safe = max(1.0, _at(1 - UNSAFE, _weighted(by_source, 1.0)))
    return {
        "rows": rows,
        "sources": len(by_source),
        "low": round(min(1.0, _at(TAIL, weighted)) ** beyond, 4),
        "high": high,
        "safe": round((safe if rows >= VISIBLE_IN else high) ** beyond, 4),
    }


def _weighted(by_source: dict[str, list[float]], power: float) -> list[tuple[float, float]]:
    """Ratios with weights that add up to 1; a source's grows with that power of its rows."""
    total = sum(len(ratios) ** power for ratios in by_source.values())
    return sorted(
        (ratio, len(ratios) ** (power - 1) / total)
        for ratios in by_source.values()
        for ratio in ratios
    )


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
    known = _with_spreads(own, others)
    ratios = [(each.row.peak_bytes / each.predicted_bytes, spread) for spread, each in known]
    return Coverage(
        source=source,
        rows=len(own),
        with_range=len(known),
        inside=sum(spread.low <= ratio <= spread.high for ratio, spread in ratios),
        width=_median([spread.high - spread.low for _, spread in ratios]),
        above_safe=sum(ratio > spread.safe for ratio, spread in ratios),
        slack=_median([spread.safe / ratio - 1 for ratio, spread in ratios]),
    )


def _median(values: list[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


def _with_spreads(
    outcomes: Iterable[Outcome], known: dict[str, dict[str, Any]]
) -> list[tuple[Spread, Outcome]]:
    """The outcomes whose classes are known, each with its spread."""
    found = []
    for outcome in outcomes:
        spread = spread_from(known, _names(outcome))
        if spread is not None:
            found.append((spread, outcome))
    return found
