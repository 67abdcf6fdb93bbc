"""Where a monitor's metrics go: a file, or a logger the training job already has.

In: a step number and metrics. Out: lines, or calls on the given logger. Each is a callable (step, metrics), so a
function of the caller's own does as well. The loggers' packages are never imported here.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Writer = Callable[[int, dict[str, float]], None]


class JsonLines:
    """One JSON object per line, on disk when the call returns, so that a killed run leaves every finished step."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def __call__(self, step: int, metrics: dict[str, float]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **metrics}) + "\n")


class Csv:
    """One row per step. The columns are those of the first row; a value that is unknown in a later row is empty."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._columns: list[str] = []

    def __call__(self, step: int, metrics: dict[str, float]) -> None:
        row = {"step": step, **metrics}
        mode = "a" if self._columns else "w"
        self._columns = self._columns or list(row)
        with self._path.open(mode, encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, self._columns, restval="", extrasaction="ignore")
            if mode == "w":
                writer.writeheader()
            writer.writerow(row)


def to_tensorboard(writer: Any) -> Writer:
    """A torch.utils.tensorboard SummaryWriter."""

    def write(step: int, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)

    return write


def to_wandb(run: Any) -> Writer:
    """A W&B run, or the wandb module."""
    return lambda step, metrics: run.log(metrics, step=step)


def to_accelerate(accelerator: Any) -> Writer:
    """An Accelerator: its own trackers receive the metrics."""
    return lambda step, metrics: accelerator.log(metrics, step=step)
