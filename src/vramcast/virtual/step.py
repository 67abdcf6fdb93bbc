"""One training step of a model that already exists, on a virtual copy of it; the model itself is not touched."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from vramcast.virtual.gpu import VirtualGpu, virtual_gpu


def trace_step(
    model: torch.nn.Module,
    step: Callable[[torch.nn.Module], Any],
    *,
    gpu: str = "a100-80gb",
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = torch.optim.AdamW,
    steps: int = 2,
) -> VirtualGpu:
    """Run `step(copy_of_model)` on a virtual card. A loss it returns is propagated back, then the optimizer steps.

    `step` makes its inputs on `cuda`. Without an optimizer it does everything itself. The answer has `ledger()` and
    `timeline()`.
    """
    with virtual_gpu(gpu) as traced:
        twin = virtual_copy(traced, model)
        stepper = (
            optimizer([p for p in twin.parameters() if p.requires_grad])
            if optimizer is not None
            else None
        )
        for _ in range(steps):
            loss = step(twin)
            if isinstance(loss, torch.Tensor) and loss.requires_grad:
                loss.backward()
            del loss
            if stepper is not None:
                stepper.step()
                stepper.zero_grad()
    return traced


def virtual_copy(gpu: VirtualGpu, model: torch.nn.Module) -> torch.nn.Module:
    """The same modules with their parameters and buffers on the first virtual card; ties are kept."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        data = torch.empty(
            parameter.shape, dtype=parameter.dtype, device=gpu.devices[gpu.places[0]]
        )
        memo[id(parameter)] = torch.nn.Parameter(data, requires_grad=parameter.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = buffer.detach().to(gpu.devices[gpu.places[0]])
    return copy.deepcopy(model, memo)
