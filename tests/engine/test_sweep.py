"""A grid's points are what a whole estimate says; the largest batch that fits is the largest that fits."""

from __future__ import annotations

from dataclasses import replace

import numpy
import pytest

from vramcast.cli.sweep import numbers
from vramcast.engine.estimate import estimate
from vramcast.engine.prices.sweep import peak_grid, sweep
from vramcast.errors import InputError
from vramcast.job import Job, job_from
from vramcast.models.read.model import read_model

JOBS = {
    "plain": {"model": "llama-3.2-1b"},
    "bf16 with checkpointing": {
        "model": "qwen2.5-0.5b",
        "precision": "bf16-true",
        "checkpointing": "full",
    },
    "accumulating": {"model": "gpt2", "accumulate": 4, "precision": "fp32"},
    "lightning": {"model": "gpt2", "framework": "lightning"},
    "trainer": {"model": "gpt2", "framework": "hf"},
    "in backward": {"model": "smollm2-135m", "optimizer-impl": "in-backward"},
    "adapters": {"model": "qwen2.5-1.5b", "lora-rank": 16, "precision": "bf16-true"},
    "eight bit": {"model": "pythia-410m", "optimizer": "adamw-8bit"},
    "fused loss": {"model": "gemma-3-270m", "loss": "fused", "precision": "bf16-true"},
    "megatron": {"model": "gpt2-medium", "precision": "megatron-bf16"},
    "on both sides of a window": {"model": "gemma-3-270m", "precision": "bf16-true"},
    "one head of keys, one sample and several": {"model": "gemma-2b", "attention": "eager"},
    "the same on both sides of a window": {"model": "gemma-3-270m", "attention": "eager"},
    "one head of keys on a rank": {
        "model": "llama-3.2-1b",
        "gpus": 8,
        "tp": 8,
        "attention": "eager",
    },
    "fewer image tokens": {"model": "llava-1.5-7b", "precision": "bf16-true", "image-tokens": 64},
}


@pytest.mark.parametrize("name", JOBS)
def test_a_point_of_the_grid_is_what_an_estimate_says(name: str) -> None:
    job = job_from(JOBS[name])
    assert job.model is not None
    config = read_model(job.model).config
    assert config is not None
    batches, seqs = numpy.array([1, 3]), numpy.array([96, 640])
    grid = peak_grid(job, config, None, batches, seqs)
    for index in range(2):
        ledger = estimate(replace(job, batch=int(batches[index]), seq=int(seqs[index]))).ledger
        rounding = sum(
            entry.nbytes for entry in ledger.entries if entry.component == "rounding inside blocks"
        )
        inputs = sum(entry.nbytes for entry in ledger.entries if str(entry.category) == "inputs")
        assert int(grid[index]) == pytest.approx(
            ledger.peak("cuda:0").allocated_bytes - rounding, abs=inputs
        )


def test_the_largest_batch_is_the_largest_that_fits() -> None:
    job = Job(model="llama-3.2-1b", gpu="rtx4090", checkpointing="full")
    found = sweep(job, (1, 2, 4, 8), (512, 2048)).largest
    for seq, best in zip((512, 2048), found, strict=True):
        fitting = [
            b for b in (1, 2, 4, 8) if estimate(replace(job, batch=b, seq=seq)).verdict().fits
        ]
        assert best == max(fitting, default=0)


def test_ranges_as_people_write_them() -> None:
    assert numbers("batch", "1..64") == (1, 2, 4, 8, 16, 32, 64)
    assert numbers("seq", "128..512:128,1000") == (128, 256, 384, 512, 1000)
    for bad in ("", "x", "0", "8..4", "1..8:0", "-1"):
        with pytest.raises(InputError, match="batch"):
            numbers("batch", bad)
