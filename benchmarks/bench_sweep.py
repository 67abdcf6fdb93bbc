"""Jobs per second: the fold on grids beside whole estimates, one by one, of the same jobs."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy

from vramcast.engine.estimate import estimate
from vramcast.engine.prices.sweep import peak_grid
from vramcast.job import Job, Precision
from vramcast.models.read.model import read_model

MODEL = "llama-3.2-1b"
BATCHES, SEQS = numpy.arange(1, 101), 64 * numpy.arange(1, 101)  # 10,000 points
WAYS = [
    {"precision": precision, "checkpointing": how}
    for precision in (
        Precision.FP32,
        Precision.BF16_TRUE,
        Precision.BF16_MIXED,
        Precision.BF16_MASTER,
        Precision.FP16_MIXED,
    )
    for how in ("none", "full")
]


def main() -> None:
    job = Job(model=MODEL)
    config = read_model(MODEL).config
    assert config is not None
    b, s = numpy.meshgrid(BATCHES, SEQS, indexing="ij")
    start = time.process_time()
    for way in WAYS:
        peak_grid(replace(job, **way), config, None, b, s)  # type: ignore[arg-type]
    grid_s, jobs = time.process_time() - start, len(WAYS) * b.size
    start = time.process_time()
    some = [estimate(replace(job, batch=2, seq=seq)) for seq in (512, 1024, 2048, 4096)]
    one_s = (time.process_time() - start) / len(some)
    print(
        f"{MODEL}: {jobs:,} jobs on grids in {grid_s:.2f} s of CPU time: {jobs / grid_s:,.0f} per second"
    )
    print(f"one whole estimate, allocator included: {one_s * 1000:.0f} ms")
    print(f"the grid is {one_s * jobs / grid_s:,.0f} times faster per job")


if __name__ == "__main__":
    main()
