"""Sparse tensors on virtual devices: gradients of embeddings, and matrices that gather from neighbours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from vramcast.ledger import Category
from vramcast.units import KiB, MiB
from vramcast.virtual import virtual_gpu


def rows(count: int, width: int) -> int:
    return count * width * 4


def test_a_sparse_gradient_takes_its_rows() -> None:
    with virtual_gpu("rtx4090"):
        table = nn.Embedding(65536, 256, sparse=True).cuda()
        ids = torch.arange(512, device="cuda")
        before = torch.cuda.memory_allocated()
        table(ids).sum().backward()
        grown = torch.cuda.memory_allocated() - before
        assert table.weight.grad is not None
        assert table.weight.grad.is_sparse
        assert table.weight.grad.device == torch.device("cuda", 0)
        assert rows(512, 256) <= grown <= rows(512, 256) + 8 * KiB
        table(ids).sum().backward()
        assert table.weight.grad._values().shape == (1024, 256), "two of them are laid side by side"


@pytest.mark.parametrize(
    ("make", "states"),
    [
        (lambda weights: torch.optim.SparseAdam(weights, lr=1e-3), 2),
        (lambda weights: torch.optim.SGD(weights, lr=1e-3), 0),
        (lambda weights: torch.optim.Adagrad(weights, lr=1e-3), 1),
    ],
    ids=["SparseAdam", "SGD", "Adagrad"],
)
def test_optimizers_of_sparse_gradients(make: Callable[[Any], Any], states: int) -> None:
    with virtual_gpu("rtx4090") as gpu:
        table = nn.Embedding(16384, 256, sparse=True).cuda()
        optimizer = make(table.parameters())
        for _ in range(2):
            table(torch.arange(64, device="cuda")).sum().backward()
            optimizer.step()
            held = torch.cuda.memory_allocated()
            optimizer.zero_grad()
        assert held - (1 + states) * 16 * MiB <= 2 * rows(64, 256)
    gradients = [entry for entry in gpu.ledger().entries if entry.category is Category.GRADIENTS]
    assert sum(entry.nbytes for entry in gradients if "step" in entry.phases) > rows(64, 256)


def test_a_graph_convolution_with_a_sparse_matrix() -> None:
    edges = torch.randint(0, 200, (2, 1000))
    with virtual_gpu("rtx4090"):
        matrix = torch.sparse_coo_tensor(edges, torch.ones(1000), (200, 200)).coalesce().to("cuda")
        assert matrix.is_cuda
        layer = nn.Linear(16, 8).cuda()
        out = torch.spmm(matrix, layer(torch.randn(200, 16, device="cuda")))
        assert out.shape == (200, 8)
        torch.sparse.mm(matrix, out).sum().backward()
        assert layer.weight.grad is not None
        assert int(matrix.to_dense().sum()) == 1000, "what is known stays known"


def test_attention_over_edges() -> None:
    edges = torch.randint(0, 50, (2, 300))
    with virtual_gpu("rtx4090"):
        scores = nn.Linear(4, 1).cuda()(torch.randn(300, 4, device="cuda")).squeeze(1).detach()
        attention = torch.sparse_coo_tensor(edges.cuda(), scores, (50, 50))
        features = torch.randn(50, 8, device="cuda", requires_grad=True)
        (attention @ features).sum().backward()
        assert features.grad is not None
        with pytest.raises(NotImplementedError, match="sparse=False"):
            torch.sparse.softmax(attention, 1)
