"""A card just too small raises torch's own error on the line that needs the peak; one just large enough does not."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

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


def convolutional() -> None:
    layers = [
        nn.Conv2d(3, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    ]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 32 * 32, 256)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        loss = model(torch.randn(32, 3, 64, 64, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def recurrent() -> None:
    model = nn.LSTM(256, 512, num_layers=2, batch_first=True).cuda()
    head = nn.Linear(512, 5000).cuda()
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()])
    for _ in range(2):
        hidden, _ = model(torch.randn(16, 128, 256, device="cuda"))
        loss = nn.functional.cross_entropy(
            head(hidden).flatten(0, 1), torch.zeros(16 * 128).long().cuda()
        )
        loss.backward()
        optimizer.step()


def checkpointed() -> None:
    layers = nn.ModuleList(
        nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True) for _ in range(4)
    ).cuda()
    optimizer = torch.optim.AdamW(layers.parameters(), fused=True)
    with torch.autocast("cuda", torch.bfloat16):
        hidden = torch.randn(16, 256, 256, device="cuda")
        for layer in layers:
            hidden = checkpoint(layer, hidden, use_reentrant=False)
    hidden.float().square().mean().backward()
    optimizer.step()


SCRIPTS = (step, convolutional, recurrent, checkpointed)


def with_total(card: Gpu, total_bytes: int) -> Gpu:
    return replace(card, total_bytes=total_bytes)


def line_of(error: BaseException) -> int:
    return next(
        f.lineno or 0
        for f in reversed(traceback.extract_tb(error.__traceback__))
        if f.filename == __file__
    )


def needed_bytes(card: Gpu, script: Callable[[], None]) -> int:
    with VirtualGpu(card) as gpu:
        script()
    return gpu.ledger().peak("cuda:0").process_bytes


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
@pytest.mark.parametrize("name", CARDS)
def test_just_below_the_peak_fails_and_just_above_does_not(
    name: str, script: Callable[[], None]
) -> None:
    card = find_gpu(name)
    needed = needed_bytes(card, script)
    for total in (needed, needed + MiB, 2 * needed):
        with VirtualGpu(with_total(card, total)) as gpu:
            script()
        assert gpu.out_of_memory is None
    smallest = smallest_that_fits(card, needed, script)
    lines = {out_of_memory_line(card, smallest - short, script) for short in (1, 512, 4096)}
    assert len(lines) == 1, "cards just too small run out on the same line"


def out_of_memory_line(card: Gpu, total: int, script: Callable[[], None]) -> int:
    gpu = VirtualGpu(with_total(card, total))
    with (
        pytest.raises(
            torch.OutOfMemoryError, match=r"CUDA out of memory\. Tried to allocate"
        ) as caught,
        gpu,
    ):
        script()
    assert gpu.out_of_memory is not None
    ledger = gpu.ledger()
    assert ledger.peak("cuda:0").process_bytes > total
    assert any(
        entry.category == Category.WEIGHTS
        for entry in ledger.alive(gpu.out_of_memory.phase, "cuda:0")
    )
    line = line_of(caught.value)
    source, first = inspect.getsourcelines(script)
    assert line in range(first, first + len(source))
    return line


def smallest_that_fits(card: Gpu, enough: int, script: Callable[[], None]) -> int:
    """By halving: at capacity the allocator gives its cache back and tries again, so less than the peak may do.

    In whole MiB: segments and the assumed context are.
    """
    low, high = 0, -(-enough // MiB) * MiB
    while high - low > MiB:
        middle = (low + high) // 2 // MiB * MiB
        try:
            with VirtualGpu(with_total(card, middle)):
                script()
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
