"""Gradients that torch writes into a tensor of zeros, and of tensors without data copies instead.

Its formulas for indexing, gather, max and their like (FunctionsManual.cpp) make zeros and then write into them; where a
tensor may be a subclass, which includes every meta tensor, they take the out-of-place twin of the op. On a card nothing
is copied. Knows those ops only where torch's engine itself calls them: in a backward written in Python they are what
they say.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from vramcast.virtual.accounting.storages import is_meta
from vramcast.virtual.kernels.dispatch_mode import between

if TYPE_CHECKING:
    from vramcast.virtual.gpu import VirtualGpu

aten = torch.ops.aten
IN_PLACE = {
    aten.scatter_add.default: aten.scatter_add_.default, aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value, aten.index_put.default: aten.index_put_.default,
    aten.index_add.default: aten.index_add_.default, aten.masked_scatter.default: aten.masked_scatter_.default,
    aten.put.default: aten.put_.default,
}  # fmt: skip
ENGINE = "_engine_run_backward"  # torch/autograd/graph.py: the last Python frame before the engine


def install(gpu: VirtualGpu) -> None:
    for op, in_place in IN_PLACE.items():
        gpu.mode.specials[op] = _written(gpu, in_place)


def _written(gpu: VirtualGpu, in_place: Any) -> Any:
    def write(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if not is_meta(args[0]) or torch.is_grad_enabled() or not _called_by_the_engine():
            return NotImplemented
        gpu.mode.dispatch(in_place, args, kwargs)
        return args[0].detach()

    return write


def _called_by_the_engine() -> bool:
    frame = sys._getframe(1)
    while frame.f_back is not None and between(frame):
        frame = frame.f_back
    return frame.f_code.co_name == ENGINE
