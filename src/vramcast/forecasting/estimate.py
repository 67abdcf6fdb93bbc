"""`estimate` of any job: by formulas, else by a trace. What a trace needs is imported when one is needed."""

from __future__ import annotations

from vramcast import engine
from vramcast.errors import UndescribedModelError
from vramcast.forecast import Forecast
from vramcast.job import Job
from vramcast.models.read.source import ModelSource
from vramcast.setup import complete, model_of
from vramcast.setup.tasks import ONE_PASS, has_rl_phases


def estimate(job: Job, *, with_scaling: bool = True) -> Forecast:
    """The memory of a job."""
    source, why = find_undescribed(job), None
    if source is None:
        try:
            return engine.estimate(job, with_scaling=with_scaling)
        except UndescribedModelError as error:  # a head of its own
            source, why = model_of(complete(job)), error
    from vramcast.forecasting.by_trace import estimate_by_trace

    return estimate_by_trace(job, source, why)


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
