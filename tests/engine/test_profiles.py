"""What is decided where the user says neither precision nor checkpointing.

Expected values are what the frameworks' sources say (see `setup.profiles`), not what the code answers.
"""

from __future__ import annotations

from typing import Any

import pytest

from vramcast import estimate
from vramcast.job import job_from
from vramcast.setup import complete, resolve

BF16_CHECKPOINT, FP32_CHECKPOINT = "qwen2.5-0.5b", "gpt2"


@pytest.mark.parametrize(
    ("said", "precision"),
    [
        # transformers 5 loads a bf16 checkpoint in bf16, before that in fp32
        ({"framework": "hf"}, "bf16-autocast"),
        ({"framework": "hf", "transformers-version": "4.57"}, "bf16-mixed"),
        ({"framework": "hf", "model": FP32_CHECKPOINT}, "bf16-mixed"),
        ({"framework": "hf", "lora-rank": 16}, "bf16-autocast"),
        ({"lora-rank": 16}, "bf16-autocast"),
        ({"lora-rank": 16, "transformers-version": "4.57"}, "bf16-mixed"),
        # what bitsandbytes leaves is loaded in 16 bit, with every version
        ({"lora-rank": 16, "quantize": "nf4", "transformers-version": "4.57"}, "bf16-autocast"),
        # a T4 has no bf16; a GradScaler wants fp32 gradients of what is trained
        ({"framework": "hf", "gpu": "t4"}, "fp16-mixed"),
        ({"framework": "hf", "gpu": "t4", "lora-rank": 16}, "fp16-autocast"),
        # accelerate raises what is trained to fp32 under FSDP; DeepSpeed keeps a master copy
        ({"framework": "hf", "gpus": 8, "strategy": "fsdp2"}, "bf16-mixed"),
        ({"framework": "hf", "gpus": 8, "strategy": "zero3"}, "bf16-master"),
        ({"framework": "trl"}, "bf16-mixed"),
        ({"framework": "torchtune"}, "bf16-true"),
        ({"framework": "litgpt", "tuning": "lora"}, "bf16-mixed"),
        # litgpt refuses mixed precision over quantised weights
        ({"framework": "litgpt", "tuning": "qlora"}, "bf16-true"),
        ({"framework": "deepspeed"}, "bf16-master"),
        ({"framework": "megatron"}, "megatron-bf16"),
        ({}, "bf16-autocast"),
        ({"framework": "plain"}, "bf16-autocast"),
        ({"framework": "lightning"}, "bf16-autocast"),
        ({"framework": "plain", "model": FP32_CHECKPOINT}, "bf16-mixed"),
        ({"framework": "plain", "transformers-version": "4.57"}, "bf16-mixed"),
        ({"framework": "hf", "precision": "fp32"}, "fp32"),
    ],
)
def test_precision_follows_framework_checkpoint_and_card(
    said: dict[str, Any], precision: str
) -> None:
    job = job_from({"model": BF16_CHECKPOINT, **said})
    assert str(complete(job).precision) == precision
    assert str(resolve(job).precision.name) == precision


def test_trl_checkpoints_unless_told_otherwise() -> None:
    said = {"model": BF16_CHECKPOINT, "framework": "trl"}
    assert complete(job_from(said)).checkpointing == "full"
    assert complete(job_from({**said, "checkpointing": "none"})).checkpointing == "none"
    assert complete(job_from({**said, "framework": "hf"})).checkpointing == "none"


def test_a_job_in_which_all_is_said_stays_as_it_is() -> None:
    job = complete(job_from({"model": BF16_CHECKPOINT, "framework": "unsloth"}))
    assert complete(job) is job
    assert job.precision is not None


def test_torchtune_and_litgpt_do_as_their_recipes_do() -> None:
    """torchtune's shipped configs; litgpt/finetune/lora.py, whose lora_key, lora_projection and lora_mlp are off."""
    said = {"model": BF16_CHECKPOINT, "tuning": "lora"}
    torchtune = complete(job_from({**said, "framework": "torchtune"}))
    assert (torchtune.checkpointing, torchtune.loss) == ("full", "chunked")
    assert torchtune.lora_targets == ("q_proj", "v_proj", "output_proj", "mlp")
    assert resolve(torchtune).optimizer.implementation == "fused"
    assert complete(job_from({**said, "framework": "litgpt"})).lora_targets == ("query", "value")


