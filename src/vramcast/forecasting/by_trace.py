"""A job whose model no formula describes: its forecast from a trace, or states as a lower bound with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vramcast import engine
from vramcast.catalog.gpus import Gpu, find_gpu
from vramcast.engine import Remarks, TracedStep, bill_traced_step
from vramcast.errors import UnsupportedError
from vramcast.forecast import Forecast
from vramcast.forecasting.tracer import TracedJob, trace_job, trace_jobs
from vramcast.job import Job
from vramcast.ledger import Entry, Level
from vramcast.models.read.source import ModelSource
from vramcast.setup import complete, model_of
from vramcast.setup.profiles import PROFILES
from vramcast.timelines.of_trace import timeline_of_trace
from vramcast.timelines.record import Timeline
from vramcast.traces.record import Trace
from vramcast.traces.replay import Replayed, replay


def estimate_by_trace(job: Job, source: ModelSource, why: UnsupportedError | None) -> Forecast:
    """`why`: what the formulas said, where they got as far as that."""
    if job.strategy is None and job.gpus > job.tp * job.pp:
        return _first_that_fits(job, source, why)
    try:
        traced = trace_job(job, source)
    except UnsupportedError as error:
        return _lower_bound(job, error if why is None else why, error)
    return forecast_of(job, source, traced)


def _first_that_fits(job: Job, source: ModelSource, why: UnsupportedError | None) -> Forecast:
    """The framework's strategies in their order, as the formulas try them; the last one if none fits."""
    strategies = PROFILES[job.framework].strategies
    for strategy in strategies:
        forecast = estimate_by_trace(replace(job, strategy=strategy), source, why)
        if forecast.verdict().fits is not False:
            break
    order = ", ".join(strategies)
    text = f"strategy {strategy} (not given): the first of {order} that fits"
    if forecast.verdict().fits is False:
        text = f"strategy {strategy} (not given): none of {order} fits"
    return replace(forecast, assumptions=(text, *forecast.assumptions))


def estimate_all(jobs: Sequence[Job], source: ModelSource) -> list[Forecast | UnsupportedError]:
    """Jobs with one model that no formula describes, all in one process."""
    found = trace_jobs(jobs, source)
    return [
        traced if isinstance(traced, UnsupportedError) else forecast_of(job, source, traced)
        for job, traced in zip(jobs, found, strict=True)
    ]


def traced_timeline(job: Job) -> Timeline | None:
    """Memory over time of a job whose model no formula describes: of the trace that its forecast comes from."""
    source = model_of(complete(job))
    if source.is_described or source.config is None:
        return None
    gpu = find_gpu(job.gpu) if job.gpu else None
    found = timeline_of_trace(trace_job(job, source).trace)
    return replace(
        found, name=source.name, capacity_bytes=None if gpu is None else gpu.capacity_bytes()
    )


def forecast_of(job: Job, source: ModelSource, traced: TracedJob) -> Forecast:
    gpu = find_gpu(job.gpu) if job.gpu else None
    step = TracedStep(
        entries=_on_card(traced.trace, job, gpu),
        params_total=traced.params_total,
        params_trainable=traced.params_trainable,
        stored_as=traced.stored_as,
        seq=traced.seq,
    )
    return bill_traced_step(job, source, gpu, step, _remarks(source, traced))


def _on_card(trace: Trace, job: Job, gpu: Gpu | None) -> tuple[Entry, ...]:
    """The lines on the job's own card, which may be smaller than the one that was traced: a full card gives cached
    blocks back before it refuses."""
    entries = trace.ledger.entries
    if gpu is None:
        return entries
    context = engine.context_bytes(job, gpu)
    for place, stream in trace.cards.items():
        replayed = replay(
            stream,
            stream.requested_bytes,
            capacity_bytes=gpu.capacity_bytes(),
            context_bytes=context,
            conf=trace.allocator,
        )
        if not replayed.ran_out:
            entries = tuple(_with_less_cached(entry, place, trace, replayed) for entry in entries)
    return entries


def _with_less_cached(entry: Entry, place: str, trace: Trace, replayed: Replayed) -> Entry:
    if entry.place != place or entry.level != Level.RESERVED:
        return entry
    allocated = max(trace.ledger.moment(phase, place).allocated_bytes for phase in entry.phases)
    most = max(0, replayed.reserved_bytes - allocated)
    return entry if entry.nbytes <= most else replace(entry, nbytes=most, range_bytes=None)


def _lower_bound(job: Job, first: UnsupportedError, reason: UnsupportedError) -> Forecast:
    """Weights, gradients and states alone, and why there is no more; the first error where not even these are known."""
    try:
        forecast = engine.estimate(job, with_scaling=False)
    except UnsupportedError:
        raise first from None
    return replace(forecast, warnings=(str(reason), *forecast.warnings))


def _remarks(source: ModelSource, traced: TracedJob) -> Remarks:
    what = "model" if not source.is_described else "adapters on"
    inputs = ", ".join(
        f"{name} {' × '.join(map(str, shape))}" for name, shape in traced.inputs.items()
    )
    said = [
        f"{what} {traced.kind}: no formula describes it, so two training steps ran on the virtual GPU",
        f"inputs {inputs}",
    ]
    if not traced.has_own_loss:
        said.append(
            f"loss the mean of the outputs: {traced.kind} has none for labels of a plain shape"
        )
    said.append(traced.versions)
    if traced.kept_in:
        said.append(f"trace kept in {traced.kept_in}: the next answer takes no time")
    return Remarks(assumptions=tuple(said), warnings=traced.warnings)
