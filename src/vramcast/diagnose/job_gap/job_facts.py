"""Facts about a job that are cheaper than its forecast: its peak, its recorded model, its dtype.

In: a Job. Out: what the engine says, or None if it knows no answer. Does not know what was observed.
"""

from __future__ import annotations

from vramcast.catalog.gpus import find_gpu
from vramcast.engine import record_model
from vramcast.errors import VramcastError
from vramcast.job import Job
from vramcast.models.record.program import Program
from vramcast.models.record.tape import F32
from vramcast.setup import complete, model_of, resolve


def has_fp32_weights(job: Job) -> bool:
    return resolve(job).precision.weights == F32


def quick_peak_bytes(job: Job) -> int | None:
    """The peak of allocated bytes, ten times faster than a whole estimate; None where only that can tell."""
    if job.gpus > 1 or job.edit or job.longest_seq is not None:
        return None
    if job.model is None or job.seq is None:
        return None
    config = model_of(complete(job)).config
    if config is None:
        return None
    import numpy

    from vramcast.engine import peak_grid  # needs numpy

    gpu = find_gpu(job.gpu) if job.gpu else None
    batch, seq = numpy.array([[job.batch]]), numpy.array([[job.seq]])
    return int(peak_grid(job, config, gpu, batch, seq)[0, 0])


def record_program(job: Job) -> Program | None:
    """The model as recorded for this job; None if only a number or a table of its parameters is known."""
    try:
        config = model_of(complete(job)).config if job.model else None
        if config is None:
            return None
        gpu = find_gpu(job.gpu) if job.gpu else None
        return record_model(job, config, gpu)
    except VramcastError:
        return None
