"""What transformers' Adafactor allocates in a step, beside the formulas."""

from __future__ import annotations

import pytest
import torch
from live import Live
from transformers.optimization import Adafactor

from vramcast.engine.estimate import estimate
from vramcast.job import Job
from vramcast.ledger import STEP, Category

ROWS, COLUMNS = 512, 256
EMBEDDING = 50257 * 768


@pytest.mark.parametrize(("dtype", "tensors"), [(torch.bfloat16, 4), (torch.float32, 2)])
def test_a_real_step(dtype: torch.dtype, tensors: int) -> None:
    weight = torch.nn.Parameter(torch.randn(ROWS, COLUMNS, dtype=dtype))
    optimizer = Adafactor([weight], lr=1e-3, scale_parameter=False, relative_step=False)
    weight.grad = torch.randn_like(weight)
    live = Live(weight, weight.grad)
    with live:
        optimizer.step()
    matrix = ROWS * COLUMNS * 4
    assert tensors * matrix <= live.peak < (tensors + 0.1) * matrix


@pytest.mark.parametrize(("precision", "tensors"), [("bf16-true", 4), ("fp32", 2)])
def test_the_line_of_the_bill(precision: str, tensors: int) -> None:
    job = Job(model="gpt2", framework="hf", precision=precision, optimizer="adafactor")
    made = [
        entry.nbytes
        for entry in estimate(job).ledger.entries
        if entry.category == Category.TEMPORARY and STEP in entry.phases
    ]
    assert made == [tensors * EMBEDDING * 4]
