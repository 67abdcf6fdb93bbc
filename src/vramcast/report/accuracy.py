"""Outcomes as a page: tables per source and metric, the worst rows with the reason, ranges and their coverage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vramcast.accuracy.residuals import Coverage
from vramcast.accuracy.rows import LENGTHS, Source
from vramcast.accuracy.run import Outcome
from vramcast.accuracy.tables import Figures, by_metric, by_source_and_metric, worst
from vramcast.units import GiB

WORST = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Everything the page shows."""

    written: str  # date and versions
    sources: tuple[Source, ...]
    not_expressed: dict[str, str]
    outcomes: Sequence[Outcome]
    coverage: Sequence[Coverage]


def accuracy_markdown(accuracy: Accuracy) -> str:
    parts = (
        "# Accuracy\n",
        _head(accuracy),
        "## High-confidence rows\n",
        _metric_table(accuracy.outcomes),
        "## By source and metric\n",
        _source_table(accuracy.outcomes),
        f"## The {WORST} worst rows\n",
        _worst_table(accuracy.outcomes),
        "## Ranges\n",
        _coverage_text(accuracy.coverage),
        "## All rows\n",
        _all_rows(accuracy.outcomes),
        "## Not run\n",
        _not_run(accuracy),
    )
    return "\n".join(parts)


def accuracy_json(accuracy: Accuracy) -> dict[str, Any]:
    return {
        "written": accuracy.written,
        "by_source_and_metric": [
            {"source": source, "metric": metric, **asdict(found)}
            for (source, metric), found in by_source_and_metric(accuracy.outcomes).items()
        ],
        "high_confidence_one_gpu": _by_metric(accuracy.outcomes, many_gpus=False),
        "high_confidence_one_gpu_by_lengths": {
            lengths: _by_metric(accuracy.outcomes, many_gpus=False, lengths=lengths)
            for lengths in LENGTHS
        },
        "high_confidence_many_gpus": _by_metric(accuracy.outcomes, many_gpus=True),
        "rows": [
            {
                "id": each.row.id,
                "source": each.row.source,
                "metric": each.row.metric,
                "confidence": each.row.confidence,
                "measured_bytes": each.row.peak_bytes,
                "predicted_bytes": each.predicted_bytes,
                "error": each.error,
                "tolerance": each.row.tolerance,
                "fits": each.fits,
                "seconds": each.seconds,
            }
            for each in accuracy.outcomes
        ],
        "coverage": [asdict(each) for each in accuracy.coverage],
    }


def _by_metric(
    outcomes: Sequence[Outcome], *, many_gpus: bool, lengths: str | None = None
) -> dict[str, Any]:
    found = by_metric(outcomes, "high", many_gpus=many_gpus, lengths=lengths)
    return {metric: asdict(each) for metric, each in found.items()}


def _head(accuracy: Accuracy) -> str:
    run, pending = (
        len(accuracy.outcomes),
        sum(bool(row.pending) for source in accuracy.sources for row in source.rows),
    )
    seconds = sum(outcome.seconds for outcome in accuracy.outcomes)
    return (
        "What others measured on real GPUs and published, against the formula engine. Written by "
        f"`vramcast accuracy --write`, {accuracy.written}.\n\n"
        f"{run} rows of {len({each.row.source for each in accuracy.outcomes})} sources run in {seconds:.0f} s; "
        f"{pending} more are transcribed and wait for an engine, {len(accuracy.not_expressed)} cannot be said as a job "
        "(reasons below). An error is predicted ÷ measured − 1. Metrics are never pooled: allocated and active are "
        "torch's counters, reserved is what its allocator holds, nvml is what the driver sees, context included.\n\n"
        "![predicted against measured](accuracy.svg)\n"
    )


def _percent(value: float | None, *, sign: bool = True) -> str:
    return "–" if value is None else f"{100 * value:+.1f} %" if sign else f"{100 * value:.1f} %"


HEADER = (
    "rows | median | 90th percentile | bias | over (median) | under (median) | wrong verdicts | time |\n"
    "|{}---:|---:|---:|---:|---:|---:|---:|---:|"
)


def _cells(found: Figures) -> str:
    return (
        f"{found.rows} | {_percent(found.median_abs, sign=False)} | {_percent(found.p90_abs, sign=False)} | "
        f"{_percent(found.bias)} | {found.over} ({_percent(found.over_median)}) | "
        f"{found.under} ({_percent(found.under_median)}) | {found.wrong_verdicts} of {found.verdicts} | "
        f"{found.seconds:.1f} s |"
    )


