"""A step's stream adds up: what dies was born, in the same size, and nothing is there twice; a replay asks for what
the bill says.

A replay goes by the tensors' names and would not notice; sums of births and deaths, which price plans, would.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from vramcast.catalog.gpus import find_gpu
from vramcast.engine.estimate import estimate
from vramcast.engine.parallel.ranks import rank_of_stage, rank_program
from vramcast.engine.parallel.sharding import wrapped_vectors
from vramcast.engine.parallel.topology import topology_of
from vramcast.engine.recording.record import is_divided, sizes_of
from vramcast.engine.replay.drafts import Drafts
from vramcast.engine.replay.run import replay
from vramcast.engine.stream.timeline import Stamped
from vramcast.job import job_from
from vramcast.ledger import PHASES, Category, Level
from vramcast.models.read.model import read_model
from vramcast.setup import resolve

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
    job, gpu = (
        job_from({"framework": "plain", "gpu": "h100-80gb", "seq": 128, **values}),
        find_gpu("h100-80gb"),
    )
    assert job.model is not None
    config = read_model(job.model).config
    assert config is not None
    if not is_divided(resolve(job)):
        draft = Drafts(config, gpu).of(resolve(job))
        yield from (draft.stream, draft.later)
        return
    topology = topology_of(resolve(job))
    program = rank_program(resolve(job), config, gpu, topology, sizes_of(resolve(job).data, config))
    for stage in range(topology.pp):
        step = rank_of_stage(resolve(job), gpu, topology, program, stage).step
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
        left = {
            item.event.kind for item in alive.values()
        }  # a stage sends its output on; `outputs` holds the logits, other results and the graph
        assert left <= {
            "gradient",
            "whole gradient",
            "working",
            "kv cache",
            "outputs",
            "pinned",
        }, left


@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_a_tied_head_on_a_stage_of_its_own_has_a_gradient_of_its_own(strategy: str) -> None:
    """A share would wait for an embedding that is not there."""
    _, _, *last = streams({**JOBS["a stage"], "strategy": strategy})
    keys = {item.event.key for stream in last for item in stream}
    assert not [key for key in keys if isinstance(key, tuple) and key[:2] == ("outer", "gradient")]


BESIDE: dict[str, dict[str, Any]] = {
    "nothing": {},
    "micro-batches": {"accumulate": 4},
    "states that come with a checkpoint": {"resume": "cpu"},
    "states that come with a checkpoint, micro-batches": {"resume": "cpu", "accumulate": 2},
    "evaluation": {"evaluate": True, "eval-batch": 4},
    "evaluation, micro-batches": {"evaluate": True, "eval-batch": 4, "accumulate": 2},
    "an averaged copy": {"ema": "same"},
    "a reference, micro-batches": {"reference": "same", "accumulate": 2},
    "many lengths": {"mean-seq": 100},
    "many lengths, evaluation": {"mean-seq": 100, "evaluate": True, "eval-batch": 8},
    "many lengths, evaluation, micro-batches": {
        "mean-seq": 100, "evaluate": True, "eval-batch": 8, "accumulate": 2,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", BESIDE)
@pytest.mark.parametrize("precision", ["bf16-true", "fp32"])
def test_a_replay_asks_for_what_the_bill_says(name: str, precision: str) -> None:
    job = job_from(
        {
            "framework": "plain",
            "model": "smollm2-135m",
            "gpu": "h100-80gb",
            "seq": 512,
            "precision": precision,
            **BESIDE[name],
        }
    )
    config = read_model("smollm2-135m").config
    assert config is not None
    script = Drafts(config, find_gpu("h100-80gb")).of(resolve(job)).script
    asked = replay(script, capacity_bytes=None, conf="").peak_requested_bytes
    bill = [
        entry for entry in estimate(job, with_scaling=False).ledger.entries
        if entry.place == "cuda:0" and entry.level is Level.ALLOCATED and entry.category is not Category.SLACK
    ]  # fmt: skip
    assert asked == max(
        sum(entry.nbytes for entry in bill if phase in entry.phases) for phase in PHASES
    )


@pytest.mark.parametrize("tp", [1, 4])
def test_what_fsdp1_wraps_is_what_its_ranks_hold(tp: int) -> None:
    """Experts are shared by more ranks than the rest where tensor parallelism does not divide them."""
    values = {
        "model": "phi-3.5-moe",
        "gpus": 8,
        "tp": tp,
        "strategy": "fsdp1",
        "seq": 128,
        "gpu": "h100-80gb",
    }
    job, gpu, config = job_from(values), find_gpu("h100-80gb"), read_model("phi-3.5-moe").config
    assert config is not None
    topology = topology_of(resolve(job))
    program = rank_program(resolve(job), config, gpu, topology, sizes_of(resolve(job).data, config))
    held = rank_of_stage(resolve(job), gpu, topology, program, 0).states.weights.nbytes
    cut = sum(
        -(-sum(sizes) // ranks) for sizes, ranks in wrapped_vectors(resolve(job), program, topology)
    )
    assert cut == pytest.approx(held, rel=1e-6)
