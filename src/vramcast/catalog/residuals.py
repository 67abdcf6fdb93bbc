"""How far predictions were from what others measured, by class of job: the range and the safe limit of a prediction.

`residuals.json` is written by `vramcast accuracy --write`. A job belongs to one of four classes: batches of one
length; batches of many lengths, whose order is not known; jobs with something that is known not to be modelled in
full (compiled code, offloading, record_stream's delayed frees under tensor parallelism before torch 2.8, GaLore); and
unsloth's, whose own kernels and compiled modules run. A class with rows of fewer than three sources says little about
the next source: it is taken together with the next wider class, unsloth's with what is not modelled in full.

Example: a class with low 0.9, high 1.2 and safe 1.3 gives a prediction of 10 GB the range of 9 to 12 GB and the limit
of 13 GB.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from vramcast.catalog.tables import DATA
from vramcast.job import Job

MIN_ROWS = 5  # rows that a class needs to be used
MIN_SOURCES = 3  # that must have measured such jobs: rows of one source err in the same way
FEW_SOURCES = 5  # below these the report says how few they are
ONE_LENGTH, VARIED, HARD, ALL = "one length", "varied lengths", "not modelled in full", "all"
UNSLOTH = "unsloth"
BESIDE_TRAINER = ("hf", "trl", "accelerate", "axolotl", "llama-factory", "ms-swift")
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


def classes_of(job: Job, *, assumed_lengths: bool = False) -> tuple[str, ...]:
    """Names of the job's classes, its own first. Lengths that had to be assumed are many lengths."""
    if _is_unsloth(job):
        return (UNSLOTH, HARD, ALL)
    if _is_not_modelled_in_full(job):
        return (HARD, ALL)
    varied = assumed_lengths or job.mean_seq is not None or job.lengths is not None
    return (VARIED if varied else ONE_LENGTH, ALL)


def _is_unsloth(job: Job) -> bool:
    """Beside transformers' Trainer, checkpointing with block inputs in CPU memory is unsloth's code, too."""
    return job.framework == "unsloth" or (
        job.checkpointing == "offload" and job.framework in BESIDE_TRAINER
    )


def _is_not_modelled_in_full(job: Job) -> bool:
    version = tuple(map(int, re.findall(r"\d+", job.torch_version)[:2]))
    delays_frees = job.tp > 1 and version < RECORD_STREAM_BEFORE
    offloads = job.offload != "none" or job.checkpointing == "offload"
    return job.compile or offloads or delays_frees or job.optimizer == "galore"


def spread_of(job: Job) -> Spread | None:
    """How far such jobs were from their predictions; None where too little was measured."""
    return spread_from(_read_classes(), classes_of(job))


def spread_from(classes: dict[str, Any], names: tuple[str, ...]) -> Spread | None:
    """The first of these classes that has enough rows; where they are of few sources, together with the next one."""
    known = [
        Spread(name=name, **classes[name])
        for name in names
        if name in classes and classes[name]["rows"] >= MIN_ROWS
    ]
    if not known:
        return None
    first, *others = known
    if first.sources >= MIN_SOURCES:
        return first
    wider = next((each for each in others if each.sources >= MIN_SOURCES), None)
    if wider is None:
        return None
    return replace(
        first,
        low=min(first.low, wider.low),
        high=max(first.high, wider.high),
        safe=max(first.safe, wider.safe),
    )


@cache
def _read_classes() -> dict[str, Any]:
    path = DATA / "residuals.json"
    if not path.is_file():
        return {}
    classes: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["classes"]
    return classes
