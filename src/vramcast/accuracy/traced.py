"""Measured rows that are scripts: each runs on the virtual GPU, with the libraries of the time it was measured.

Rows come from `traces/*.yaml` beside the other measured rows, their scripts from `scripts/`, their libraries from
`environments/` (see `environments.py`); without a folder for those, what is installed is used and the outcome says so.
Every row runs in its own process, through `vramcast trace`, and has ten minutes at most. A row that cannot be run is an
outcome too: it says why.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vramcast.accuracy.environments import environment
from vramcast.accuracy.rows import read_yaml
from vramcast.errors import InputError, TraceError
from vramcast.ledger import Level

INSTALLED = "installed"
ROW_LIMIT_S = 600
# What others published, as levels of the ledger. Active also counts blocks that another stream still uses; traces do
# not tell those apart.
COUNTERS = {"active": Level.ALLOCATED, "nvml": Level.PROCESS}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """One published peak and the script that reaches it."""

    id: str
    script: str  # in scripts/
    arguments: Sequence[str]
    gpu: str
    peak_bytes: int
    metric: str  # allocated, reserved or process, or the published counter that is one of them (see COUNTERS)
    confidence: str
    tolerance: float
    environment: str = ""  # the libraries of that time; empty where the script needs none
    context_bytes: int = (
        0  # of the CUDA context there and then, where published; without it today's of that card
    )
    options: Sequence[
        str
    ] = ()  # of `vramcast trace` itself: --gpus 2 --rank 0, --empty-weights, --steps 2
    unknown: str = (
        ""  # what of the run neither script nor versions tell, in a word the page explains
    )
    explanation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOutcome:
    row: TraceRow
    predicted_bytes: int
    range_bytes: tuple[int, int]
    fits: bool
    environment: str  # what ran, "installed", or empty
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NotTraced:
    """A row without a traced figure, and why."""

    id: str
    reason: str


def load_trace_rows(folder: Path) -> tuple[TraceRow, ...]:
    rows = []
    for path, listed in _lists(folder):
        for item in listed["rows"]:
            try:
                rows.append(TraceRow(**item))
            except TypeError as error:
                raise InputError(f"{path}: row {item.get('id', '?')}: {error}") from None
    return tuple(rows)


def load_not_traced(folder: Path) -> tuple[NotTraced, ...]:
    """Rows of the same sources whose script cannot be run here."""
    return tuple(
        NotTraced(id=id, reason=reason)
        for _, listed in _lists(folder)
        for id, reason in listed.get("not_traced", {}).items()
    )


def _lists(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    paths = sorted((folder / "traces").glob("*.yaml"))
    return [(path, read_yaml(path)) for path in paths]


def run_trace_rows(
    rows: Sequence[TraceRow], folder: Path, environments: Path | None, tell: Callable[[str], None]
) -> tuple[tuple[TraceOutcome, ...], tuple[NotTraced, ...]]:
    """All rows, as many at a time as there are processors, and those that failed; `tell` hears of each that is done."""
    if environments is not None:
        _make_environments(rows, folder, environments)
    done: dict[str, TraceOutcome] = {}
    failed: dict[str, NotTraced] = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        waiting = {pool.submit(run_trace_row, row, folder, environments): row for row in rows}
        for finished in as_completed(waiting):
            id = waiting[finished].id
            try:
                outcome = done[id] = finished.result()
                told = f"{outcome.error:+.2%} in {outcome.seconds:.0f} s"
            except TraceError as error:
                failed[id] = NotTraced(id=id, reason=str(error))
                told = f"failed: {error}"
            tell(f"{len(done) + len(failed)} of {len(rows)}: {id} {told}")
    ids = [row.id for row in rows]
    outcomes = tuple(done[id] for id in ids if id in done)
    return outcomes, tuple(failed[id] for id in ids if id in failed)


def _make_environments(rows: Sequence[TraceRow], folder: Path, environments: Path) -> None:
    """Before the rows: two that need the same one must not both make it."""
    for name in sorted({row.environment for row in rows} - {""}):
        environment(name, folder, environments)


def run_trace_row(row: TraceRow, folder: Path, environments: Path | None) -> TraceOutcome:
    """`environments`: where older versions are or will be installed; None takes what is installed."""
    overlay = None
    if environments is not None and row.environment:
        overlay = environment(row.environment, folder, environments)
    scripts = folder / "scripts"
    start_trace = [
        sys.executable,
        "-m",
        "vramcast",
        "trace",
        row.script,
        "--gpu",
        row.gpu,
        "--json",
        *row.options,
    ]
    command = [*start_trace, "--", *row.arguments]
    start = time.perf_counter()
    try:
        ended = subprocess.run(
            command,
            cwd=scripts,
            env=variables_with(overlay),
            capture_output=True,
            text=True,
            check=False,
            timeout=ROW_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        raise TraceError(f"{row.script} was not done after {ROW_LIMIT_S} s.") from None
    if ended.returncode not in (0, 1):
        raise TraceError(f"{row.script} {' '.join(row.arguments)}: {ended.stderr.strip()[-800:]}")
    answer = json.loads(ended.stdout)
    level = _level(row).value
    peak = max(int(phase[f"{level}_bytes"]) for phase in answer["phases"]) + row.context_bytes
    low, high = _range(answer, level)
    used = "" if not row.environment else INSTALLED if overlay is None else row.environment
    return TraceOutcome(
        row=row,
        predicted_bytes=peak,
        range_bytes=(low + row.context_bytes, high + row.context_bytes),
        fits=ended.returncode == 0,
        environment=used,
        seconds=time.perf_counter() - start,
    )


def _level(row: TraceRow) -> Level:
    if row.context_bytes:
        return Level.RESERVED
    return COUNTERS[row.metric] if row.metric in COUNTERS else Level(row.metric)


def _range(answer: dict[str, Any], metric: str) -> tuple[int, int]:
    """What the open lines up to the metric's level leave room for: the highest ends of any phase."""
    names = [level.value for level in Level]
    counted = names[: names.index(metric) + 1]
    open_lines = [
        entry for entry in answer["entries"] if entry["range_bytes"] and entry["level"] in counted
    ]
    ranges = [_range_in(phase, open_lines, metric) for phase in answer["phases"]]
    return max(low for low, _ in ranges), max(high for _, high in ranges)


def _range_in(
    phase: dict[str, Any], open_lines: list[dict[str, Any]], metric: str
) -> tuple[int, int]:
    """A phase's peak with its open lines at their lower and at their upper ends."""
    alive = [
        line
        for line in open_lines
        if line["place"] == phase["place"] and phase["phase"] in line["phases"]
    ]
    peak = int(phase[f"{metric}_bytes"])
    low = peak - sum(line["bytes"] - line["range_bytes"][0] for line in alive)
    high = peak + sum(line["range_bytes"][1] - line["bytes"] for line in alive)
    return low, high


def variables_with(overlay: Path | None) -> dict[str, str]:
    """Of a process that finds the overlay's libraries before the installed ones, and no network."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    if overlay is not None:
        variables["PYTHONPATH"] = os.pathsep.join(
            filter(None, (str(overlay), os.environ.get("PYTHONPATH", "")))
        )
    return variables
