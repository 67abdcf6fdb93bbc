"""Measured rows that are scripts: each runs on the virtual GPU, beside the transformers it was measured with.

Rows come from `traces/*.yaml` beside the other measured rows, their scripts from `scripts/`. An older transformers is
installed into a folder of its own, which goes before the installed one; torch stays. Without it the installed
transformers is used and the outcome says so. Every row runs in its own process, through `vramcast trace`, and has ten
minutes at most.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from vramcast.errors import InputError, TraceError
from vramcast.ledger import Level

INSTALLED = "installed"
ROW_LIMIT_S = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """One published peak and the script that reaches it."""

    id: str
    script: str  # in scripts/
    arguments: Sequence[str]
    gpu: str
    peak_bytes: int
    metric: str  # allocated, reserved or process: a level of the ledger
    confidence: str
    tolerance: float
    transformers: str = ""  # the version of that time; empty where the script needs none
    unknown: str = ""  # what of the run neither script nor versions tell: "lengths" or "kernels"
    explanation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOutcome:
    row: TraceRow
    predicted_bytes: int
    range_bytes: tuple[int, int]
    fits: bool
    transformers: str  # the version that ran, "installed", or empty
    seconds: float

    @property
    def error(self) -> float:
        """Predicted over measured, minus one: positive is an over-prediction."""
        return self.predicted_bytes / self.row.peak_bytes - 1

    @property
    def within(self) -> bool:
        return abs(self.error) <= self.row.tolerance

    @property
    def covered(self) -> bool:
        """Whether what was measured lies in the range."""
        return self.range_bytes[0] <= self.row.peak_bytes <= self.range_bytes[1]


def load_trace_rows(folder: Path) -> tuple[TraceRow, ...]:
    rows = []
    for path in sorted((folder / "traces").glob("*.yaml")):
        for item in yaml.safe_load(path.read_text(encoding="utf-8"))["rows"]:
            try:
                rows.append(TraceRow(**item))
            except TypeError as error:
                raise InputError(f"{path}: row {item.get('id', '?')}: {error}") from None
    return tuple(rows)


def run_trace_rows(
    rows: Sequence[TraceRow], folder: Path, environments: Path | None, tell: Callable[[str], None]
) -> tuple[TraceOutcome, ...]:
    """All rows, as many at a time as there are processors; `tell` hears of each one that is done."""
    if environments is not None:
        for version in sorted({row.transformers for row in rows} - {""}):
            environment(version, environments)  # before the rows: two that need the same one must not both make it
    done: dict[str, TraceOutcome] = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        waiting = [pool.submit(run_trace_row, row, folder, environments) for row in rows]
        for finished in as_completed(waiting):
            outcome = finished.result()
            done[outcome.row.id] = outcome
            tell(f"{len(done)} of {len(rows)}: {outcome.row.id} {outcome.error:+.2%} in {outcome.seconds:.0f} s")
    return tuple(done[row.id] for row in rows)


def run_trace_row(row: TraceRow, folder: Path, environments: Path | None) -> TraceOutcome:
    """`environments`: where older versions are or will be installed; None takes what is installed."""
    overlay = None if environments is None or not row.transformers else environment(row.transformers, environments)
    scripts = folder / "scripts"
    command = [sys.executable, "-m", "vramcast", "trace", row.script, "--gpu", row.gpu, "--json", "--", *row.arguments]
    start = time.perf_counter()
    try:
        ended = subprocess.run(
            command, cwd=scripts, env=_variables(overlay), capture_output=True, text=True, check=False,
            timeout=ROW_LIMIT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise TraceError(f"{row.id}: {row.script} was not done after {ROW_LIMIT_S} s.") from None
    if ended.returncode not in (0, 1):
        raise TraceError(f"{row.id}: {row.script} {' '.join(row.arguments)} failed: {ended.stderr.strip()[-800:]}")
    answer = json.loads(ended.stdout)
    peak = max(int(phase[f"{row.metric}_bytes"]) for phase in answer["phases"])
    used = "" if not row.transformers else INSTALLED if overlay is None else row.transformers
    return TraceOutcome(
        row=row, predicted_bytes=peak, range_bytes=_range(answer, row.metric), fits=ended.returncode == 0,
        transformers=used, seconds=time.perf_counter() - start,
    )  # fmt: skip


def _range(answer: dict[str, Any], metric: str) -> tuple[int, int]:
    """What the open lines up to the metric's level leave room for: the highest ends of any phase."""
    names = [level.value for level in Level]
    counted = names[: names.index(metric) + 1]
    open_lines = [entry for entry in answer["entries"] if entry["range_bytes"] and entry["level"] in counted]
    lows, highs = [], []
    for phase in answer["phases"]:
        alive = [e for e in open_lines if e["place"] == phase["place"] and phase["phase"] in e["phases"]]
        lows.append(int(phase[f"{metric}_bytes"]) - sum(e["bytes"] - e["range_bytes"][0] for e in alive))
        highs.append(int(phase[f"{metric}_bytes"]) + sum(e["range_bytes"][1] - e["bytes"] for e in alive))
    return max(lows), max(highs)


