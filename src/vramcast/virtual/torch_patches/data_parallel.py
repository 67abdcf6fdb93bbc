"""`nn.DataParallel` over virtual cards: scatter, replicate, apply, gather, one replica after the other.

In come torch's own calls for these four, out come copies on each card. Real replicas run in threads; a dispatch mode
works in one thread only, and what is allocated does not depend on which replica runs first.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from vramcast.patches import Patches


def install(patches: Patches) -> None:
    patches.set(torch._C, "_scatter", scatter)
    patches.set(torch._C, "_gather", gather)
    patches.set(torch._C, "_broadcast", broadcast)
    patches.set(torch._C, "_broadcast_coalesced", broadcast_coalesced)
    for name in (
        "torch.nn.parallel",
        "torch.nn.parallel.data_parallel",
        "torch.nn.parallel.parallel_apply",
    ):
        patches.set(sys.modules[name], "parallel_apply", apply_in_turn)


def scatter(
    tensor: torch.Tensor, devices: Sequence[int], sizes: Any, dim: int, streams: Any
) -> list[torch.Tensor]:
    chunks = tensor.chunk(len(devices), dim) if sizes is None else tensor.split(sizes, dim)
    return [
        chunk.to(torch.device("cuda", index)) for chunk, index in zip(chunks, devices, strict=False)
    ]


def gather(tensors: Sequence[torch.Tensor], dim: int, destination: int | None) -> torch.Tensor:
    device = torch.device("cpu") if destination == -1 else torch.device("cuda", destination or 0)
    return torch.cat([tensor.to(device) for tensor in tensors], dim)


def broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
    return [tensor.to(torch.device("cuda", index)) for index in devices]


def broadcast_coalesced(
    tensors: Sequence[torch.Tensor], devices: Sequence[int], buffer_bytes: int
) -> list[list[torch.Tensor]]:
    return [[tensor.to(torch.device("cuda", index)) for tensor in tensors] for index in devices]


def apply_in_turn(
    modules: Any, inputs: Any, kwargs_tup: Any = None, devices: Any = None
) -> list[Any]:
    keywords = kwargs_tup or [{}] * len(modules)
    places = devices or range(len(modules))
    outputs = []
    for module, given, options, place in zip(modules, inputs, keywords, places, strict=True):
        args = given if isinstance(given, (list, tuple)) else (given,)
        with torch.cuda.device(place):
            outputs.append(module(*args, **(options or {})))
    return outputs
