"""How far predictions were from what others measured, by class of job: the range and the safe limit of a prediction.

`residuals.json` is written by `vramcast accuracy --write`. A job belongs to one of three classes: batches of one
length; batches of many lengths, whose order is not known; and jobs with something that is known not to be modelled in
full (compiled code, offloading, record_stream's delayed frees under tensor parallelism before torch 2.8, GaLore). A
class is used only if it has rows of three sources, as one source says little about the next; else all rows are.

Example: a class with low 0.9, high 1.2 and safe 1.3 gives a prediction of 10 GB the range of 9 to 12 GB and the limit
of 13 GB.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from vramcast.job import Job

MIN_ROWS = 5  # rows that a class needs to be used
MIN_SOURCES = 3  # that must have measured such jobs: rows of one source err in the same way
FEW_SOURCES = 5  # below these the report says how few they are
ONE_LENGTH, VARIED, HARD, ALL = "one length", "varied lengths", "not modelled in full", "all"
# torch/distributed/fsdp and the caching allocator: TORCH_NCCL_AVOID_RECORD_STREAMS is the default since 2.8; before,
# blocks that a collective had used were freed only when the host saw it end.
RECORD_STREAM_BEFORE = (2, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Multiples of a prediction: nine of ten jobs lie between `low` and `high`, 98 of 100 below `safe`."""

    name: str
    rows: int
    sources: int
    low: float
    high: float
    safe: float


def classes_of(job: Job, *, assumed_lengths: bool = False) -> tuple[str, str]:
    """Names of the job's classes, the narrowest first. Lengths that had to be assumed are many lengths."""
    if _is_not_modelled_in_full(job):
        return (HARD, ALL)
    varied = assumed_lengths or job.mean_seq is not None or job.lengths is not None
    return (VARIED if varied else ONE_LENGTH, ALL)


def _is_not_modelled_in_full(job: Job) -> bool:
    version = tuple(map(int, re.findall(r"\d+", job.torch_version)[:2]))
    delays_frees = job.tp > 1 and version < RECORD_STREAM_BEFORE
    return job.compile or job.offload != "none" or delays_frees or job.optimizer == "galore"


def spread_of(job: Job) -> Spread | None:
    """How far such jobs were from their predictions; None where too little was measured."""
    return spread_from(_read_classes(), classes_of(job))


def spread_from(classes: dict[str, Any], names: tuple[str, ...]) -> Spread | None:
    """The first of these classes that has enough rows."""
    for name in names:
        found = classes.get(name)
        if found is not None and _has_enough_rows(found):
            return Spread(name=name, **found)
    return None


def _has_enough_rows(found: dict[str, Any]) -> bool:
    return bool(found["rows"] >= MIN_ROWS and found["sources"] >= MIN_SOURCES)


@cache
def _read_classes() -> dict[str, Any]:
    path = files("vramcast.catalog") / "data" / "residuals.json"
    if not path.is_file():
        return {}
    classes: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["classes"]
    return classes
