"""Peaks of a long stage from short ones: the same as those of the whole, whatever the strategy does."""

from __future__ import annotations

from typing import Any

import pytest

from vramcast.catalog.gpus import find_gpu
from vramcast.engine.parallel import deep_stages as alike
from vramcast.engine.parallel.ranks import Rank, rank_of_stage, rank_program
from vramcast.engine.parallel.topology import topology_of
from vramcast.engine.recording.record import plain, sizes_of
from vramcast.engine.stream.fold import peak_by_phase
from vramcast.job import job_from
from vramcast.models.read.model import read_model
from vramcast.setup import resolve

JOBS: dict[str, dict[str, Any]] = {
    "gathered ahead": {"strategy": "fsdp2"},
    "recomputed": {"strategy": "fsdp2", "checkpointing": "full"},
    "inputs that leave late": {
        "strategy": "fsdp2",
        "checkpointing": "offload",
        "framework": "torchtune",
        "model": "llama-3.1-70b",
    },
    "the last block stays": {
        "strategy": "fsdp2",
        "framework": "torchtitan",
        "checkpointing": "selective",
    },
    "weights on the host": {"strategy": "fsdp2", "offload": "params", "checkpointing": "full"},
    "reduced with the last micro-batch": {"strategy": "fsdp2", "framework": "hf", "accumulate": 3},
    "flat vectors": {"strategy": "fsdp1", "accumulate": 2, "framework": "lightning"},
    "adapters": {"strategy": "fsdp1", "lora-rank": 16, "quantize": "nf4", "framework": "hf"},
    "one unit behind the other": {
        "strategy": "zero2",
        "framework": "megatron",
        "checkpointing": "full",
    },
    "two units ahead": {"strategy": "zero3", "framework": "megatron"},
    "buckets": {"strategy": "ddp", "checkpointing": "full"},
    "every third block is recomputed": {
        "strategy": "fsdp2",
        "checkpointing": "every-3",
        "model": "llama-3.1-70b",
    },
    "a stage in the middle": {
        "strategy": "zero1",
        "pp": 4,
        "accumulate": 8,
        "model": "llama-3.1-70b",
    },
    "two chunks of a stage": {
        "strategy": "ddp",
        "pp": 2,
        "accumulate": 4,
        "model": "llama-3.1-8b",
        "schedule": "interleaved",
        "virtual-stages": 2,
        "framework": "megatron",
    },
    "encoder and decoder": {"strategy": "fsdp2", "model": "flan-t5-xl", "checkpointing": "full"},
    "a vision tower": {"strategy": "ddp", "model": "qwen2-vl-7b", "images": 1, "seq": 2048},
    "two kinds in turn": {"strategy": "fsdp2", "model": "gemma-2-2b"},
    "dense layers first": {"strategy": "fsdp2", "model": "deepseek-v3", "seq": 256},
    "experts": {"model": "mixtral-8x7b", "strategy": "zero2", "precision": "bf16-true"},
}


def rank(values: dict[str, Any]) -> Rank:
    job = job_from(
        {"model": "llama-3.2-1b", "gpu": "h100-80gb", "gpus": 8, "batch": 2, "seq": 512, **values}
    )
    assert job.model is not None
    config, topology, gpu = (
        read_model(job.model).config,
        topology_of(resolve(job)),
        find_gpu("h100-80gb"),
    )
    assert config is not None
    program = rank_program(
        resolve(job), config, gpu, topology, plain(sizes_of(resolve(job).data, config))
    )
    return rank_of_stage(resolve(job), gpu, topology, program, topology.pp // 2)


@pytest.mark.parametrize("name", JOBS)
def test_short_stages_tell_the_peaks_of_a_long_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = rank(JOBS[name])
    with monkeypatch.context() as patch:
        patch.delattr(alike, "peak_by_phase")  # which folds the whole stage
        found = asked.passes()
    fresh = {not asked.step.finds_gradients, *((False,) if asked.step.reduces_last else ())}
    whole = [peak_by_phase(asked.step.program, asked.step.mode(fresh=each)) for each in fresh]
    assert found == {phase: max(int(peaks[phase]) for peaks in whole) for phase in whole[0]}


def test_a_stage_of_few_layers_is_folded_whole() -> None:
    asked = rank({"strategy": "zero1", "pp": 4, "accumulate": 4})
    assert asked.passes() == peak_by_phase(asked.step.program, asked.step.mode(fresh=False))
