"""Counts the bytes of real storages while a block runs, per logical device, and refuses to mix devices.

On a machine with one CPU, "cpu:1" and "cpu:2" stand for two GPUs: torch really copies between them, but then forgets
which was which. This mode remembers, for every storage, and raises where a real two-GPU run would.
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

TRANSFERS = ("aten._to_copy.default", "aten.copy_.default")


def inside_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


class LiveBytes(TorchDispatchMode):
    def __init__(self, *modules: nn.Module, may_mix: bool = False) -> None:
        super().__init__()
        self.may_mix = may_mix
        self.live: Counter[str] = Counter()
        self.peaks: Counter[str] = Counter()
        self.ops: Counter[str] = Counter()
        self._device_of: dict[int, str | None] = {}
        self._backward: set[int] = set()
        for module in modules:
            for tensor in (*module.parameters(), *module.buffers()):
                self._born(tensor, "cpu")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.ops[str(func)] += 1
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        device = self._device(str(func), inputs, kwargs)
        result = func(*args, **kwargs)
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._born(leaf, device)
        return result

    def __enter__(self) -> LiveBytes:
        super().__enter__()
        return self

    def total(self) -> int:
        return sum(self.live.values())

    def reset(self, device: torch.device | None = None) -> None:
        for name in list(self.live) if device is None else [str(device)]:
            self.peaks[name] = self.live[name]

    def peak(self, device: torch.device) -> tuple[int, int]:
        """As a monitor's counter. Nothing is cached here, so reserved is allocated."""
        return self.peaks[str(device)], self.peaks[str(device)]

    def _device(self, func: str, inputs: list[Tensor], kwargs: dict[str, Any]) -> str | None:
        explicit = kwargs.get("device")
        if explicit is not None and explicit.index is not None:
            return str(explicit)
        tagged = {
            self._key(tensor): self._device_of.get(self._key(tensor))
            for tensor in inputs
            if tensor.dim() > 0
        }
        known = {device for device in tagged.values() if device is not None}
        if len(known) > 1 and inside_backward():
            # Autograd moves gradients by tensor.device, which has lost the index. The operation runs where the
            # tensors that the forward saved are.
            known = {
                device for key, device in tagged.items() if device and key not in self._backward
            } or known
        if len(known) > 1 and func not in TRANSFERS and not (self.may_mix or inside_backward()):
            raise AssertionError(f"{func} mixes {sorted(known)}")
        return min(known, default=None)

    def _key(self, tensor: Tensor) -> int:
        return tensor.untyped_storage()._cdata

    def _born(self, tensor: Tensor, device: str | None) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._device_of:
            return
        place = device or "cpu"
        self._device_of[key] = device
        if inside_backward():
            self._backward.add(key)
        self.live[place] += storage.nbytes()
        self.peaks[place] = max(self.peaks[place], self.live[place])
        weakref.finalize(storage, self._died, key, place, storage.nbytes())

    def _died(self, key: int, place: str, nbytes: int) -> None:
        self._device_of.pop(key, None)
        self._backward.discard(key)
        self.live[place] -= nbytes
