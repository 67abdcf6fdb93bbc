"""Job → Program, on one GPU or as one rank of many: the place where recording chooses between the two."""

from __future__ import annotations

from vramcast.catalog.gpus import Gpu
from vramcast.engine.recording.record import is_divided, record_on_one_gpu
from vramcast.models.read.config import Config
from vramcast.models.record.program import Program, Sizes
from vramcast.setup import Setup


def record_job(setup: Setup, config: Config, gpu: Gpu | None, sizes: Sizes) -> Program:
    """The model as this job, or one rank of it, runs it, loss included."""
    if is_divided(setup):
        from vramcast.engine.parallel.ranks import (
            record_rank,
        )  # imported here: most jobs have one GPU

        return record_rank(setup, config, gpu, sizes)
    return record_on_one_gpu(setup, config, gpu, sizes)
