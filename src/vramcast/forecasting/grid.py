"""`sweep` of any job: on the formulas' arrays, else from a few traces, whose every allocation is a polynomial.

Two batches and three lengths are traced, and the largest point of the grid, which tells whether the polynomials hold
there. Where a model allocates in another order at another size, every point of the grid is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

from vramcast import engine
from vramcast.catalog.gpus import Gpu, find_gpu
from vramcast.engine import Sweep
from vramcast.errors import InputError, TraceError, UnsupportedError
from vramcast.forecast import Forecast
from vramcast.forecasting.estimate import estimate, find_undescribed
from vramcast.forecasting.tracer import TracedJob, trace_jobs
from vramcast.job import Job
from vramcast.ledger import HOST, Category
from vramcast.models.read.source import ModelSource
from vramcast.setup.tasks import ONE_PASS, has_rl_phases
from vramcast.traces.record import CardStream
from vramcast.traces.replay import Replayed, replay
from vramcast.traces.scaling import Point, Scaled

MOST_TRACED = 48  # points of a grid
MOST_ESTIMATED = 400  # points that are estimated one by one
CARD = "cuda:0"
# What a point takes on a card of this many bytes; None: an endless one.
Ask = Callable[[Point, int | None], Replayed]


def sweep(job: Job, batches: Sequence[int], seqs: Sequence[int]) -> Sweep:
    """Peaks for every batch (rows) and length (columns); of generate() the lengths are those of the prompt."""
    if job.task in ("generate", *ONE_PASS) or has_rl_phases(job):
        return _sweep_one_by_one(job, batches, seqs)
    source = find_undescribed(job)
    if source is None:
        return engine.sweep(job, batches, seqs)
    import numpy  # as the formulas' sweep does

    gpu = find_gpu(job.gpu) if job.gpu else None
    context = engine.context_bytes(job, gpu)
    ask, warnings = _scaled(job, source, tuple(batches), tuple(seqs), context)
    peaks = [[ask((batch, seq), None).allocated_bytes for seq in seqs] for batch in batches]
    return Sweep(
        job=job,
        gpu=gpu,
        batches=tuple(batches),
        seqs=tuple(seqs),
        allocated_bytes=numpy.array(peaks, numpy.int64),
        context_bytes=context,
        largest=tuple(_largest(ask, batches, seq, gpu) for seq in seqs),
        warnings=warnings,
    )


def _sweep_one_by_one(job: Job, batches: Sequence[int], seqs: Sequence[int]) -> Sweep:
    """Every point is an estimate of its own."""
    import numpy  # as the formulas' sweep does

    if len(batches) * len(seqs) > MOST_ESTIMATED:
        raise InputError(
            f"{len(batches)} × {len(seqs)} points are too many where each is estimated by itself; at most "
            f"{MOST_ESTIMATED}"
        )
    length = "prompt" if job.task == "generate" else "seq"
    first = replace(job, batch=batches[0], **{length: seqs[0]})  # type: ignore[arg-type]
    found = [
        [
            estimate(replace(first, batch=batch, **{length: seq}), with_scaling=False)  # type: ignore[arg-type]
            for seq in seqs
        ]
        for batch in batches
    ]
    gpu = found[0][0].gpu
    return Sweep(
        job=first,
        gpu=gpu,
        batches=tuple(batches),
        seqs=tuple(seqs),
        allocated_bytes=numpy.array(
            [[_peak_of(each) for each in row] for row in found],
            numpy.int64,
        ),
        context_bytes=sum(
            entry.nbytes
            for entry in found[0][0].ledger.entries
            if entry.category == Category.CONTEXT and entry.place == CARD
        ),
        largest=tuple(
            None if gpu is None else _largest_that_fits(batches, [row[at] for row in found])
            for at in range(len(seqs))
        ),
        warnings=found[0][0].warnings,
    )


def _peak_of(forecast: Forecast) -> int:
    """Of the fullest card."""
    ledger = forecast.ledger
    places = {entry.place for entry in ledger.entries if entry.place != HOST}
    return max(ledger.peak(place).allocated_bytes for place in places)


def _largest_that_fits(batches: Sequence[int], column: Sequence[Forecast]) -> int:
    """0 where none does."""
    fitting = (
        batch
        for batch, forecast in zip(batches, column, strict=True)
        if forecast.verdict().fits is not False
    )
    return max(fitting, default=0)


def _scaled(
    job: Job, source: ModelSource, batches: Sequence[int], seqs: Sequence[int], context: int
) -> tuple[Ask, tuple[str, ...]]:
    """How any point is answered, and what there is to say of it."""
    first = _traced(job, source, [(min(batches), min(seqs))])[0]
    least = first.seq  # pictures may take more than the shortest length
    values = _values(min(batches), 2), _values(least, 3, most=max(max(seqs), least))
    points = list(product(*values))
    largest = (max(batches), max(max(seqs), least))
    found = dict(zip([*points, largest], _traced(job, source, [*points, largest]), strict=True))
    place = max(first.trace.cards, key=lambda name: _peak(first, name))
    scaled = Scaled(
        knobs=("batch", "seq"),
        values=values,
        traces={point: found[point].trace for point in points},
        place=place,
    )
    said = (
        f"no formula describes {first.kind}: the table follows from {len(found)} traced sizes",
        *first.warnings,
    )

    def by_polynomials(point: Point, capacity: int | None) -> Replayed:
        sizes = scaled.predict_sizes((point[0], max(point[1], least)))
        return _play(first, scaled.base, sizes, capacity, context)

    try:
        scaled.check()
        predicted = by_polynomials(largest, None).allocated_bytes
    except TraceError:
        predicted = -1
    if predicted == _peak(found[largest], place):
        return by_polynomials, said
    return _by_traces(job, source, batches, seqs, context), said[1:]


def _by_traces(
    job: Job, source: ModelSource, batches: Sequence[int], seqs: Sequence[int], context: int
) -> Ask:
    points: list[Point] = list(product(batches, seqs))
    if len(points) > MOST_TRACED:
        raise InputError(
            f"{len(points)} points: this model allocates otherwise at other sizes, so each is traced. Give at most "
            f"{MOST_TRACED}"
        )
    found = dict(zip(points, _traced(job, source, points), strict=True))

    def by_trace(point: Point, capacity: int | None) -> Replayed:
        traced = found[point]
        place = max(traced.trace.cards, key=lambda name: _peak(traced, name))
        stream = traced.trace.cards[place]
        return _play(traced, stream, stream.requested_bytes, capacity, context)

    return by_trace


def _play(
    traced: TracedJob,
    stream: CardStream,
    sizes: Sequence[int],
    capacity: int | None,
    context: int,
) -> Replayed:
    return replay(
        stream,
        sizes,
        capacity_bytes=capacity,
        context_bytes=context if capacity is not None else 0,
        conf=traced.trace.allocator,
    )


def _values(least: int, count: int, most: int | None = None) -> tuple[int, ...]:
    """Some sizes from the least one on, none above the largest that is asked for."""
    found = [least * 2**power for power in range(count)]
    return tuple(value for value in found if most is None or value <= most) or (least,)


def _traced(job: Job, source: ModelSource, points: Sequence[Point]) -> list[TracedJob]:
    jobs = [replace(job, batch=batch, seq=seq) for batch, seq in points]
    found = trace_jobs(jobs, source)
    refused = next((each for each in found if isinstance(each, UnsupportedError)), None)
    if refused is not None:
        raise refused
    return [each for each in found if isinstance(each, TracedJob)]


def _peak(traced: TracedJob, place: str) -> int:
    ledger = traced.trace.ledger
    return max(ledger.moment(phase, place).allocated_bytes for phase in ledger.phases(place))


def _largest(ask: Ask, batches: Sequence[int], seq: int, gpu: Gpu | None) -> int | None:
    """By bisection; 0 where not even the smallest fits."""
    if gpu is None:
        return None
    ordered = sorted(batches)
    low, high = 0, len(ordered)
    while low < high:
        middle = (low + high) // 2
        if ask((ordered[middle], seq), gpu.capacity_bytes()).ran_out:
            high = middle
        else:
            low = middle + 1
    return ordered[low - 1] if low else 0
