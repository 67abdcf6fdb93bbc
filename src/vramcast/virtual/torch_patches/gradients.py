"""Gradients that torch writes into a tensor of zeros on a card, and copies if a tensor has no data.

torch's formulas for indexing, gather, max and their like (FunctionsManual.cpp) make zeros and then write into them;
where a tensor may be a subclass, which includes every meta tensor, they take the out-of-place twin of the op. In
comes that twin, out comes the zeros' own storage, as on a card. Knows those ops only where torch's engine itself
calls them: in a backward written in Python they are what they say.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from vramcast.virtual.accounting.storages import is_meta
from vramcast.virtual.kernels.dispatch_mode import is_between
from vramcast.virtual.state import GpuState

aten = torch.ops.aten
IN_PLACE = {
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
    aten.index_put.default: aten.index_put_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.masked_scatter.default: aten.masked_scatter_.default,
    aten.put.default: aten.put_.default,
}
ENGINE = "_engine_run_backward"  # torch/autograd/graph.py: the last Python frame before the engine


def install(gpu: GpuState) -> None:
    for op, in_place in IN_PLACE.items():
        gpu.mode.specials[op] = _in_place(gpu, in_place)


def _in_place(gpu: GpuState, in_place: Any) -> Any:
    def write(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if not is_meta(args[0]) or torch.is_grad_enabled() or not _is_called_by_engine():
            return NotImplemented
        gpu.mode.dispatch(in_place, args, kwargs)
        return args[0].detach()

    return write


def _is_called_by_engine() -> bool:
    frame = sys._getframe(1)
    while frame.f_back is not None and is_between(frame):
        frame = frame.f_back
    return frame.f_code.co_name == ENGINE
