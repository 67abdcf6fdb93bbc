"""Runs of xMem (Stone-ResearchLife/xMem, plot/data and data_new, MIT) that ran out of memory on their
card, and some that just fitted: the verdict must be the card's.

Plain fp32 loops at 128 tokens, random weights, torch 2.6, transformers 4.49; read when the engine was settled.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from vramcast.engine.estimate import estimate
from vramcast.job import job_from

CONFIGS = Path(__file__).parent / "scripts" / "configs"
RAN_OUT = [
    ("gpt-neo-125m", "adamw", 26, "rtx4060", "before-forward"),
    ("gpt-neo-125m", "sgd", 28, "rtx4060", "after-forward"),
    ("gpt-neo-125m", "adamw", 42, "rtx3060", "before-forward"),
    ("t5-small", "adamw", 45, "rtx4060", "before-forward"),
    ("t5-small", "adamw", 68, "rtx3060", "before-forward"),
    ("opt-125m", "adamw", 53, "rtx4060", "before-forward"),
    ("gpt2", "adamw", 42, "rtx4060", "before-forward"),
    ("gpt2", "adamw", 54, "rtx3060", "before-forward"),
    ("t5-small", "adam", 52, "rtx4060", "before-forward"),
    ("distilgpt2", "adamw", 42, "rtx4060", "before-forward"),
    ("gpt-neo-125m", "adam", 28, "rtx4060", "before-forward"),
    ("gpt-neo-125m", "sgd", 29, "rtx4060", "after-forward"),
    ("gpt-neo-125m", "adam", 54, "rtx4060", "before-forward"),
    ("gpt-neo-125m", "sgd", 56, "rtx4060", "before-forward"),
    ("gpt-neo-125m", "adam", 63, "rtx4060", "before-forward"),
    ("gpt-neo-125m", "adam", 45, "rtx3060", "before-forward"),
    ("gpt-neo-125m", "adamw", 45, "rtx3060", "before-forward"),
]
FITTED = [
    ("gpt-neo-125m", "adamw", 38, "rtx3060", "before-forward"),  # 12.16 GB of 12.62
    ("opt-350m", "adamw", 27, "rtx3060", "before-forward"),  # 12.05 GB
    ("t5-small", "adamw", 39, "rtx4060", "before-forward"),  # 7.93 GB of 8.32
]


def fits(model: str, optimizer: str, batch: int, gpu: str, zero_grad: str) -> bool | None:
    values = {
        "model": str(CONFIGS / f"{model}.json"), "framework": "plain", "precision": "fp32", "batch": batch, "seq": 128,
        "optimizer": optimizer, "gpu": gpu, "zero-grad": zero_grad, "torch-version": "2.6",
        "transformers-version": "4.49",
    }  # fmt: skip
    return estimate(job_from(values)).verdict().fits


@pytest.mark.parametrize("run", RAN_OUT, ids=lambda run: f"{run[0]}-{run[2]}-{run[3]}")
def test_what_ran_out_is_said_to(run: tuple[str, str, int, str, str]) -> None:
    assert fits(*run) is False


@pytest.mark.parametrize("run", FITTED, ids=lambda run: f"{run[0]}-{run[2]}-{run[3]}")
def test_what_filled_the_card_almost_is_said_to_fit(run: tuple[str, str, int, str, str]) -> None:
    assert fits(*run) is True
