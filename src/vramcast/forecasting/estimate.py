"""`estimate` of any job: by formulas, else by a trace. What a trace needs is imported when one is needed."""

from __future__ import annotations

from vramcast import engine
from vramcast.errors import UndescribedModelError, UnsupportedError, VramcastError
from vramcast.forecast import Forecast
from vramcast.job import Job
from vramcast.models.read.model import read_model
from vramcast.models.read.source import ModelSource
from vramcast.setup import complete, model_of
from vramcast.setup.tasks import ONE_PASS, has_rl_phases


def estimate(job: Job, *, with_scaling: bool = True) -> Forecast:
    """The memory of a job."""
    if job.task == "generate" and job.engine is None and job.model is not None:
        return _estimate_generation(job)
    if job.task in ONE_PASS and job.engine is None and job.model is not None:
        return _estimate_pass(job)
    source, why = find_undescribed(job), None
    if source is None:
        try:
            return engine.estimate(job, with_scaling=with_scaling)
        except UndescribedModelError as error:  # a head of its own
            source, why = model_of(complete(job)), error
    from vramcast.forecasting.by_trace import estimate_by_trace

    return estimate_by_trace(job, source, why)


def _estimate_generation(job: Job) -> Forecast:
    """By the formulas, else by the real generate() on the virtual GPU."""
    try:
        return engine.estimate(job)
    except UndescribedModelError as error:
        assert job.model is not None
        source = read_model(job.model)
        if source.config is None:
            raise
        from vramcast.forecasting.by_generation import estimate_generation_by_trace

        try:
            return estimate_generation_by_trace(job, source)
        except UnsupportedError as reason:
            raise reason from error


def _estimate_pass(job: Job) -> Forecast:
    try:
        return engine.estimate(job)
    except UndescribedModelError as error:
        raise UnsupportedError(
            f"no formula describes {job.model}, and one pass of it is not run by itself: say --task generate "
            "--new-tokens 1, whose prefill is such a pass, or trace your own script"
        ) from error


def warnings_about(job: Job) -> tuple[str, ...]:
    """What an estimate of this job would warn of, for answers that are about many jobs like it; traces none."""
    try:
        return () if find_undescribed(job) else engine.estimate(job, with_scaling=False).warnings
    except VramcastError:
        return ()


def find_undescribed(job: Job) -> ModelSource | None:
    """The job's model, where no formula describes it or its adapters, and a trace can tell."""
    if _is_for_formulas_alone(job):
        return None
    source = model_of(complete(job))
    if source.config is None:
        return None
    is_described = source.is_described and engine.describes_adapters(job, source.config)
    return None if is_described else source


def _is_for_formulas_alone(job: Job) -> bool:
    """What no training step on one card tells: bare counts, generating and serving, phases around the update."""
    trains_nothing = job.engine is not None or job.task in ("generate", *ONE_PASS)
    return job.model is None or trains_nothing or has_rl_phases(job)