def environment(version: str, environments: Path) -> Path:
    """The folder with that transformers and what it needs; made on first use."""
    target = environments.resolve() / f"transformers-{version}"
    if (target / "transformers").is_dir():
        return target
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(target), f"transformers=={version}"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise InputError(f"transformers {version} could not be installed: {ended.stderr.strip()[-400:]}")
    return target


def _variables(overlay: Path | None) -> dict[str, str]:
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    if overlay is not None:
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, (str(overlay), os.environ.get("PYTHONPATH", ""))))
    return variables


PAGE_HEAD = """# Accuracy of the virtual GPU

Written by `vramcast accuracy --traces FOLDER --write` ({written}). Every row is a script of `tests/measured/scripts`,
run unchanged on a virtual card, against what others measured on the real one. FOLDER gets the transformers of the time.

Two things neither the scripts nor the versions tell; the first table shows those rows apart as well:

- *lengths*: language models were fed lines of wikitext, shuffled without a seed, padded to the longest of the batch and
  cut at 128 tokens. With ten samples or more one of them is practically always that long; with fewer it is chance, and
  two runs of the same job differ (xmem-033: by 5 % in its authors' own repeats). These rows are traced at 128 tokens.
- *kernels*: which convolution kernels cuDNN's heuristics choose on that card, hence how large their workspaces are; it
  does not answer without the card. All rows whose convolutions see plain images, not channels-last ones. Nobody needs
  these workspaces to run: xmem-014 takes 4.15 GB but also finished when torch was held to 3.66 GB, xmem-021 takes
  9.73 GB and finished in 7.19 GB. So such traces carry a range, which begins at what is allocated
  (see [the virtual GPU](virtual-gpu.md)).
"""


def traced_page(written: str, outcomes: Sequence[TraceOutcome]) -> str:
    """Markdown: the tables, and why rows miss."""
    reasons = [f"- {o.row.id} ({o.error:+.2%}): {o.row.explanation}" for o in outcomes if o.row.explanation]
    parts = (PAGE_HEAD.format(written=written), traced_table(outcomes), "", "## Rows that miss, and why", "", *reasons)
    return "\n".join(parts) + "\n"


def traced_table(outcomes: Iterable[TraceOutcome]) -> str:
    """Markdown: one line per script with its figures, then every row."""
    groups: dict[str, list[TraceOutcome]] = {}
    apart: dict[str, list[TraceOutcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.row.script, []).append(outcome)
        unknown = outcome.row.unknown
        apart.setdefault(f"unknown: {unknown}" if unknown else "nothing unknown", []).append(outcome)
    every = [outcome for group in groups.values() for outcome in group]
    return "\n".join(
        [
            "| rows | number | median | p90 | bias | wrong OOM verdicts | in range | seconds |",
            "|---|--:|--:|--:|--:|--:|--:|--:|",
            *(_figures(name, group) for name, group in groups.items()),
            _figures("all", every),
            *(_figures(name, group) for name, group in sorted(apart.items())),
            "",
            "| row | arguments | card | transformers | unknown | measured | traced | error | range |",
            "|---|---|---|---|---|--:|--:|--:|---|",
            *map(_line, every),
        ]
    )


def _figures(name: str, group: Sequence[TraceOutcome]) -> str:
    sizes = sorted(abs(outcome.error) for outcome in group)
    bias = sum(outcome.error for outcome in group) / len(group)
    wrong = sum(not outcome.fits for outcome in group)
    ranges = [outcome.covered for outcome in group if outcome.range_bytes[0] < outcome.range_bytes[1]]
    return (
        f"| {name} | {len(group)} | {median(sizes):.2%} | {sizes[ceil(0.9 * len(sizes)) - 1]:.2%} | {bias:+.2%} | "
        f"{wrong} | {f'{sum(ranges)} of {len(ranges)}' if ranges else ''} | "
        f"{sum(outcome.seconds for outcome in group):.0f} |"
    )


def _line(outcome: TraceOutcome) -> str:
    row = outcome.row
    cells = (
        row.id, " ".join(row.arguments), row.gpu, outcome.transformers, row.unknown, row.peak_bytes,
        outcome.predicted_bytes, f"{outcome.error:+.2%}{'' if outcome.fits else ', OOM'}", _shown_range(outcome),
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def _shown_range(outcome: TraceOutcome) -> str:
    low, high = (value / outcome.predicted_bytes - 1 for value in outcome.range_bytes)
    return f"{low:+.0%} to {high:+.0%}" if low < high else ""
