"""How far predictions were from what others measured, by class of job: the range a prediction carries.

`residuals.json` is written by `vramcast accuracy --write`. A class is a level with a shape of job, a kind of precision
and a framework. A class is used only if it has rows of three sources, as one source says little about the next; else
the next wider class is: the same shape at any level (most of their bytes are the same), at last the level alone. None
where nothing comparable was measured.

Example: a class with low 0.9 and high 1.2 gives a prediction of 10 GB the range of 9 to 12 GB.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from vramcast.job import Job
from vramcast.ledger import Level

MIN_ROWS = 5  # rows that a class needs to be used
MIN_SOURCES = 3  # that must have measured such jobs: rows of one source err in the same way
KIND_OF = {"fp32": "fp32", "bf16-mixed": "mixed", "fp16-mixed": "mixed"}


def classes_of(job: Job, level: Level, *, assumed_lengths: bool = False) -> tuple[str, ...]:
    """Names of the job's classes, the narrowest first. Lengths that had to be assumed are many lengths."""
    kind = KIND_OF.get(str(job.precision), "16-bit")
    varied = assumed_lengths or job.mean_seq is not None or job.lengths is not None
    wider = [f"{level}"]
    if job.gpus > 1:
        shape = "many GPUs"
    else:
        shape = "varied lengths" if varied else "one length"
        wider.insert(0, f"{level}/one GPU")
    return (
        f"{level}/{shape}/{kind}/{job.framework}",
        f"{level}/{shape}/{kind}",
        f"{level}/{shape}",
        shape,
        *wider,
    )


def residual_range(job: Job, level: Level, nbytes: int) -> tuple[int, int] | None:
    """Between which bytes nine of ten such jobs would have been measured, given a prediction of `nbytes`."""
    return range_from(_read_classes(), classes_of(job, level), nbytes)


def range_from(
    classes: dict[str, Any], names: tuple[str, ...], nbytes: int
) -> tuple[int, int] | None:
    """The range by the first of these classes that has enough rows."""
    for name in names:
        found = classes.get(name)
        if found is not None and _has_enough_rows(found):
            return round(nbytes * found["low"]), round(nbytes * found["high"])
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
