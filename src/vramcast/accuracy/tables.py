"""Outcomes → figures per source and metric. Metrics are never pooled; over- and under-prediction are counted apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import mean, median

from vramcast.accuracy.run import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The errors of some outcomes. Fractions: 0.05 is 5 %."""

    rows: int
    median_abs: float
    p90_abs: float
    bias: float  # mean signed error
    over: int  # rows predicted too high
    over_median: float | None
    under: int
    under_median: float | None
    verdicts: int  # rows with a card and so with a verdict
    wrong_verdicts: int  # said not to fit, and ran
    seconds: float


def figures(outcomes: Sequence[Outcome]) -> Figures:
    errors = [outcome.error for outcome in outcomes]
    sizes = sorted(map(abs, errors))
    over = [error for error in errors if error > 0]
    under = [error for error in errors if error < 0]
    judged = [outcome.fits for outcome in outcomes if outcome.fits is not None]
    return Figures(
        rows=len(errors),
        median_abs=median(sizes),
        p90_abs=sizes[ceil(0.9 * len(sizes)) - 1],
        bias=mean(errors),
        over=len(over),
        over_median=_median(over),
        under=len(under),
        under_median=_median(under),
        verdicts=len(judged),
        wrong_verdicts=judged.count(False),
        seconds=sum(outcome.seconds for outcome in outcomes),
    )


def _median(errors: list[float]) -> float | None:
    """None of no rows."""
    return median(errors) if errors else None


def by_source_and_metric(outcomes: Sequence[Outcome]) -> dict[tuple[str, str], Figures]:
    groups: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[(outcome.row.source, outcome.row.metric)].append(outcome)
    return {key: figures(group) for key, group in sorted(groups.items())}


def by_metric(
    outcomes: Sequence[Outcome], confidence: str, *, many_gpus: bool, lengths: str | None = None
) -> dict[str, Figures]:
    """`lengths`: only rows whose batches' lengths are published, or only those where they are assumed."""
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        row = outcome.row
        if (
            row.confidence == confidence
            and (outcome.job.gpus > 1) is many_gpus
            and lengths in (None, row.lengths)
        ):
            groups[row.metric].append(outcome)
    return {metric: figures(group) for metric, group in sorted(groups.items())}


def worst(outcomes: Sequence[Outcome], count: int) -> list[Outcome]:
    return sorted(outcomes, key=lambda outcome: -abs(outcome.error))[:count]
