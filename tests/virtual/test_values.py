"""Tensors with known values beside tensors without: which bytes they are, and where what comes of them lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vramcast.units import MiB
from vramcast.virtual import virtual_gpu

CARD = torch.device("cuda", 0)


def test_a_view_that_wants_a_gradient_leaves_its_base_where_it_is() -> None:
    with virtual_gpu("rtx4090"):
        waves = torch.randn(2, 8000, device="cuda")
        before = torch.cuda.memory_allocated()
        view = waves[:, None]
        view.requires_grad = True
        assert torch.cuda.memory_allocated() == before
        nn.Conv1d(1, 4, 3).cuda()(view).sum().backward()
        assert waves.device == view.device == (waves * 2).device == CARD


def test_a_parameter_shares_the_bytes_of_its_tensor() -> None:
    with virtual_gpu("rtx4090"):
        table = torch.randn(64, 64, device="cuda")
        flat = torch.zeros(1024, device="cuda")
        before = torch.cuda.memory_allocated()
        parameter = nn.Parameter(table)
        halves = [nn.Parameter(half.view(16, 32)) for half in flat.split(512)]
        assert torch.cuda.memory_allocated() == before
        assert (table + 1).device == CARD
        del table, flat
        assert torch.cuda.memory_allocated() == before, "parameters keep them"
        del parameter, halves
        assert torch.cuda.memory_allocated() == before - 64 * 64 * 4 - 1024 * 4


def unknown(*size: int) -> torch.Tensor:
    return (
        nn.Linear(2, 2).cuda().weight.detach().new_empty(*size).normal_()
        @ torch.ones(size[-1], size[-1]).cuda()
    )


@pytest.mark.parametrize(
    "mixed",
    [
        lambda: torch.take_along_dim(
            unknown(4, 4), torch.zeros(4, 2, dtype=torch.long, device="cuda"), 1
        ),
        lambda: torch.inner(unknown(4, 4), torch.ones(4, device="cuda")),
        lambda: torch.stft(
            unknown(2, 64), 16, window=torch.hann_window(16, device="cuda"), return_complex=True
        ),
        lambda: torch.linalg.multi_dot(
            [torch.ones(4, 4, device="cuda"), unknown(4, 4), unknown(4, 4)]
        ),
        lambda: torch.meshgrid(unknown(4, 4)[0], torch.arange(3.0, device="cuda"), indexing="ij")[
            1
        ],
        lambda: torch.arange(4, device="cuda").type_as(unknown(4, 4)),
        lambda: unknown(4, 4).type_as(torch.arange(4, device="cuda")),
        lambda: F.rms_norm(torch.ones(2, 4, device="cuda"), (4,), unknown(4, 4)[0]),
    ],
    ids=[
        "take_along_dim",
        "inner",
        "stft",
        "multi_dot",
        "meshgrid",
        "known as unknown",
        "unknown as known",
        "rms_norm",
    ],
)
def test_known_and_unknown_tensors_of_one_card_mix(mixed: Callable[[], Any]) -> None:
    with virtual_gpu("rtx4090"):
        assert mixed().device == CARD


def test_what_a_composite_makes_on_its_way_lies_on_the_card() -> None:
    with virtual_gpu("rtx4090"):
        query = torch.randn(2, 4, 16, 8, device="cuda")
        assert F.scaled_dot_product_attention(query, query, query, is_causal=True).device == CARD
        assert (
            torch.quantile(torch.rand(100, device="cuda"), 0.5, interpolation="lower").device
            == CARD
        )


def test_rms_norm_keeps_its_input_and_one_number_per_row() -> None:
    with virtual_gpu("rtx4090"):
        norm = nn.RMSNorm(1024).cuda().bfloat16()
        x = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        before = torch.cuda.memory_allocated()
        out = norm(x)
        assert torch.cuda.memory_allocated() - before == 2 * MiB + 1024 * 4
        out.sum().backward()
        assert norm.weight.grad is not None
        (slope,) = torch.autograd.grad(norm(x).sum(), x, create_graph=True)
        slope.square().sum().backward()
        del slope
        before = torch.cuda.memory_allocated()
        wide = nn.RMSNorm(1024).cuda()(x)  # CUDA does not fuse it where dtypes differ
        assert torch.cuda.memory_allocated() - before > 8 * MiB, wide.dtype


def test_a_lazy_layer_is_made_where_it_was_moved() -> None:
    with virtual_gpu("rtx4090"):
        model = nn.Sequential(nn.LazyLinear(256), nn.ReLU(), nn.LazyLinear(10)).cuda()
        model(torch.randn(4, 64, device="cuda")).sum().backward()
        assert {weight.device for weight in model.parameters()} == {CARD}
        assert model[0].weight.shape == (256, 64)
        assert model[0].weight.grad is not None


def test_a_broadcast_mask_counts_what_it_selects() -> None:
    with virtual_gpu("rtx4090"):
        mask = torch.tensor([True, False, True], device="cuda")
        assert torch.masked_select(unknown(5, 3), mask).shape == (10,)


def test_a_router_that_picks_one_expert_loads_all_alike() -> None:
    with virtual_gpu("rtx4090"):
        router, tokens = nn.Linear(64, 8).cuda(), torch.randn(4096, 64, device="cuda")
        weight, expert = router(tokens).softmax(-1).max(-1)
        assert [int((expert == index).sum()) for index in range(8)] == [512] * 8
        assert tokens[router(tokens).argmax(-1) == 3].shape == (512, 64)
        weight.sum().backward()
        words = nn.Linear(64, 1000).cuda()(tokens[:4]).argmax(-1)
        assert torch.masked_select(words, words == 2).shape == (4,), (
            "a few rows are no router: nothing is dealt out"
        )


def test_an_encoder_evaluates_padded_batches() -> None:
    with virtual_gpu("rtx4090") as gpu, torch.no_grad():
        encoder = (
            nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2)
            .cuda()
            .eval()
        )
        padding = torch.zeros(2, 10, dtype=torch.bool, device="cuda")
        padding[:, 7:] = True
        assert encoder(
            torch.randn(2, 10, 32, device="cuda"), src_key_padding_mask=padding
        ).shape == (2, 10, 32)
        assert any("fast path" in note for note in gpu.notes)


def test_arithmetic_of_plain_numbers_has_its_values_every_time() -> None:
    with virtual_gpu("rtx4090"):
        for _ in range(3):
            assert int(torch.div(7, 2, rounding_mode="trunc")) == 3
