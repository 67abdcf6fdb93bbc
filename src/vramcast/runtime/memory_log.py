"""Where a monitor's metrics go: a file, or a logger the training job already has.

In: a step number and metrics. Out: lines, or calls on the given logger. Each is a callable (step, metrics), so a
function of the caller's own does as well. The loggers' packages are never imported here.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

Writer = Callable[[int, dict[str, float]], None]


class JsonLines:
    """One JSON object per line, flushed, so that a killed run leaves all but its last step."""

    def __init__(self, path: str | Path) -> None:
        self._file: TextIO = Path(path).open("a", encoding="utf-8")

    def __call__(self, step: int, metrics: dict[str, float]) -> None:
        self._file.write(json.dumps({"step": step, **metrics}) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class Csv:
    """One row per step. The columns are those of the first row; a value that is unknown in a later row is empty."""

    def __init__(self, path: str | Path) -> None:
        self._file: TextIO = Path(path).open("w", encoding="utf-8", newline="")
        self._writer: csv.DictWriter[str] | None = None

    def __call__(self, step: int, metrics: dict[str, float]) -> None:
        if self._writer is None:
            self._writer = csv.DictWriter(self._file, ["step", *metrics], restval="", extrasaction="ignore")
            self._writer.writeheader()
        self._writer.writerow({"step": step, **metrics})
        self._file.flush()

    def close(self) -> None:
        self._file.close()


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
