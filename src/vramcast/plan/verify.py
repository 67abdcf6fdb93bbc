"""A plan against the virtual GPU: the job is run for two steps on the card it was planned for. Needs torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramcast.errors import UnsupportedError, VramcastError
from vramcast.forecast import Forecast
from vramcast.job import Job
from vramcast.models.read.config import Config
from vramcast.setup import complete, model_of, resolve

if TYPE_CHECKING:  # needs torch
    from vramcast.virtual.gpu import VirtualGpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """What the virtual GPU says of a forecast's job."""

    fits: bool | None  # None: the job could not be run there
    allocated_bytes: int | None
    reserved_bytes: int | None
    reason: str  # why not, or where the card ran out; empty if it went through


def trace(forecast: Forecast) -> Traced:
    """Run the forecast's job for two steps on the virtual GPU."""
    job = forecast.job
    assert job is not None
    assert job.model is not None
    assert job.gpu is not None
    config = model_of(complete(job)).config
    assert config is not None
    _require_virtual_gpu()
    try:
        traced = _run(job, config, job.gpu)
    except VramcastError as error:
        return _not_run(str(error))
    except Exception as error:
        # other people's code runs here: what it refuses is an answer about this plan only
        first_line = str(error).splitlines()[0]
        return _not_run(f"the job's own libraries refuse it: {type(error).__name__}: {first_line}")
    return _outcome(traced)


def _require_virtual_gpu() -> None:
    """Import torch and transformers, only when asked for; say what to install where they are missing."""
    try:
        import vramcast.virtual.jobs.run  # noqa: F401
    except ImportError as error:
        raise UnsupportedError(
            f"--verify runs the job on the virtual GPU: pip install 'vramcast[trace]' ({error})"
        ) from None


def _run(job: Job, config: Config, gpu: str) -> VirtualGpu:
    """The job's two steps, with what its framework decides decided."""
    from vramcast.virtual.jobs.run import Loop, trace_job

    recipe = resolve(job).precision
    setup = resolve(job)
    loop = Loop(
        weights=recipe.weights.name,
        autocast=recipe.autocast.name if recipe.autocast else None,
        implementation=setup.optimizer.implementation,
        keeps_outputs=setup.loop.keeps_outputs,
        zeroes_first=zero_grad(job) != "after-forward",
        zeroes_in_place=zero_grad(job) == "in-place",
    )
    return trace_job(job, loop, config, gpu)


def _not_run(reason: str) -> Traced:
    """The answer where the job could not be run."""
    return Traced(fits=None, allocated_bytes=None, reserved_bytes=None, reason=reason)


def _outcome(traced: VirtualGpu) -> Traced:
    """Peaks of a job that went through, or the phase in which the card ran out."""
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
    return resolve(job).loop.zero_grad
