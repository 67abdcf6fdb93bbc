"""The formula beside the virtual GPU: the same job, the same versions, the same allocator.

The formula replays births and deaths it derives; the trace runs transformers' and torch's own code. What they allocate
agrees closely; what they reserve hangs on the order of events as well, so a small model whose largest block falls into
another gap may differ by one such block.
"""

from __future__ import annotations

from importlib.metadata import version

import pytest

from vramcast.accuracy.run import peak_bytes
from vramcast.catalog.gpus import find_gpu
from vramcast.engine.estimate import estimate
from vramcast.engine.replay.card import replayed_on_card
from vramcast.engine.replay.drafts import Drafts
from vramcast.job import job_from
from vramcast.ledger import Level
from vramcast.models.read.model import read_model
from vramcast.setup import RECIPES, resolve
from vramcast.virtual.accounting.card import CardMemory
from vramcast.virtual.jobs.run import Loop, trace_job

# Tied and untied heads, learned, rotary and relative positions, fused and separate projections, grouped heads.
MODELS = ("gpt2", "opt-125m", "t5-small", "pythia-160m", "qwen2.5-0.5b", "smollm2-135m")
BATCH = 16


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("model", MODELS)
def test_what_is_reserved_agrees_with_a_trace(model: str, optimizer: str) -> None:
    job = job_from({
        "model": model, "framework": "plain", "optimizer": optimizer, "batch": BATCH, "seq": 128,
        "precision": "bf16-true",
        "gpu": "a100-80gb", "transformers-version": version("transformers"), "torch-version": version("torch"),
    })  # fmt: skip
    recipe, config = RECIPES[job.precision], read_model(model).config
    assert config is not None
    loop = Loop(
        weights=recipe.weights.name, autocast=None, implementation=resolve(job).optimizer.implementation,
        keeps_outputs=resolve(job).loop.keeps_outputs, zeroes_first=True,
    )  # fmt: skip
    meter = trace_job(job, loop, config, "a100-80gb").meters["cuda:0"]
    assert isinstance(meter.memory, CardMemory)
    requested = meter.memory.allocator.memory_stats()["requested_bytes.all.peak"]
    gpu = find_gpu("a100-80gb")
    asked = replayed_on_card(
        Drafts(config, gpu).of(resolve(job)).script, gpu, resolve(job)
    ).peak_requested_bytes
    assert asked == pytest.approx(requested, rel=0.0005)
    forecast = estimate(job)
    # What blocks have beyond what was asked for, and what the cache has beyond them, hangs on where each block lies.
    assert peak_bytes(forecast, Level.ALLOCATED) == pytest.approx(
        meter.max_allocated_bytes, rel=0.01
    )
    assert peak_bytes(forecast, Level.RESERVED) == pytest.approx(meter.max_reserved_bytes, rel=0.01)
