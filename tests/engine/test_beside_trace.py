"""The formula beside the virtual GPU where the order of events decides what is reserved: two layers at real widths.

Each case stands for one mechanism: where cuBLAS's workspaces fall, how long logits live, which micro-batch finds
gradients, how tied shares are added, what an optimizer's variables hold, which losses raise their logits.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from vramcast.accuracy.run import peak_bytes
from vramcast.catalog.models import find_model
from vramcast.engine.estimate import estimate
from vramcast.job import job_from
from vramcast.ledger import Level
from vramcast.models.read.model import read_model
from vramcast.plan.verify import zero_grad
from vramcast.setup import RECIPES, resolve
from vramcast.virtual.jobs.run import Loop, trace_job

DEPTHS = (
    "num_hidden_layers",
    "n_layer",
    "num_layers",
    "num_decoder_layers",
    "encoder_layers",
    "decoder_layers",
)
CASES: dict[str, dict[str, Any]] = {
    "workspaces and logits": {
        "model": "smollm2-135m", "batch": 8, "seq": 200, "precision": "bf16-true", "framework": "lightning",
        "optimizer": "sgd",
    },
    "micro-batches": {
        "model": "qwen2-1.5b", "seq": 512, "precision": "bf16-true", "attention": "eager", "checkpointing": "full",
        "accumulate": 2,
    },
    "micro-batches zeroed behind forward": {
        "model": "llama-3.2-1b", "batch": 2, "seq": 256, "precision": "fp32", "framework": "lightning",
        "accumulate": 3, "optimizer": "sgd",
    },
    "a share that becomes the gradient": {
        "model": "qwen2.5-0.5b", "batch": 2, "seq": 1024, "precision": "bf16-mixed", "checkpointing": "full",
    },
    "three shares, a cast first": {
        "model": "mt5-small", "batch": 2, "seq": 128, "target-seq": 100, "precision": "bf16-mixed",
        "attention": "eager", "checkpointing": "full", "optimizer": "sgd",
    },
    "three shares, a product first": {
        "model": "t5-small", "batch": 8, "seq": 128, "target-seq": 64, "precision": "bf16-true", "optimizer": "sgd",
    },
    "a fused loss and a tied head": {
        "model": "qwen2.5-0.5b", "batch": 2, "seq": 256, "precision": "bf16-mixed", "loss": "fused",
        "optimizer": "sgd",
    },
    "a chunked loss": {
        "model": "pythia-410m", "batch": 2, "seq": 512, "precision": "bf16-true", "loss": "chunked",
        "framework": "hf",
    },
    "chunks of whole logits": {
        "model": "qwen2.5-0.5b", "batch": 4, "seq": 128, "precision": "fp32", "loss": "chunked",
        "framework": "lightning", "optimizer": "sgd", "lora-rank": 16,
    },
    "chunks of logits handed on in fp32": {
        "model": "pythia-410m", "batch": 2, "seq": 512, "precision": "bf16-mixed", "loss": "chunked",
        "framework": "accelerate", "checkpointing": "full", "lora-rank": 64,
    },
    "outputs that go before a chunked loss": {
        "model": "pythia-410m", "batch": 4, "seq": 1024, "precision": "bf16-true", "loss": "chunked",
    },
    "chunks of a decoder's logits": {
        "model": "mt5-small", "batch": 2, "seq": 256, "target-seq": 256, "precision": "fp32", "loss": "chunked",
        "framework": "lightning",
    },
    "TRL's tiles of logits": {
        "model": "qwen2.5-0.5b", "batch": 4, "seq": 512, "precision": "bf16-mixed", "loss": "tiled",
        "framework": "hf", "checkpointing": "full",
    },
    "TRL's tiles, adapters and the model without them": {
        "model": "qwen2.5-0.5b", "batch": 2, "seq": 1024, "precision": "bf16-true", "loss": "tiled",
        "framework": "hf", "lora-rank": 16, "reference": "adapter",
    },
    "a reference behind a fused loss": {
        "model": "gemma-3-1b", "batch": 8, "seq": 128, "precision": "fp32", "loss": "fused", "optimizer": "adam",
        "checkpointing": "offload", "reference": "same",
    },
    "a reference behind the loss": {
        "model": "qwen2.5-0.5b", "batch": 4, "seq": 256, "precision": "bf16-mixed", "framework": "accelerate",
        "lora-rank": 8, "reference": "same",
    },
    "a softmax that raises bf16 first": {
        "model": "llama-3.2-1b", "batch": 2, "seq": 1024, "precision": "bf16-true", "attention": "eager",
        "framework": "hf", "optimizer": "sgd",
    },
    "that softmax, recomputed": {
        "model": "llama-3.2-1b", "batch": 2, "seq": 1024, "precision": "bf16-true", "attention": "eager",
        "framework": "hf", "optimizer": "sgd", "checkpointing": "full",
    },
    "products that a recomputation drops": {
        "model": "llama-3.2-1b", "batch": 4, "seq": 1024, "precision": "fp32", "framework": "hf",
        "optimizer": "sgd", "checkpointing": "selective", "loss": "fused",
    },
    "a cache that the Trainer does not reach, nf4": {
        "model": "t5-base", "batch": 2, "seq": 512, "target-seq": 512, "precision": "bf16-true", "framework": "hf",
        "lora-rank": 16, "quantize": "nf4", "checkpointing": "none",
    },
    "what adapters are called with": {
        "model": "llama-3.2-1b", "batch": 2, "seq": 1024, "precision": "bf16-true", "checkpointing": "full",
        "loss": "fused", "lora-rank": 64, "lora-targets": "all-linear", "lora-dropout": 0.1,
    },
    "shares added into the result of a cast": {
        "model": "pythia-410m", "batch": 4, "seq": 2048, "precision": "bf16-autocast", "checkpointing": "full",
        "loss": "fused", "lora-rank": 8, "lora-targets": "all-linear", "quantize": "nf4",
    },
    "states from the start": {
        "model": "pythia-410m", "batch": 3, "seq": 512, "precision": "fp32", "optimizer": "adagrad",
    },
    "a variable of Adafactor": {
        "framework": "plain", "model": "llama-2-70b", "batch": 2, "seq": 333, "precision": "fp32",
        "optimizer": "adafactor",
    },
    "a masked loss in 16 bits": {
        "model": "bert-base-uncased", "batch": 8, "seq": 256, "precision": "bf16-true", "framework": "hf",
        "task": "pretrain",
    },
}  # fmt: skip


def shallow(model: str, folder: Path) -> str:
    config = find_model(model).config
    small = {key: 2 for key in DEPTHS if config.get(key) is not None}
    (folder / "config.json").write_text(json.dumps({**config, **small}), encoding="utf-8")
    return str(folder)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_job_allocates_and_reserves_what_its_trace_does(case: str, tmp_path: Path) -> None:
    values = {
        "gpu": "h200",
        "torch-version": version("torch"),
        "transformers-version": version("transformers"),
        **CASES[case],
    }
    job = job_from({**values, "model": shallow(CASES[case]["model"], tmp_path)})
    recipe, config = RECIPES[job.precision], read_model(job.model or "").config
    assert config is not None
    loop = Loop(
        weights=recipe.weights.name, autocast=recipe.autocast.name if recipe.autocast else None,
        implementation=resolve(job).optimizer.implementation, keeps_outputs=resolve(job).loop.keeps_outputs,
        zeroes_first=zero_grad(job) == "before-forward",
    )  # fmt: skip
    meter = trace_job(job, loop, config, "h200").meters["cuda:0"]
    forecast = estimate(job, with_scaling=False)
    assert peak_bytes(forecast, Level.ALLOCATED) == pytest.approx(
        meter.max_allocated_bytes, rel=0.005
    )
    assert peak_bytes(forecast, Level.RESERVED) == pytest.approx(meter.max_reserved_bytes, rel=0.02)
