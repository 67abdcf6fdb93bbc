"""How fast plans are: candidates priced per second in the table's core, and processor time of a whole plan.

The core adds what moves (by moment, micro-batch and length) and what lies there (by moment and optimizer) and takes the
largest; recording and folding the regimes comes before it and is timed with the whole plan.
"""

from __future__ import annotations

import time

import numpy

from vramcast.catalog.gpus import find_gpu
from vramcast.formulas.peaks import MOMENTS, Recording
from vramcast.job import Job, job_from
from vramcast.models.program import Sizes
from vramcast.models.read import read_model
from vramcast.plan.search import plan

BATCHES, SEQS, OPTIMIZERS = 256, 128, ("adamw", "sgd", "adafactor", "adamw-8bit", "lion")
WANTED_PER_S, WANTED_S = 1_000_000, 2.0


def candidates_per_s() -> float:
    """One regime with all micro-batches, lengths and optimizers, the recording included."""
    job = Job(model="qwen2.5-7b", gpu="rtx4090", checkpointing="full")
    config = read_model("qwen2.5-7b").config
    assert config is not None
    started = time.process_time()
    b, s = numpy.meshgrid(numpy.arange(1, BATCHES + 1), 64 * numpy.arange(1, SEQS + 1), indexing="ij")
    recording = Recording(job, config, find_gpu("rtx4090"), Sizes(batch=b, seq=s, target_seq=s))
    passes, beside = recording.passes(job), recording.beside(job)
    moving = {phase: numpy.broadcast_to(passes[phase] + beside[phase], b.shape) for phase in MOMENTS if phase in passes}
    fitting = 0
    for optimizer in OPTIMIZERS:
        lying = recording.lying(Job(model="qwen2.5-7b", gpu="rtx4090", checkpointing="full", optimizer=optimizer))
        peak = numpy.zeros(b.shape, numpy.int64)
        for phase, grid in moving.items():
            numpy.maximum(peak, grid + lying[phase], out=peak)
        fitting += int((peak <= 24 * 2**30).sum())
    return len(OPTIMIZERS) * b.size / (time.process_time() - started)


def plan_seconds(job: Job) -> float:
    started = time.process_time()
    plan(job)
    return time.process_time() - started


if __name__ == "__main__":
    rate = max(candidates_per_s() for _ in range(3))
    print(f"{rate / 1e6:.1f} million candidates per second (wanted: {WANTED_PER_S / 1e6:.0f})")
    for values in (
        {"model": "qwen2.5-7b", "gpu": "rtx4090", "seq": 4096},
        {"model": "llama-3.1-8b", "gpu": "a100-80gb", "seq": 4096},
        {"model": "flan-t5-xl", "gpu": "16GiB", "seq": 512},
        {"model": "llama-3.1-8b", "gpu": "rtx4090", "gpus": 2, "seq": 2048},
        {"model": "mixtral-8x7b", "gpu": "a100-40gb", "gpus": 8, "seq": 2048},
        {"model": "llama-3.1-70b", "gpu": "h100-80gb", "gpus": 8, "seq": 4096},
    ):
        taken = min(plan_seconds(job_from(values)) for _ in range(3))
        print(
            f"plan {values['model']} on {values.get('gpus', 1)} × {values['gpu']}: {taken:.2f} s of processor time "
            f"(wanted: {WANTED_S:.0f})"
        )
