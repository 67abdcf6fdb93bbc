"""A plan against the virtual GPU: the job is run for two steps on the card it was planned for. Needs torch."""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.errors import UnsupportedError, VramcastError
from vramcast.forecast import Forecast
from vramcast.job import Job
from vramcast.models.read.model import read_model
from vramcast.setup import RECIPES, resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """What the virtual GPU says of a forecast's job."""

    fits: bool | None  # None: the job could not be run there
    allocated_bytes: int | None
    reserved_bytes: int | None
    reason: str  # why not, or where the card ran out; empty if it went through


def trace(forecast: Forecast) -> Traced:
    job = forecast.job
    assert job is not None
    assert job.model is not None
    assert job.gpu is not None
    config = read_model(job.model).config
    assert config is not None
    try:
        from vramcast.virtual.jobs.run import (
            Loop,
            trace_job,
        )  # torch and transformers, only when asked for
    except ImportError as error:
        raise UnsupportedError(
            f"--verify runs the job on the virtual GPU: pip install 'vramcast[trace]' ({error})"
        ) from None
    try:
        recipe = RECIPES[job.precision]
        loop = Loop(
            weights=recipe.weights.name,
            autocast=recipe.autocast.name if recipe.autocast else None,
            implementation=resolve(job).optimizer.implementation,
            keeps_outputs=resolve(job).loop.keeps_outputs,
            zeroes_first=zero_grad(job) == "before-forward",
        )
        traced = trace_job(job, loop, config, job.gpu)
    except VramcastError as error:
        return Traced(fits=None, allocated_bytes=None, reserved_bytes=None, reason=str(error))
    except (
        Exception
    ) as error:  # other people's code runs here: what it refuses is an answer about this plan only
        reason = f"the job's own libraries refuse it: {type(error).__name__}: {str(error).splitlines()[0]}"
        return Traced(fits=None, allocated_bytes=None, reserved_bytes=None, reason=reason)
    if traced.out_of_memory is not None:
        where = f"out of memory in {traced.out_of_memory.phase}"
        return Traced(fits=False, allocated_bytes=None, reserved_bytes=None, reason=where)
    ledger, place = traced.ledger(), traced.places[0]
    moments = [ledger.moment(phase, place) for phase in ledger.phases(place)]
    return Traced(
        fits=True,
        allocated_bytes=max(moment.allocated_bytes for moment in moments),
        reserved_bytes=ledger.peak(place).reserved_bytes,
        reason="",
    )


def zero_grad(job: Job) -> str:
    return job.zero_grad or ("after-forward" if job.framework == "lightning" else "before-forward")
