"""What the keys of a job come to: what was decided where nobody said a value, and the said ones that change nothing."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from vramcast.errors import VramcastError
from vramcast.forecast import Forecast
from vramcast.forecasting import estimate
from vramcast.job import Job, fields, job_values
from vramcast.setup import complete
from vramcast.setup.tasks import ONE_PASS

NEEDED = ("model", "params", "gpu")  # a job is nothing without them, or its bill is the same
NOT_GIVEN = re.compile(r"([a-z-]+) (\S+) \(not given\).*")

Bill = tuple[tuple[object, ...], ...]


def decided_values(forecast: Forecast) -> dict[str, Any]:
    """Every key of the job, with what the framework, the model or the engine decided where it was left open."""
    assert forecast.job is not None
    job = forecast.job
    trains = job.engine is None and job.task not in ("generate", *ONE_PASS)
    values = job_values(complete(job) if trains and job.model is not None else job)
    for text in forecast.assumptions:
        found = NOT_GIVEN.fullmatch(text)
        if found and values.get(found[1], "") is None:
            values[found[1]] = _number(found[2])
    return values


def _number(text: str) -> str | int:
    digits = text.replace(",", "")
    return int(digits) if digits.isdigit() else text


def list_effects(
    job: Job, said: tuple[str, ...], *, skip: int, count: int
) -> tuple[dict[str, str], bool]:
    """Of the said keys those that change nothing, each with the reason: `default`, where it says what would be done
    without it, or `nothing`, where the job has no use for it. And whether more keys are left to try."""
    known = [name for name in said if name in fields() and name not in NEEDED]
    found = {}
    for name in known[skip : skip + count]:
        without = job.changed(**{name.replace("-", "_"): fields()[name].default})
        if _is_same(job, without):
            found[name] = "default" if _decides_the_same(job, without, name) else "nothing"
    return found, skip + count < len(known)


def _is_same(job: Job, other: Job) -> bool:
    try:
        return _bill(job) == _bill(other)
    except VramcastError:  # the job needs the key
        return False


def _decides_the_same(job: Job, without: Job, name: str) -> bool:
    one, other = (decided_values(estimate(each, with_scaling=False)) for each in (job, without))
    return bool(one[name] == other[name])


@lru_cache(maxsize=128)
def _bill(job: Job) -> Bill:
    forecast = estimate(job, with_scaling=False)
    served = () if forecast.served is None else (forecast.served.kv_tokens, forecast.served.lines)
    lines = (
        (entry.category, entry.component, entry.place, entry.phases, entry.nbytes)
        for entry in forecast.ledger.entries
    )
    return (*lines, served, (forecast.verdict().highest_bytes,))