def test_the_trl_beside_transformers_5_decides_the_loss() -> None:
    """Dates of both on PyPI: 5.0 came with TRL 0.27, 5.13 with 1.7, 5.20 with 1.16. SFT has computed its loss in chunks
    since TRL 1.6, the other trainers since 1.15."""
    found = {}
    for version in ("5.0", "5.13", "5.20"):
        said = {"model": BF16_CHECKPOINT, "framework": "trl", "transformers-version": version}
        found[version] = tuple(
            complete(job_from({**said, "task": task})).loss for task in ("sft", "dpo")
        )
    assert found == {
        "5.0": ("full", "full"),
        "5.13": ("tiled", "full"),
        "5.20": ("tiled", "tiled"),
    }


# What configuration files leave open: (rank, quantize, checkpointing, precision, optimizer).
HABITS = {
    "llama-factory": (8, "none", "full", "bf16-autocast", "adamw"),
    "axolotl": (None, "none", "none", "bf16-autocast", "adamw"),
    "ms-swift": (8, "none", "full", "bf16-autocast", "adamw"),
    "unsloth": (16, "nf4-double", "offload", "bf16-autocast", "adamw-8bit"),
    "verl": (None, "none", "full", "bf16-mixed", "adamw"),
    "openrlhf": (None, "none", "none", "bf16-master", "adamw"),
    "nemo": (None, "none", "none", "bf16-true", "adamw"),
}


@pytest.mark.parametrize("framework", HABITS)
def test_frameworks_train_what_their_configs_leave_open(framework: str) -> None:
    job = complete(job_from({"model": BF16_CHECKPOINT, "framework": framework}))
    found = (job.lora_rank, job.quantize, job.checkpointing, str(job.precision), job.optimizer)
    assert found == HABITS[framework]


def test_what_is_said_goes_before_the_profile() -> None:
    said = {
        "model": BF16_CHECKPOINT,
        "framework": "unsloth",
        "tuning": "full",
        "optimizer": "adamw",
    }
    job = complete(job_from(said))
    assert (job.lora_rank, job.quantize, job.optimizer) == (None, "none", "adamw")
    full = complete(job_from({**said, "framework": "llama-factory"}))
    assert str(full.precision) == "bf16-mixed"  # what is trained is raised to fp32


def test_trl_over_time() -> None:
    """Read in TRL's own history: checkpointing since 0.22, fp32 weights since 0.27, tiles since 1.15."""
    said = {"model": BF16_CHECKPOINT, "framework": "trl"}
    found = []
    for version in ("0.21", "0.26", "0.29", "1.16"):
        job = complete(job_from({**said, "trl-version": version}))
        found.append((job.checkpointing, str(job.precision), job.loss))
    assert found == [
        ("none", "bf16-mixed", "full"),
        ("full", "bf16-autocast", "full"),
        ("full", "bf16-mixed", "full"),
        ("full", "bf16-mixed", "tiled"),
    ]


def test_4_bit_weights_have_adapters_without_another_word() -> None:
    for said in ({"tuning": "qlora"}, {"quantize": "nf4"}):
        job = complete(job_from({"model": BF16_CHECKPOINT, **said}))
        assert (job.lora_rank, job.quantize) == (16, "nf4")


def test_frozen_weights_under_adapters_take_two_bytes_each() -> None:
    forecast = estimate(job_from({"model": "qwen2.5-7b", "lora-rank": 16, "seq": 512}))
    frozen = [entry for entry in forecast.ledger.entries if entry.component.startswith("frozen")]
    assert sum(entry.nbytes for entry in frozen) == 2 * 7_615_616_512
    assert any("was not given" in text for text in forecast.assumptions)
