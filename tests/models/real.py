"""Real torch as the judge: build one transformers layer, run it on the CPU, add up what autograd saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def saved_bytes(module: torch.nn.Module, run: Callable[[], Any], outside: tuple[torch.Tensor, ...] = ()) -> int:
    """Bytes of distinct storages saved for backward while `run` runs, without parameters (and their autocast copies,
    told by shape) and without the tensors that exist anyway."""
    known = {tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), *module.buffers(), *outside)}
    weights = {tuple(p.shape) for p in module.parameters()} | {tuple(p.shape[::-1]) for p in module.parameters()}
    found: dict[int, int] = {}
    alive = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        copy = tuple(tensor.shape) in weights and tensor.dtype == torch.bfloat16
        if storage.data_ptr() not in known and not copy:
            found[storage.data_ptr()] = storage.nbytes()
        alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        alive.append(run())
    return sum(found.values())
