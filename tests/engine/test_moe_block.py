"""The hand-written mixture of experts: against the same block run by torch, and as people estimate it."""

from __future__ import annotations

import numpy
import pytest
import torch
from moe_block import (
    MoeBlock,
    block_bytes,
    busiest_expert_bytes,
    detached_inputs_bytes,
    detached_scores_bytes,
    simple_inventory_bytes,
)
from torch import nn
from torch.nn import functional

from vramcast.errors import InputError

PUBLISHED = MoeBlock(batch=1, seq=512, hidden=1024, inner=2816, experts=8, k=2, layers=24)


class Expert(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.w1, self.w3 = (
            nn.Linear(hidden, inner, bias=False),
            nn.Linear(hidden, inner, bias=False),
        )
        self.w2 = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        down: torch.Tensor = self.w2(functional.silu(self.w1(x)) * self.w3(x))
        return down


class Block(nn.Module):
    """A cosine gate with thresholds over SwiGLU experts; here every token takes two."""

    def __init__(self, hidden: int, inner: int, num: int) -> None:
        super().__init__()
        self.similarity = nn.Parameter(torch.randn(hidden, num))
        self.threshold = nn.Parameter(torch.zeros(num))
        self.experts = nn.ModuleList(Expert(hidden, inner) for _ in range(num))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = functional.normalize(x, dim=-1) @ functional.normalize(self.similarity, dim=0)
        active = functional.relu(torch.sigmoid(logits) - torch.sigmoid(self.threshold))
        weights = active / active.sum(-1, keepdim=True)
        chosen = torch.zeros_like(weights).scatter(1, weights.topk(2, -1).indices, 1) > 0
        mixture = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            (rows,) = torch.where(chosen[:, index])
            mixture.index_add_(0, rows, expert(x[rows]) * weights[rows, index, None])
        return mixture


def test_one_layer_keeps_what_torch_keeps() -> None:
    block = Block(256, 704, 8).bfloat16()
    x = torch.randn(512, 256, dtype=torch.bfloat16).requires_grad_().clone()
    known = {p.untyped_storage().data_ptr() for p in block.parameters()}
    saved: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.detach()
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = block(x)
    real = sum(x.untyped_storage().nbytes() for pointer, x in saved.items() if pointer not in known)
    del output
    assert block_bytes(
        MoeBlock(batch=1, seq=512, hidden=256, inner=704, experts=8, k=2)
    ) == pytest.approx(real, rel=0.02)


def test_the_published_sizes() -> None:
    """The devlog of dmf-archive/Tiny-ONN counts 164,167,680 and 786,432 bytes for 24 layers; measured, one layer keeps
    31,531,056."""
    assert simple_inventory_bytes(PUBLISHED) == 164_167_680
    assert detached_scores_bytes(PUBLISHED) == 786_432
    assert detached_inputs_bytes(PUBLISHED) == 25_165_824
    assert block_bytes(PUBLISHED) == pytest.approx(31_531_056, rel=0.02)


def test_k_may_be_a_mean_or_a_grid() -> None:
    one, two = (
        block_bytes(MoeBlock(batch=1, seq=64, hidden=32, inner=64, experts=8, k=k)) for k in (1, 2)
    )
    between = block_bytes(MoeBlock(batch=1, seq=64, hidden=32, inner=64, experts=8, k=1.5))
    assert between == (one + two) // 2
    grid = block_bytes(
        MoeBlock(batch=1, seq=numpy.array([64, 128]), hidden=32, inner=64, experts=8, k=2)
    )
    assert grid[0] == two


def test_the_busiest_expert_never_has_more_rows_than_there_are_tokens() -> None:
    even = busiest_expert_bytes(PUBLISHED, 1.0)
    assert even == 128 * (4 * 2816 + 3 * 1024) * 2
    assert busiest_expert_bytes(PUBLISHED, 100.0) == 4 * even


@pytest.mark.parametrize("k", [0, 9, -1])
def test_k_outside_of_the_experts_is_refused(k: int) -> None:
    with pytest.raises(InputError, match="8 experts"):
        MoeBlock(batch=1, seq=64, hidden=32, inner=64, experts=8, k=k)


def test_an_imbalance_below_even_is_refused() -> None:
    with pytest.raises(InputError, match="at least 1"):
        busiest_expert_bytes(PUBLISHED, 0.5)