def _metric_table(outcomes: Sequence[Outcome]) -> str:
    lines = [f"| GPUs | lengths | metric | {HEADER.format('---|---|---|')}"]
    for gpus, many in (("one", False), ("many", True)):
        for lengths in LENGTHS:
            found = by_metric(outcomes, "high", many_gpus=many, lengths=lengths)
            lines += [
                f"| {gpus} | {lengths} | {metric} | {_cells(each)}"
                for metric, each in found.items()
            ]
        together, part = (
            by_metric(outcomes, "high", many_gpus=many, lengths=lengths)
            for lengths in (None, "assumed")
        )
        lines += [f"| {gpus} | both | {metric} | {_cells(together[metric])}" for metric in part]
    return "\n".join(lines) + (
        "\n\nLengths: *published* where the source says how long every batch was (a fixed length, padding or packing "
        "to one); *assumed* where only a dataset's mean and a limit are published, so that the lengths of the run, "
        "and their order, had to be assumed; *both*: these together. What torch reserves after many lengths hangs on "
        "lengths and order.\n"
    )


def _source_table(outcomes: Sequence[Outcome]) -> str:
    lines = [f"| source | metric | {HEADER.format('---|---|')}"]
    lines += [
        f"| {source} | {metric} | {_cells(found)}"
        for (source, metric), found in by_source_and_metric(outcomes).items()
    ]
    return "\n".join(lines) + (
        "\n\nEvery row ran, so a verdict is wrong where the job was said not to fit the card it ran on.\n"
    )


def _worst_table(outcomes: Sequence[Outcome]) -> str:
    lines = [
        "| row | metric | measured | predicted | error | why |",
        "|---|---|---:|---:|---:|---|",
    ]
    lines += [
        f"{_line(each)} {each.row.explanation or 'not explained yet'} |"
        for each in worst(outcomes, WORST)
    ]
    return "\n".join(lines) + "\n"


def _line(each: Outcome) -> str:
    return (
        f"| {each.row.id} | {each.row.metric} | {each.row.peak_bytes / GiB:.2f} GiB | "
        f"{each.predicted_bytes / GiB:.2f} GiB | {_percent(each.error)} |"
    )


def _coverage_text(coverage: Sequence[Coverage]) -> str:
    lines = [
        "A prediction carries a range and a safe limit, by one of four classes of job: batches of one length, batches "
        "of many lengths, jobs with something that is not modelled in full (compiled code, offloading, delayed frees "
        "under tensor parallelism before torch 2.8, GaLore), and unsloth's own code. The range holds the central nine "
        "of ten of the class's rows, a source weighing as the square root of its rows, and goes beyond by 1/k (k "
        "sources; the farthest of k draws is on average at k/(k + 1) of the largest): rows of one source err in the "
        "same way, so the next job is like the next source. The safe limit is what 98 of 100 rows stay below, and goes "
        "out in the same way. A class with rows of fewer than three sources is taken together with a wider class. "
        "Several ways to make ranges were compared on these same rows, so the shares below are no independent test of "
        "the way. The test of the figures leaves a source out: how many of its rows are in the ranges made from the "
        "others, how wide are these, how many rows are above the safe limit, and how far above the peak is it?",
        "",
        "| source | rows | with a range | inside | width | above the safe limit | slack |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {each.source} | {each.rows} | {each.with_range} | {each.inside} | {_percent(each.width, sign=False)} | "
        f"{each.above_safe} | {_percent(each.slack)} |"
        for each in coverage
    ]
    known, inside = sum(each.with_range for each in coverage), sum(each.inside for each in coverage)
    above = sum(each.above_safe for each in coverage)
    if not known:
        return "\n".join(lines) + "\n"
    shares = (
        f"Together {inside} of {known} inside ({100 * inside / known:.0f} %), {above} above the safe limit "
        f"({100 * above / known:.1f} %)."
    )
    return "\n".join(lines) + f"\n\n{shares}\n"


def _all_rows(outcomes: Sequence[Outcome]) -> str:
    lines = [
        "| row | metric | measured | predicted | error | confidence |",
        "|---|---|---:|---:|---:|---|",
    ]
    lines += [f"{_line(each)} {each.row.confidence} |" for each in outcomes]
    return "\n".join(lines) + "\n"


def _not_run(accuracy: Accuracy) -> str:
    waiting = Counter(
        row.pending for source in accuracy.sources for row in source.rows if row.pending
    )
    reasons = Counter(accuracy.not_expressed.values())
    lines = [f"- {count} rows wait: {reason}" for reason, count in waiting.most_common()]
    lines += [f"- {count} rows not expressed: {reason}" for reason, count in reasons.most_common()]
    published = [
        f"- {source.name}: {source.published} ({source.license})" for source in accuracy.sources
    ]
    return "\n".join((*lines, "", "Published at:", "", *published)) + "\n"
