"""What would help a job of generate(), score or encode that does not fit: single changes, each estimated in full."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from vramcast.errors import VramcastError
from vramcast.forecast import Forecast
from vramcast.forecasting import estimate
from vramcast.job import Job

CHUNK = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceHint:
    flag: str
    cost: str  # a key of report/words/serving.py COSTS
    job: Job
    frees_bytes: int
    peak_bytes: int
    fits: bool


def inference_hints(forecast: Forecast) -> tuple[InferenceHint, ...]:
    """Changes that free memory, cheapest first; none for a job that fits."""
    if forecast.verdict().fits is not False:
        return ()
    return inference_changes(forecast)


def inference_changes(forecast: Forecast) -> tuple[InferenceHint, ...]:
    """Changes that free memory, cheapest first."""
    if forecast.job is None:
        return ()
    found = []
    for flag, fields, cost in _candidates(forecast.job):
        try:
            job = replace(forecast.job, **fields)  # type: ignore[arg-type]
            after = estimate(job, with_scaling=False).verdict()
        except VramcastError:
            continue
        freed = forecast.verdict().highest_bytes - after.highest_bytes
        if freed > 0:
            found.append(
                InferenceHint(
                    flag=flag,
                    cost=cost,
                    job=job,
                    frees_bytes=freed,
                    peak_bytes=after.highest_bytes,
                    fits=after.fits is True,
                )
            )
    return tuple(found)


def _candidates(job: Job) -> Iterator[tuple[str, dict[str, object], str]]:
    if job.task == "generate":
        if job.prefill_chunk is None and (job.prompt or 0) > CHUNK:
            yield f"--prefill-chunk {CHUNK}", {"prefill_chunk": CHUNK}, "chunk"
        if job.kv_cache == "dynamic":
            yield "--kv-cache quantized", {"kv_cache": "quantized"}, "cache"
            yield "--kv-cache offloaded", {"kv_cache": "offloaded"}, "moved"
    elif job.use_cache is not False:
        yield "--no-use-cache", {"use_cache": False}, "unused_cache"
    if job.batch > 1:
        half = job.batch // 2
        yield f"--batch {half}", {"batch": half}, "rows"
    if job.quantize == "none" and job.task == "generate":
        yield "--quantize fp8", {"quantize": "fp8"}, "weights"
        yield "--quantize awq", {"quantize": "awq"}, "weights_more"
