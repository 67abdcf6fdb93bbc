"""A row through the formula engine: what it predicts at the row's metric, how far off, how long it took."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from vramcast.accuracy.rows import Row
from vramcast.engine import estimate
from vramcast.forecast import Forecast
from vramcast.job import Job, job_from
from vramcast.ledger import Level
from vramcast.setup import complete

LEVEL_OF = {
    "allocated": Level.ALLOCATED,
    "active": Level.ALLOCATED,  # differs from allocated only while a second stream still uses a freed block
    "reserved": Level.RESERVED,
    "nvml": Level.PROCESS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    row: Row
    job: Job
    predicted_bytes: int
    fits: bool | None  # on the card it ran on; None without a card
    seconds: float

    @property
    def error(self) -> float:
        """Predicted over measured, minus one: positive is an over-prediction."""
        return self.predicted_bytes / self.row.peak_bytes - 1

    @property
    def within(self) -> bool:
        return abs(self.error) <= self.row.tolerance


def run_rows(rows: Iterable[Row]) -> list[Outcome]:
    return [run_row(row) for row in rows if not row.pending]


def run_row(row: Row) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        job = complete(job_from(_values(row, Path(folder))))
        start = time.perf_counter()
        forecast = estimate(job)
        seconds = time.perf_counter() - start
    return Outcome(
        row=row,
        job=replace(job, model=row.id if row.config else job.model),
        seconds=seconds,
        predicted_bytes=_predicted(row, forecast),
        fits=forecast.verdict().fits,
    )


def _predicted(row: Row, forecast: Forecast) -> int:
    """The bill is the fullest rank's; Megatron's goldens are written by the last, with a pipeline seldom the same."""
    if row.rank == "last" and len(forecast.ranks) > 1:
        return forecast.ranks[-1].allocated_bytes
    return peak_bytes(forecast, LEVEL_OF[row.metric])


def _values(row: Row, folder: Path) -> dict[str, object]:
    """The row's job; a config of its own is written where the engine can read it."""
    values = {**row.job, **row.parallel}
    if row.config is None:
        return values
    path = folder / "config.json"
    path.write_text(json.dumps(dict(row.config)), encoding="utf-8")
    return {**values, "model": str(path)}


def peak_bytes(forecast: Forecast, level: Level) -> int:
    """The largest moment at that level, over phases and devices."""
    ledger = forecast.ledger
    moments = [
        ledger.moment(phase, place) for place in ledger.devices() for phase in ledger.phases(place)
    ]
    field = {
        Level.ALLOCATED: "allocated_bytes",
        Level.RESERVED: "reserved_bytes",
        Level.PROCESS: "process_bytes",
    }
    return max(int(getattr(moment, field[level])) for moment in moments)
