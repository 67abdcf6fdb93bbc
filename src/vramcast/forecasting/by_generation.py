"""A job of generate() whose model no formula describes: what the real generate() took on the virtual GPU."""

from __future__ import annotations

import os
from typing import Any

from vramcast import engine
from vramcast.catalog.gpus import find_gpu
from vramcast.engine import Remarks, TracedGeneration, bill_traced_generation
from vramcast.errors import TraceNeededError, UnsupportedError
from vramcast.forecast import Forecast
from vramcast.forecasting import cache
from vramcast.forecasting.tracer import NO_NEW, card_like, missing_libraries, versions_here
from vramcast.job import Job, job_values
from vramcast.models.read.source import ModelSource

TARGET = "vramcast.virtual.jobs.generate:trace_here"


def estimate_generation_by_trace(job: Job, source: ModelSource) -> Forecast:
    """Raises UnsupportedError where it cannot be run from a job."""
    assert source.config is not None
    run = engine.resolve_generation(job, source.config)
    if job.quantize != "none":
        raise UnsupportedError(
            f"no formula describes {source.name}, and its generate() is traced in one dtype: leave out quantize"
        )
    payload = {
        "job": {**_said(job), "model": source.config.model_type},
        "config": dict(source.config.data),
        "where": source.config.where,
        "gpu": card_like(job.gpu),
        "dtype": run.setup.precision.weights.name,
        "prompt": run.prompt,
        "new": run.new,
    }
    found, kept_in = _traced(payload, source.name)
    if "error" in found:
        raise UnsupportedError(str(found["error"]))
    traced = TracedGeneration(
        params_total=int(found["params_total"]),
        weight_bytes=int(found["weight_bytes"]),
        buffer_bytes=int(found["buffer_bytes"]),
        prefill=found["prefill"],
        decode=found["decode"],
    )
    said = [
        f"model {found['kind']}: no formula describes it, so its generate() ran on the virtual GPU: the pass over the "
        "prompt, and the last tokens",
        "layers without kernels of their own run as transformers runs them in plain torch",
    ]
    if kept_in:
        said.append(f"trace kept in {kept_in}: the next answer takes no time")
    gpu = find_gpu(job.gpu) if job.gpu else None
    return bill_traced_generation(run, source, gpu, traced, Remarks(assumptions=tuple(said)))


def _said(job: Job) -> dict[str, Any]:
    return {
        name: value
        for name, value in job_values(job).items()
        if value is not None and name not in ("gpu", "model")
    }


def _traced(payload: dict[str, Any], name: str) -> tuple[dict[str, Any], str]:
    """From the cache, else from a process of its own."""
    missing = missing_libraries()
    if missing:
        raise UnsupportedError(
            f"no formula describes {name}: with torch and transformers the virtual GPU runs its generate(): "
            f"pip install 'vramcast[trace]' ({', '.join(missing)} is missing)"
        )
    key = cache.key_of({"generate": payload, "versions": versions_here()})
    found = cache.load(key)
    if found is not None:
        return found, ""
    if os.environ.get(NO_NEW):
        raise TraceNeededError(
            f"no formula describes {name}: the virtual GPU runs its generate() first"
        )
    # Imports multiprocessing, which a browser does not have: only where something is traced.
    from vramcast.sandbox.process import Options, run_protected

    found = run_protected(TARGET, payload, Options(protect="none"))
    return found, cache.keep(key, found) if "error" not in found else ""
