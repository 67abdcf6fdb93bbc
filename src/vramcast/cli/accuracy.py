"""`vramcast accuracy`: predictions compared with what others measured, errors included."""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from vramcast.cli.options import print_json
from vramcast.errors import InputError

if TYPE_CHECKING:
    from vramcast.report.accuracy import Accuracy

PAGE, PLOT, RANGES = (
    "docs/accuracy.md",
    "docs/accuracy.svg",
    "src/vramcast/catalog/data/residuals.json",
)
PREDICTED = "predicted.json"  # in the folder of the rows
TRACES_PAGE = "docs/accuracy-traces.md"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rows",
        metavar="FOLDER",
        default="tests/measured",
        help="measured rows, one YAML file per source",
    )
    parser.add_argument("--json", action="store_true", help="print every row and figure as JSON")
    parser.add_argument(
        "--traces",
        metavar="FOLDER",
        nargs="?",
        const="",
        help="run the rows that have a script on the virtual GPU instead; FOLDER: where the old library versions go",
    )
    parser.add_argument(
        "--only",
        metavar="START",
        default="",
        help="with --traces: only rows whose name begins with START",
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help=f"write {PAGE}, its plot and the ranges of predictions; with --traces {TRACES_PAGE}",
    )


def run(args: argparse.Namespace) -> int:
    if args.traces is not None:
        return _run_traces(args)
    if args.only:
        raise InputError(
            "--only picks rows of --traces; the formulas' rows take seconds and run together."
        )
    from vramcast.accuracy.changes import load_written
    from vramcast.report.accuracy import accuracy_json, accuracy_markdown
    from vramcast.report.accuracy_changes import changes_markdown

    folder = Path(args.rows)
    accuracy = _run_formulas(folder)
    if args.json:
        print_json(accuracy_json(accuracy))
    else:
        print(accuracy_markdown(accuracy))
        last = load_written(folder / PREDICTED)
        if last is not None:
            print(f"## Before and after\n\n{changes_markdown(accuracy.outcomes, last)}")
    if args.write:
        _write(folder, accuracy)
    return 0 if all(outcome.within for outcome in accuracy.outcomes) else 1


def _run_formulas(folder: Path) -> Accuracy:
    from vramcast.accuracy.residuals import coverage
    from vramcast.accuracy.rows import load_not_expressed, load_sources
    from vramcast.accuracy.run import run_rows
    from vramcast.report.accuracy import Accuracy

    sources = load_sources(folder)
    outcomes = run_rows(row for source in sources for row in source.rows)
    return Accuracy(
        written=_written(),
        sources=sources,
        not_expressed=load_not_expressed(folder),
        outcomes=outcomes,
        coverage=coverage(outcomes),
    )


def _write(folder: Path, accuracy: Accuracy) -> None:
    from vramcast.accuracy.changes import written_text
    from vramcast.accuracy.residuals import classes
    from vramcast.report.accuracy import accuracy_markdown
    from vramcast.report.accuracy_svg import accuracy_svg

    root, outcomes = folder.resolve().parents[1], accuracy.outcomes
    ranges = {"written": accuracy.written, "classes": classes(outcomes)}
    (root / PAGE).write_text(accuracy_markdown(accuracy), encoding="utf-8")
    (root / PLOT).write_text(accuracy_svg(outcomes), encoding="utf-8")
    (root / RANGES).write_text(json.dumps(ranges, indent=1) + "\n", encoding="utf-8")
    (folder / PREDICTED).write_text(written_text(accuracy.written, outcomes), encoding="utf-8")


def _run_traces(args: argparse.Namespace) -> int:
    from vramcast.accuracy.traced import load_not_traced, load_trace_rows, run_trace_rows
    from vramcast.report.accuracy_traces import traced_page, traced_table

    if args.write and args.only:
        raise InputError(
            f"--write with --only would leave the other rows out of {TRACES_PAGE}; run it without --only."
        )
    folder = Path(args.rows)
    rows = [row for row in load_trace_rows(folder) if row.id.startswith(args.only)]
    if not rows:
        raise InputError(f"--only {args.only}: no row of {folder / 'traces'} begins with that.")
    environments = Path(args.traces) if args.traces else None
    outcomes, failed = run_trace_rows(rows, folder, environments, _print_progress)
    formulas = _formulas(folder, {row.id: row.metric for row in rows})
    print(traced_table(outcomes, formulas))
    if args.write:
        page = traced_page(_written(), outcomes, [*failed, *load_not_traced(folder)], formulas)
        (folder.resolve().parents[1] / TRACES_PAGE).write_text(page, encoding="utf-8")
    return 0 if not failed and all(outcome.within for outcome in outcomes) else 1


def _print_progress(line: str) -> None:
    print(line, file=sys.stderr)


def _formulas(folder: Path, metrics: dict[str, str]) -> dict[str, int]:
    """What the formulas were last written to say about the same rows, where the metric is the same."""
    from vramcast.accuracy.changes import load_written
    from vramcast.accuracy.rows import load_sources

    written = load_written(folder / PREDICTED)
    if written is None:
        return {}
    same = [
        row.id
        for source in load_sources(folder)
        for row in source.rows
        if metrics.get(row.id) == row.metric
    ]
    return {id: written.predicted_bytes[id] for id in same if id in written.predicted_bytes}


def _written() -> str:
    day = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return f"{day}, vramcast {version('vramcast')}, Python {platform.python_version()}"
