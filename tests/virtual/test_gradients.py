"""Gradients that torch writes into zeros: a trace holds one tensor, as the card does, not two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from vramcast import virtual_gpu

MIB = 2**20
ROWS, WIDTH = 4096, 1024  # 16 MiB in fp32


def _taken_by_backward(chosen: Callable[[torch.Tensor], torch.Tensor]) -> int:
    with virtual_gpu("24GiB"):
        table = torch.zeros(ROWS, WIDTH, device="cuda", requires_grad=True)
        loss = chosen(table).sum()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        loss.backward()
        return int(torch.cuda.max_memory_allocated()) - before


@pytest.mark.parametrize(
    "chosen",
    [
        lambda table: table[torch.arange(8, device="cuda"), :],
        lambda table: table.gather(1, torch.zeros(ROWS, 1, dtype=torch.long, device="cuda")),
        lambda table: table.max(dim=1).values,
        lambda table: table.index_select(0, torch.arange(8, device="cuda")),
    ],
    ids=["index", "gather", "max", "index_select"],
)
def test_zeros_are_written_not_copied(chosen: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert 16 * MIB <= _taken_by_backward(chosen) < 17 * MIB


class Doubling(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.sum()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        zeros = torch.zeros(ROWS, WIDTH, device="cuda")
        index = torch.zeros(ROWS, 1, dtype=torch.long, device="cuda")
        return zeros.scatter_add(1, index, torch.ones(ROWS, 1, device="cuda"))


def test_a_backward_in_python_copies_where_it_says_so() -> None:
    assert _taken_by_backward(Doubling.apply) >= 32 * MIB
