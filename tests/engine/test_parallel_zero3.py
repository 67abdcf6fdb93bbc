"""ZeRO-3's rules by hand, and what deepspeed.initialize and Liger's loss do on the way."""

from __future__ import annotations

import pytest

from vramcast.engine.estimate import estimate
from vramcast.engine.parallel.zero3 import Bucket, Reduction, kept_until_backward
from vramcast.forecast import Forecast
from vramcast.job import job_from

JOB = {
    "model": "llama-3.1-8b", "precision": "bf16-master", "seq": 1024, "gpus": 8, "strategy": "zero3", "loss": "fused",
    "offload": "optimizer", "gpu": "h200", "checkpointing": "full",
}  # fmt: skip
PARAMETERS, HIDDEN, VOCABULARY = 8_030_261_248, 4096, 128_256


def test_units_used_again_within_a_billion_elements_stay_gathered() -> None:
    """Behind unit 2 come half a billion, behind unit 1 those and three times two hundred million."""
    elements, uses = [500_000_000, 200_000_000, 200_000_000, 500_000_000], [1, 2, 2, 0]
    assert kept_until_backward(elements, uses) == {2, 3}


def test_a_gradient_that_does_not_fit_reduces_those_before_it() -> None:
    bucket = Bucket(10)
    found = [reduction for numel in (4, 4, 4, 12, 1) for reduction in bucket.add(numel)]
    assert found == [
        Reduction(elements=8, largest=4, tensors=2),
        Reduction(elements=4, largest=4, tensors=1),
        Reduction(elements=12, largest=12, tensors=1),
    ]
    assert list(bucket.reduce()) == [Reduction(elements=1, largest=1, tensors=1)]


def bill(**values: object) -> Forecast:
    return estimate(job_from({**JOB, **values}))


def test_deepspeed_puts_the_whole_model_on_the_gpu_before_it_partitions_it() -> None:
    alone = bill(framework="deepspeed").ledger.moment("load", "cuda:0").allocated_bytes
    assert alone == 2 * PARAMETERS
    assert bill(framework="hf").ledger.moment("load", "cuda:0").allocated_bytes < alone / 4


def test_liger_before_0_8_1_adds_to_the_heads_gradient_through_two_copies() -> None:
    def forward(version: str) -> int:
        return bill(**{"liger-version": version}).ledger.moment("forward", "cuda:0").allocated_bytes

    copies = VOCABULARY * HIDDEN * (2 + 4)
    assert forward("0.8.0") - forward("0.8.1") == pytest.approx(
        copies, rel=0.001
    )  # blocks are rounded


def test_a_fused_gate_leaves_its_gradients_where_its_inputs_were() -> None:
    """gate, up and their product are there with one gradient, not with three."""
    long = {"seq": 65536, "kernels": ["mlp"], "attention": "flash"}
    wide = 65536 * 14336 * 2
    line = next(
        e
        for e in bill(**long).ledger.entries
        if e.component.startswith("working memory of backward")
    )
    assert line.nbytes < 2 * wide
