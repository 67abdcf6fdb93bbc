"""A step's stream adds up: what dies was born, in the same size, and nothing is there twice.

A replay goes by the tensors' names and would not notice; sums of births and deaths, which price plans, would.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from vramcast.catalog.gpus import find_gpu
from vramcast.formulas.drafts import Drafts
from vramcast.formulas.parallel.ranks import rank_of_stage, rank_program
from vramcast.formulas.parallel.topology import topology_of
from vramcast.formulas.recorded import is_divided, sizes_of
from vramcast.formulas.timeline import Stamped
from vramcast.job import job_from
from vramcast.models.read import read_model

JOBS: dict[str, dict[str, Any]] = {
    "one layer after the other": {"model": "llama-3.2-1b"},
    "recomputed": {"model": "gpt2", "checkpointing": "full", "attention": "eager"},
    "products kept": {"model": "qwen2.5-0.5b", "checkpointing": "selective"},
    "inputs on the host": {"model": "smollm2-135m", "checkpointing": "offload", "framework": "trl"},
    "a stream that turns to fp32": {"model": "phi-3.5-moe", "precision": "bf16-autocast", "checkpointing": "full"},
    "adapters under autocast": {"model": "llama-3.2-1b", "lora-rank": 8, "checkpointing": "full"},
    "encoder and decoder": {"model": "t5-small", "checkpointing": "full"},
    "pictures": {"model": "qwen2-vl-2b", "images": 1, "seq": 512, "checkpointing": "full"},
    "layers of two kinds": {"model": "gemma-3-1b", "loss": "chunked"},
    "gathered": {"model": "llama-3.2-1b", "gpus": 4, "strategy": "fsdp2", "checkpointing": "full"},
    "gathered in vectors": {"model": "gpt2", "gpus": 4, "strategy": "fsdp1", "accumulate": 2},
    "fetched": {"model": "qwen2.5-0.5b", "gpus": 4, "strategy": "fsdp2", "offload": "params"},
    "kept for a while": {"model": "gpt2", "gpus": 4, "strategy": "zero3", "framework": "deepspeed"},
    "divided matrices": {"model": "llama-3.2-1b", "gpus": 4, "strategy": "ddp", "tp": 2},
    "a tied head in a unit of its own": {"model": "gpt2", "gpus": 4, "strategy": "fsdp2", "units": "ends"},
    "a stage": {"model": "llama-3.2-1b", "gpus": 4, "strategy": "ddp", "pp": 2, "accumulate": 4},
    "a recomputed stage": {
        "model": "llama-3.2-1b", "gpus": 4, "strategy": "fsdp2", "pp": 2, "accumulate": 4, "checkpointing": "full",
    },
    "a stage with its inputs on the host": {
        "model": "llama-3.2-1b", "gpus": 4, "strategy": "ddp", "pp": 2, "accumulate": 4, "checkpointing": "offload",
    },
    "Megatron's": {
        "model": "llama-3.2-1b", "gpus": 4, "strategy": "zero2", "framework": "megatron", "accumulate": 2,
        "precision": "megatron-bf16",
    },
}  # fmt: skip


def streams(values: dict[str, Any]) -> Iterator[list[Stamped]]:
    job, gpu = job_from({"gpu": "h100-80gb", "seq": 128, **values}), find_gpu("h100-80gb")
    assert job.model is not None
    config = read_model(job.model).config
    assert config is not None
    if not is_divided(job):
        draft = Drafts(config, gpu).of(job)
        yield from (draft.stream, draft.later)
        return
    topology = topology_of(job)
    program = rank_program(job, config, gpu, topology, sizes_of(job, config))
    for stage in range(topology.pp):
        step = rank_of_stage(job, gpu, topology, program, stage).step
        yield from (step.stream(), step.stream(fresh=False))


@pytest.mark.parametrize("name", JOBS)
def test_what_dies_was_born_in_the_same_size(name: str) -> None:
    for stream in streams(JOBS[name]):
        alive: dict[object, Stamped] = {}
        for item in stream:
            if item.event.sign > 0:
                assert item.key not in alive, item
                assert int(item.event.nbytes) >= 0, item
                alive[item.key] = item
            else:
                born = alive.pop(item.key, None)
                assert born is not None, item
                assert int(born.event.nbytes) == int(item.event.nbytes), item
        left = {item.event.kind for item in alive.values()}  # a stage sends its output on; `outputs` holds the logits
        assert left <= {"gradient", "whole gradient", "working", "kv cache"}, left
