"""Cards before Ampere: what cannot compute in bf16 is not advised to, and is told so."""

from __future__ import annotations

import pytest

from vramcast.catalog.gpus import all_gpus, find_gpu
from vramcast.engine.estimate import estimate
from vramcast.job import Job, Precision
from vramcast.models.record.tape import BF16
from vramcast.plan.moves import available
from vramcast.plan.search import plan
from vramcast.setup import RECIPES

OLD = tuple(gpu.name for gpu in all_gpus() if gpu.vendor == "nvidia" and not gpu.supports_bf16)


def job(**values: object) -> Job:
    return Job(model="gpt2", batch=4, seq=256, **values)  # type: ignore[arg-type]


def test_the_catalog_says_which_cards_these_are() -> None:
    assert {"Tesla T4", "Tesla V100 SXM2 16GB"} <= set(OLD)
    assert all((find_gpu(name).compute_capability or (9, 0)) < (8, 0) for name in OLD)


@pytest.mark.parametrize("gpu", OLD)
def test_bf16_is_warned_of(gpu: str) -> None:
    assert any(
        "no bf16 arithmetic" in text
        for text in estimate(job(gpu=gpu, precision=Precision.BF16_MIXED)).warnings
    )
    assert not any(
        "bf16" in text for text in estimate(job(gpu=gpu, precision=Precision.FP16_MIXED)).warnings
    )


def test_many_gpus_are_warned_too() -> None:
    assert any(
        "no bf16 arithmetic" in text
        for text in estimate(job(gpu="t4", gpus=4, precision=Precision.BF16_MIXED)).warnings
    )


@pytest.mark.parametrize("gpu", ["a100-80gb", "24GiB", None])
def test_other_cards_are_not(gpu: str | None) -> None:
    assert not any("bf16" in text for text in estimate(job(gpu=gpu)).warnings)


@pytest.mark.parametrize("gpu", ["t4", "v100-16gb"])
def test_no_move_leads_to_bf16(gpu: str) -> None:
    given = job(gpu=gpu, precision=Precision.FP16_MIXED)
    moves = {move.name: move for move in available(given, frozenset())}
    assert "everything in bf16" not in moves
    after = {name: changed.precision for name in moves if (changed := moves[name].apply(given))}
    assert after["LoRA"] == after["QLoRA"] == Precision.FP16_AUTOCAST
    assert not any(
        BF16 in (RECIPES[precision].weights, RECIPES[precision].autocast)
        for precision in after.values()
    )


def test_adapters_of_an_fp16_model_are_fp32_so_that_a_scaler_can_work() -> None:
    (found,) = [
        p
        for p in plan(job(gpu="t4", precision=Precision.FP16_MIXED)).singles
        if p.move.name == "LoRA"
    ]
    assert found.frees_bytes > 0
    adapted = estimate(job(gpu="t4", precision=Precision.FP16_AUTOCAST, lora_rank=16)).ledger
    assert {entry.component for entry in adapted.entries if entry.category == "gradients"} == {
        "of trained parameters, fp32"
    }
