"""A real training step on the CPU with every storage counted: the judge of whole-step peaks."""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from typing import Any

import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Live(TorchDispatchMode):
    """Bytes of storages that ops made and that are still alive, and their peak."""

    def __init__(self, *known: torch.Tensor) -> None:
        """`known` tensors exist already and are not counted."""
        super().__init__()
        self.now = self.peak = 0
        self._seen = {tensor.untyped_storage()._cdata for tensor in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.count(leaf)
        return result

    def count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._seen:
            self._seen.add(key)
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._gone, key, storage.nbytes())

    def _gone(self, key: int, nbytes: int) -> None:
        self._seen.discard(key)
        self.now -= nbytes

    def restart(self) -> None:
        self.peak = self.now


def real_step(
    data: dict[str, Any],
    *,
    precision: str,
    attention: str,
    batch: int,
    seq: int,
    checkpointing: bool,
) -> dict[str, int]:
    """Peaks above the weights in forward and loss, in backward, and of two AdamW steps, of a real model."""
    config = transformers.AutoConfig.for_model(**data)
    config.use_cache = False
    dtype = torch.bfloat16 if precision == "bf16-true" else torch.float32
    model_class = getattr(transformers, data["architectures"][0])
    model = model_class._from_config(config, dtype=dtype, attn_implementation=attention).train()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    ids = torch.randint(0, config.vocab_size, (batch, seq))
    autocast = torch.autocast("cpu", torch.bfloat16) if precision == "bf16-mixed" else nullcontext()
    live = Live(ids, *model.parameters(), *model.buffers())
    with live:
        with autocast:
            outputs = model(input_ids=ids, labels=ids)
        forward = live.peak
        live.restart()
        outputs.loss.backward()
        return {"forward": forward, "backward": live.peak}
