"""In which order CUDA's kernels ask for memory: the allocator's answer depends on it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import embedding, scaled_dot_product_attention

from vramcast.units import KiB, MiB
from vramcast.virtual import virtual_gpu

Births = list[int]


def births(run: Callable[[], object], *, backward: bool = False) -> Births:
    """Bytes of every block asked for on the card, while forward or backward runs."""
    with virtual_gpu("rtx3060") as gpu:
        memory, seen = gpu.memory_at("cuda:0"), Births()
        true_malloc = memory.allocator.malloc

        def malloc(nbytes: int, *args: object) -> object:
            seen.append(nbytes)
            return true_malloc(nbytes, *args)

        memory.allocator.malloc = malloc
        result = run()
        if backward:
            seen.clear()
            result.sum().backward()
        return list(seen)


def test_dropout_makes_its_mask_first() -> None:
    seen = births(lambda: torch.dropout(torch.empty(3 * MiB, device="cuda"), 0.1, True))
    assert seen == [12 * MiB, 3 * MiB, 12 * MiB]


WORKSPACE = (2 * 4096 + 8 * 16) * KiB


@pytest.mark.parametrize(
    ("setting", "workspaces"),
    [
        ("", [WORKSPACE]),
        (":4096:8", [32 * MiB]),
        (":16:8:4096:2", [WORKSPACE]),
        (":0:0", []),
        ("none", [WORKSPACE]),
    ],
)
def test_a_cublas_workspace_follows_the_first_product(
    setting: str, workspaces: Births, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", setting)
    square = 4 * 1024**2

    def products() -> torch.Tensor:
        x = torch.empty(1024, 1024, device="cuda")
        return x @ x @ x

    assert births(products) == [square, square, *workspaces, square]


def test_an_embedding_sums_its_parts_beside_the_gradient() -> None:
    count, rows, width = 4096, 8192, 1024
    weight: list[torch.Tensor] = []

    def lookup() -> torch.Tensor:
        weight.append(torch.empty(rows, width, device="cuda", requires_grad=True))
        return embedding(torch.zeros(count, dtype=torch.int64, device="cuda"), weight[0])

    large = [nbytes for nbytes in births(lookup, backward=True) if nbytes > 4 * MiB]
    gradient, sums = 4 * rows * width, 4 * (count // 10 + count) * width
    assert large == [4 * count * width, gradient, sums]


def test_fp32_attention_multiplies_gradient_and_output_in_backward() -> None:
    shape, whole = (2, 8, 512, 64), 4 * 2 * 8 * 512 * 64

    def attend() -> torch.Tensor:
        query, key, value = (
            torch.empty(shape, device="cuda", requires_grad=True) for _ in range(3)
        )
        return scaled_dot_product_attention(query, key, value)

    sum_bytes, seed_bytes, *seen = births(attend, backward=True)
    assert sum_bytes == seed_bytes == 4
    expanded = [whole]  # the gradient of a sum is one number
    gradients, row_sums = [whole] * 3, [whole // 64] * 2
    laid_out_as_the_leaves = [whole] * 3
    assert seen == [*expanded, *gradients, whole, *row_sums, *laid_out_as_the_leaves]
