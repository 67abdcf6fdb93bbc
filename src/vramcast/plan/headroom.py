"""How far a job that fits goes on its card: the largest micro-batch and the longest sequence.

Peaks on a grid say where to look; whole estimates, allocator included, say what fits. Cached blocks do not grow evenly
with the batch, so a little more may fit than what is found.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy
from numpy.typing import NDArray

from vramcast.engine import (
    DEFAULT_SEQ,
    Recording,
    TooLarge,
    estimate_if_it_may_fit,
    has_many_lengths,
)
from vramcast.errors import InputError
from vramcast.forecast import Forecast
from vramcast.job import Job
from vramcast.models.read.config import Config
from vramcast.models.record.program import Sizes
from vramcast.plan.ranking import is_plan
from vramcast.setup import resolve

Grid = NDArray[numpy.int64]
POINTS = 4096  # looked at above what is known to fit
TRIES = 5
CAUTION = 0.03  # after a miss, twice as much after each more: cached blocks grow with what is allocated, and in jumps
LENGTH_STEP = 64
# The longest that a config allows; speech models count the decoder's tokens.
POSITIONS = ("max_position_embeddings", "", "n_positions", "n_ctx", "max_target_positions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    largest_batch: int
    longest_seq: (
        int | None
    )  # None where batches are padded or of many lengths, or no length is given


def find_reach(forecast: Forecast, config: Config, room: int) -> Reach:
    job = forecast.job
    assert job is not None
    batches = job.batch + numpy.arange(POINTS)
    batch = _farthest(forecast, config, room, "batch", batches)
    if job.seq is None or job.longest_seq is not None or has_many_lengths(resolve(job).data):
        return Reach(largest_batch=batch, longest_seq=None)
    most = int(config.dim(*POSITIONS, default=DEFAULT_SEQ))
    lengths = job.seq + LENGTH_STEP * numpy.arange(POINTS)
    lengths = lengths[lengths <= max(most, job.seq)]
    return Reach(largest_batch=batch, longest_seq=_farthest(forecast, config, room, "seq", lengths))


def _farthest(forecast: Forecast, config: Config, room: int, key: str, values: Grid) -> int:
    """As far as the peaks and the slack seen so far say; where the estimate then disagrees, with the slack it saw."""
    job = forecast.job
    assert job is not None
    peaks = _peaks(job, config, forecast, key, values)
    ratio, below = _ratio(forecast, int(peaks[0])), len(peaks)
    for missed in range(TRIES):
        at = min(int((peaks * ratio <= room).sum()), below) - 1
        if at <= 0:
            break
        try:
            seen = estimate_if_it_may_fit(_with(job, key, int(values[at])))
        except InputError:  # longer than the model's table of positions
            below = at
            continue
        if is_plan(seen):
            return int(values[at])
        more = (
            room / seen.asked_bytes if isinstance(seen, TooLarge) else _ratio(seen, int(peaks[at]))
        )
        ratio, below = max(ratio, more) * (1 + CAUTION * 2**missed), at
    return int(values[0])


def _with(job: Job, key: str, value: int) -> Job:
    return replace(job, batch=value) if key == "batch" else replace(job, seq=value)


def _peaks(job: Job, config: Config, forecast: Forecast, key: str, values: Grid) -> Grid:
    batch = values if key == "batch" else numpy.full(len(values), job.batch)
    seq = (
        values
        if key == "seq"
        else numpy.full(len(values), job.longest_seq or job.seq or DEFAULT_SEQ)
    )
    target = seq if job.target_seq is None else job.target_seq
    images = 1 if job.images is None else job.images
    rows = batch * resolve(job).data.rows
    sizes = Sizes(
        batch=rows, seq=seq, target_seq=target, images=images, image_tokens=job.image_tokens
    )
    return numpy.broadcast_to(
        Recording(resolve(job), config, forecast.gpu, sizes).peak(resolve(job)), values.shape
    )


def _ratio(forecast: Forecast, allocated: int) -> float:
    """From allocated bytes to the safe limit of reserved ones."""
    verdict = forecast.verdict()
    margin = (verdict.safe_bytes or verdict.highest_bytes) / verdict.highest_bytes
    return margin * max((verdict.reserved_bytes or 0) / allocated, 1.0)
