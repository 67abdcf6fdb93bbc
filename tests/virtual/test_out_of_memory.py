"""A card just too small raises torch's own error on the line that needs the peak; one just large enough does not."""

from __future__ import annotations

import traceback
from dataclasses import replace

import pytest
import torch

from vramcast.catalog.gpus import Gpu, find_gpu
from vramcast.ledger import Category
from vramcast.units import MiB
from vramcast.virtual import VirtualGpu

CARDS = ("t4", "rtx3060", "rtx4090", "a100-80gb", "h100")


def step() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4))).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    hidden = torch.randn(4096, 1024, device="cuda")
    for layer in model:
        hidden = torch.relu(layer(hidden))
    loss = hidden.square().mean()
    loss.backward()
    optimizer.step()


def with_total(card: Gpu, total_bytes: int) -> Gpu:
    return replace(card, total_bytes=total_bytes)


def line_of(error: BaseException) -> int:
    return next(f.lineno or 0 for f in reversed(traceback.extract_tb(error.__traceback__)) if f.filename == __file__)


def needed_bytes(card: Gpu) -> int:
    with VirtualGpu(card) as gpu:
        step()
    return gpu.ledger().peak("cuda:0").process_bytes


@pytest.mark.parametrize("name", CARDS)
def test_just_below_the_peak_fails_and_just_above_does_not(name: str) -> None:
    card = find_gpu(name)
    needed = needed_bytes(card)
    with VirtualGpu(with_total(card, needed)) as gpu:
        step()
    assert gpu.out_of_memory is None
    smallest = smallest_that_fits(card, needed)
    gpu = VirtualGpu(with_total(card, smallest - 1))
    with pytest.raises(torch.OutOfMemoryError, match=r"CUDA out of memory\. Tried to allocate") as caught, gpu:
        step()
    assert gpu.out_of_memory is not None
    assert line_of(caught.value) in range(20, 32)
    ledger = gpu.ledger()
    assert ledger.peak("cuda:0").process_bytes > smallest - 1
    assert any(entry.category == Category.WEIGHTS for entry in ledger.alive(gpu.out_of_memory.phase, "cuda:0"))


def smallest_that_fits(card: Gpu, enough: int) -> int:
    """By halving: at capacity the allocator gives its cache back and tries again, so less than the peak may do."""
    low, high = 0, enough
    while high - low > 1:
        middle = (low + high) // 2
        try:
            with VirtualGpu(with_total(card, middle)):
                step()
            high = middle
        except torch.OutOfMemoryError:
            low = middle
    return high


def test_the_line_moves_with_the_size_of_the_card() -> None:
    """Load, forward, backward and step each run out on cards of the right size, in that order."""
    card = find_gpu("rtx4090")
    lines = []
    for total in range(400 * MiB, 900 * MiB, 10 * MiB):
        try:
            with VirtualGpu(with_total(card, total)):
                step()
        except torch.OutOfMemoryError as error:
            lines.append(line_of(error))
    assert lines == sorted(lines)
    assert len(set(lines)) >= 3


def test_a_script_may_catch_the_error_and_go_on() -> None:
    with VirtualGpu(with_total(find_gpu("rtx4090"), 1024 * MiB)) as gpu:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(1 << 31, dtype=torch.uint8, device="cuda")
        torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_stats()["num_ooms"] == 1
    assert gpu.ledger().peak("cuda:0").process_bytes < 1024 * MiB
