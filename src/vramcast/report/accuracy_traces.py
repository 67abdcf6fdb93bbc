"""Traced rows as a page: figures per metric, script and what is unknown, then every row, and why rows miss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from statistics import median

from vramcast.accuracy.traced import NotTraced, TraceOutcome

PAGE_HEAD = """# Accuracy of the virtual GPU

Written by `vramcast accuracy --traces FOLDER --write` ({written}). Every row is a script of `tests/measured/scripts`,
run unchanged on a virtual card, against what others measured on the real one. FOLDER gets the libraries of the time,
as `tests/measured/environments` lists them. Metrics are never pooled. *formula* is the error of the formulas on the
same row, where a job says it.

Some things neither the scripts nor the versions tell; those rows are shown apart as well:

- *lengths*: language models were fed lines of wikitext, shuffled without a seed, padded to the longest of the batch and
  cut at 128 tokens. With ten samples or more one of them is practically always that long; with fewer it is chance, and
  two runs of the same job differ (xmem-033: by 5 % in its authors' own repeats). These rows are traced at 128 tokens,
  which is what most of those repeats come to.
- *kernels*: which convolution kernels cuDNN's heuristics choose on that card, hence how large their workspaces are; it
  does not answer without the card. All rows whose convolutions see plain images, not channels-last ones. Nobody needs
  these workspaces to run: xmem-014 takes 4.15 GB but also finished when torch was held to 3.66 GB, xmem-021 takes
  9.73 GB and finished in 7.19 GB. So such traces carry a range, which begins at what is allocated
  (see [the virtual GPU](virtual-gpu.md)).
- *script*: lit-gpt of 2023 was never published as a package. Its resource tables are traced with litgpt 0.3.0 of April
  2024, and with the longest sample first, as it did. Later ones were drawn at random; they are traced short.
- *compile*: the model or its loss was compiled. A trace bills the ops as they run without it, which can hold far more:
  torchtune's compiled loss, for one, keeps no fp32 copy of the logits.
"""


def traced_page(
    written: str,
    outcomes: Sequence[TraceOutcome],
    not_traced: Sequence[NotTraced],
    formulas: Mapping[str, int] | None = None,
) -> str:
    """Markdown: the tables, why rows miss, and which are not there. `formulas`: their bytes by row."""
    reasons = [
        f"- {o.row.id} ({o.error:+.2%}): {o.row.explanation}" for o in outcomes if o.row.explanation
    ]
    missing = [f"- {each.id}: {' '.join(each.reason.split())}" for each in not_traced]
    return "\n".join(
        [
            PAGE_HEAD.format(written=written),
            traced_table(outcomes, formulas or {}),
            *(["", "## Rows that miss, and why", "", *reasons] if reasons else []),
            *(
                ["", "## Rows of these sources that are not traced", "", *missing]
                if missing
                else []
            ),
            "",
        ]
    )


def traced_table(
    outcomes: Sequence[TraceOutcome], formulas: Mapping[str, int] | None = None
) -> str:
    """Markdown: per metric one line per script with its figures, then every row."""
    metrics = list(dict.fromkeys(outcome.row.metric for outcome in outcomes))
    return "\n".join(
        [
            "| metric | rows | number | median | p90 | bias | wrong OOM verdicts | in range | seconds |",
            "|---|---|--:|--:|--:|--:|--:|--:|--:|",
            *(
                line
                for metric in metrics
                for line in _metric([o for o in outcomes if o.row.metric == metric])
            ),
            "",
            "| row | metric | arguments | card | libraries | unknown | measured | traced | error | range | formula |",
            "|---|---|---|---|---|---|--:|--:|--:|---|--:|",
            *(_line(outcome, (formulas or {}).get(outcome.row.id)) for outcome in outcomes),
        ]
    )


def _metric(outcomes: Sequence[TraceOutcome]) -> list[str]:
    scripts: dict[str, list[TraceOutcome]] = {}
    apart: dict[str, list[TraceOutcome]] = {}
    for outcome in outcomes:
        scripts.setdefault(outcome.row.script, []).append(outcome)
        unknown = outcome.row.unknown
        apart.setdefault(f"unknown: {unknown}" if unknown else "nothing unknown", []).append(
            outcome
        )
    groups = {
        **scripts,
        "all": list(outcomes),
        **(dict(sorted(apart.items())) if len(apart) > 1 else {}),
    }
    return [_figures(name, group) for name, group in groups.items()]


def _figures(name: str, group: Sequence[TraceOutcome]) -> str:
    sizes = sorted(abs(outcome.error) for outcome in group)
    bias = sum(outcome.error for outcome in group) / len(group)
    wrong = sum(not outcome.fits for outcome in group)
    ranges = [
        outcome.covered for outcome in group if outcome.range_bytes[0] < outcome.range_bytes[1]
    ]
    return (
        f"| {group[0].row.metric} | {name} | {len(group)} | {median(sizes):.2%} | "
        f"{sizes[ceil(0.9 * len(sizes)) - 1]:.2%} | {bias:+.2%} | "
        f"{wrong} | {f'{sum(ranges)} of {len(ranges)}' if ranges else ''} | "
        f"{sum(outcome.seconds for outcome in group):.0f} |"
    )


def _line(outcome: TraceOutcome, formula_bytes: int | None) -> str:
    row = outcome.row
    cells = (
        row.id,
        row.metric,
        " ".join([*row.arguments, *row.options]),
        row.gpu,
        outcome.environment,
        row.unknown,
        row.peak_bytes,
        outcome.predicted_bytes,
        f"{outcome.error:+.2%}{'' if outcome.fits else ', OOM'}",
        _shown_range(outcome),
        "" if formula_bytes is None else f"{formula_bytes / row.peak_bytes - 1:+.2%}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def _shown_range(outcome: TraceOutcome) -> str:
    low, high = (value / outcome.predicted_bytes - 1 for value in outcome.range_bytes)
    return f"{low:+.0%} to {high:+.0%}" if low < high else ""
