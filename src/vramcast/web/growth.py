"""How a job's memory grows: its peak against length or batch; of a serving engine, the cache against its requests."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from vramcast.engine import DEFAULT_SEQ, sizes_of, sweep_serving
from vramcast.errors import InputError, VramcastError
from vramcast.forecast import Forecast
from vramcast.forecasting import estimate
from vramcast.job import Job
from vramcast.models.read.model import read_model
from vramcast.report.html_charts import Growth, Point, growth_html
from vramcast.report.html_serving import requests_html
from vramcast.setup import resolve
from vramcast.setup.tasks import ONE_PASS
from vramcast.units import KiB

PROMPT = 512  # tokens, where a generating job says nothing
ORDER = (4, 8, 1, 6, 2, 7, 3, 5)  # quarters of the job's own length: the ends first
REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128)
SHORTEST, LENGTHS = 2 * KiB, 5  # of requests: so many lengths, each twice the one before


def list_growth(forecast: Forecast, axis: str, lang: str, *, count: int) -> Mapping[str, Any]:
    """The first `count` points as a picture and as numbers, and whether more are left."""
    job = forecast.job
    if axis not in ("seq", "batch"):
        raise InputError(f"axis must be seq or batch, not {axis[:20]!r}")
    if job is None:
        raise InputError("growth needs a job")
    if job.engine == "llama.cpp":  # its cache is as long as it is told to be
        axis = "seq"
    elif job.engine is not None:
        return _of_requests(forecast, lang)
    now = _length(job) if axis == "seq" else job.batch
    values = _values_around(now, least=16 if axis == "seq" else 1)
    points = [_point(forecast, axis, value, now) for value in values[:count]]
    found = sorted((point for point in points if point is not None), key=lambda point: point.at)
    shown = "prompt" if axis == "seq" and job.task == "generate" else axis
    growth = Growth(axis=shown, points=found, now=now, capacity=forecast.verdict().capacity_bytes)
    return {
        "html": growth_html(growth, lang),
        "points": [{"at": point.at, "bytes": point.nbytes} for point in found],
        "more": count < len(values),
    }


def _length(job: Job) -> int:
    if job.engine is not None:
        served = estimate(job, with_scaling=False).served
        assert served is not None
        return served.max_model_len
    if job.task == "generate":
        return job.prompt or PROMPT
    if job.task in ONE_PASS:
        return job.seq or DEFAULT_SEQ
    config = read_model(job.model).config if job.model is not None else None
    if config is None:
        raise InputError("only a number of parameters is known: no length to grow with")
    return int(sizes_of(resolve(job).data, config).seq)


def _values_around(now: int, least: int) -> list[int]:
    quarter = max(now / 4, least)
    return list(dict.fromkeys(max(least, round(quarter * number)) for number in ORDER))


def _point(forecast: Forecast, axis: str, value: int, now: int) -> Point | None:
    """None where the engine refuses: beyond a model's longest sequence, say."""
    assert forecast.job is not None
    try:
        there = _peak_at(forecast.job, axis, value)
    except VramcastError:
        return None
    squared = forecast.scaling.quadratic_bytes if forecast.scaling else 0.0
    length = value if axis == "seq" else _length(forecast.job)
    share = 1.0 if axis == "seq" else value / now
    return Point(
        at=value, nbytes=there, quadratic_bytes=min(int(squared * share * length**2), there)
    )


@lru_cache(maxsize=256)
def _peak_at(job: Job, axis: str, value: int) -> int:
    key = axis
    if axis == "seq" and job.engine is not None:
        key = "max_model_len"
    elif axis == "seq" and job.task == "generate":
        key = "prompt"
    changed = job.changed(**{key: value})
    return estimate(changed, with_scaling=False).verdict().highest_bytes


def _of_requests(forecast: Forecast, lang: str) -> Mapping[str, Any]:
    """An engine fills its share whatever comes: what grows is what requests take of its cache."""
    assert forecast.job is not None
    assert forecast.served is not None
    longest = max(forecast.served.max_model_len, SHORTEST)
    lengths = [SHORTEST * 2**power for power in range(LENGTHS) if SHORTEST * 2**power < longest]
    sweep = sweep_serving(forecast.job, REQUESTS, [*lengths, longest])
    return {"html": requests_html(sweep, lang), "points": [], "more": False}
