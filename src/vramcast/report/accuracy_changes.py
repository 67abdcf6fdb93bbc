"""What changed since the accuracy page was last written, as Markdown: figures before and after, then row by row."""

from __future__ import annotations

from collections.abc import Sequence

from vramcast.accuracy.changes import Change, Written, changes
from vramcast.accuracy.run import Outcome
from vramcast.accuracy.tables import Figures, by_source_and_metric

HEADER = (
    "| row | metric | error before | error after | change | tolerance |",
    "|---|---|---:|---:|---:|---:|",
)


def changes_markdown(outcomes: Sequence[Outcome], last: Written) -> str:
    """Before and after, the rows that became worse first; one line where nothing moved."""
    found = changes(outcomes, last)
    if not found:
        return f"No prediction moved since {last.written}.\n"
    worse = sum(change.worse > 0 for change in found)
    head = (
        f"{len(found)} of {len(outcomes)} predictions moved since {last.written}: {worse} worse, "
    )
    return "\n".join(
        (
            f"{head}{len(found) - worse} better.",
            "",
            *_figures(found),
            "",
            *HEADER,
            *map(_line, found),
        )
    )


def _figures(found: Sequence[Change]) -> list[str]:
    before = by_source_and_metric([change.before for change in found])
    after = by_source_and_metric([change.after for change in found])
    lines = [
        "| source | metric | rows that moved | median | 90th percentile |",
        "|---|---|---:|---:|---:|",
    ]
    return lines + [
        f"| {source} | {metric} | {_both(before[source, metric], new)}"
        for (source, metric), new in after.items()
    ]


def _both(old: Figures, new: Figures) -> str:
    median = f"{old.median_abs:.1%} → {new.median_abs:.1%}"
    return f"{new.rows} | {median} | {old.p90_abs:.1%} → {new.p90_abs:.1%} |"


def _line(change: Change) -> str:
    row, outside = change.after.row, "" if change.after.within else " exceeded"
    return (
        f"| {row.id} | {row.metric} | {change.before.error:+.2%} | {change.after.error:+.2%} | "
        f"{change.worse:+.2%} | {row.tolerance:.0%}{outside} |"
    )
