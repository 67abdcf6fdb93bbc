"""Layouts over many GPUs that a table of training steps does not tell: of a serving engine, and of RL with its phases.

an engine   every tp × pp that makes up all GPUs, the one with most tokens first
RL          the layouts whose update is smallest, each estimated in full with its rollout, scoring and critic
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vramcast.engine import Division, estimate, search_divisions, update_job
from vramcast.errors import InputError, VramcastError
from vramcast.forecast import Forecast, Served
from vramcast.job import Job
from vramcast.ledger import HOST

MOST_ESTIMATED = 24  # layouts of an RL job


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingLayout:
    """An engine over all GPUs."""

    tp: int
    pp: int
    served: Served
    peak_bytes: int


def serving_layouts(job: Job) -> list[ServingLayout]:
    """Those that the engine allows; the first error where it allows none."""
    if job.engine == "llama.cpp":
        raise InputError(
            "llama.cpp divides layers over its devices in one way: estimate it with --gpus"
        )
    found: list[ServingLayout] = []
    first: VramcastError | None = None
    for tp in (size for size in range(1, job.gpus + 1) if job.gpus % size == 0):
        try:
            forecast = estimate(replace(job, tp=tp, pp=job.gpus // tp))
        except VramcastError as error:
            first = first or error
            continue
        assert forecast.served is not None
        found.append(
            ServingLayout(
                tp=tp,
                pp=job.gpus // tp,
                served=forecast.served,
                peak_bytes=forecast.verdict().highest_bytes,
            )
        )
    if not found and first is not None:
        raise first
    return sorted(found, key=lambda one: (not one.served.starts, -one.served.kv_tokens))


def rl_divisions(job: Job, batches: Sequence[int], recompute: Sequence[str]) -> list[Division]:
    """Smallest peak of all phases first."""
    updates = search_divisions(update_job(job), batches=batches, recompute=recompute)
    found = [
        replace(each, allocated_bytes=_peak(forecast), fits=forecast.verdict().fits)
        for each in updates[:MOST_ESTIMATED]
        if (forecast := _estimated(each.job(job))) is not None
    ]
    return sorted(found, key=lambda one: one.allocated_bytes)


def _estimated(job: Job) -> Forecast | None:
    try:
        return estimate(job, with_scaling=False)
    except VramcastError:
        return None  # the engine or the critic does not have this layout


def _peak(forecast: Forecast) -> int:
    places = {entry.place for entry in forecast.ledger.entries if entry.place != HOST}
    return max(forecast.ledger.peak(place).allocated_bytes for place in places)
