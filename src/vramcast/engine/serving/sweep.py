"""How many requests of which length a serving engine holds at once: its cache against what they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vramcast.engine.serving.estimate import estimate_serving
from vramcast.forecast import Forecast
from vramcast.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSweep:
    """Bytes of cache for so many requests (rows) of so many tokens (columns) on one card."""

    job: Job
    forecast: Forecast
    requests: tuple[int, ...]
    lengths: tuple[int, ...]
    kv_bytes: tuple[int, ...]  # what there is, for each length
    needed_bytes: tuple[tuple[int, ...], ...]  # by request count, then length
    at_once: tuple[int, ...]  # requests that fit, for each length


def sweep_serving(job: Job, requests: Sequence[int], lengths: Sequence[int]) -> ServingSweep:
    """One estimate per length: blocks, windows and states are counted as the engine counts them."""
    forecasts = [estimate_serving(replace(job, max_model_len=length)) for length in lengths]
    answers = [forecast.served for forecast in forecasts if forecast.served is not None]
    each = [
        round(served.kv_bytes / served.concurrency) if served.concurrency else 0
        for served in answers
    ]
    return ServingSweep(
        job=job,
        forecast=forecasts[0],
        requests=tuple(requests),
        lengths=tuple(lengths),
        kv_bytes=tuple(served.kv_bytes if served.starts else 0 for served in answers),
        needed_bytes=tuple(tuple(count * one for one in each) for count in requests),
        at_once=tuple(int(served.concurrency) if served.starts else 0 for served in answers),
    )
