"""Small tensors with known values that are written into: `torch.zeros(n).index_add_(0, index, activations)`.

In come calls of in-place methods. What is written carries a gradient and is unknown, so the whole tensor is unknown
from then on: it drops its values before the call, because autograd must not see a tensor change from real to meta.
Does not know writes through other ways, such as `out=`.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch

from vramcast.ledger import Category
from vramcast.patches import Patches
from vramcast.virtual.accounting.storages import is_meta, storage_of
from vramcast.virtual.kernels.op_schemas import tensors_in
from vramcast.virtual.state import GpuState
from vramcast.virtual.torch_patches.leaves import without_values

METHODS = (
    "__iadd__",
    "__imul__",
    "__isub__",
    "__itruediv__",
    "__setitem__",
    "add_",
    "addcdiv_",
    "addcmul_",
    "addmm_",
    "copy_",
    "div_",
    "index_add_",
    "index_copy_",
    "index_fill_",
    "index_put_",
    "index_reduce_",
    "lerp_",
    "masked_fill_",
    "masked_scatter_",
    "mul_",
    "scatter_",
    "scatter_add_",
    "scatter_reduce_",
    "sub_",
)


def install(gpu: GpuState, patches: Patches) -> None:
    for name in METHODS:
        patches.set(torch.Tensor, name, _dropping_values(gpu, getattr(torch.Tensor, name)))


def _dropping_values(gpu: GpuState, method: Any) -> Any:
    @wraps(method)
    def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not is_meta(tensor) and not gpu.mode.busy and _takes_a_gradient(tensor, args, kwargs):
            make_unknown(gpu, tensor)
        if gpu.phases.awaits_step and not gpu.mode.busy and _is_weight(gpu, tensor):
            gpu.phases.note_written_weight()
        return method(tensor, *args, **kwargs)

    return call


def _is_weight(gpu: GpuState, tensor: torch.Tensor) -> bool:
    if type(tensor) is torch.nn.Parameter:
        return bool(tensor.requires_grad)
    if not is_meta(tensor) or type(tensor) is not torch.Tensor:
        return False
    record = gpu.storages.find(tensor)
    return record is not None and record.category == Category.WEIGHTS


def _takes_a_gradient(tensor: torch.Tensor, args: Any, kwargs: Any) -> bool:
    """Whether a tensor without a gradient is about to get one from what is written."""
    if type(tensor) is not torch.Tensor or tensor.requires_grad or not torch.is_grad_enabled():
        return False
    if tensor.layout != torch.strided:
        return False
    return any(source.requires_grad and is_meta(source) for source in tensors_in(args, kwargs))


def make_unknown(gpu: GpuState, tensor: torch.Tensor) -> None:
    """Drop the values of a tensor and of the one it is a view of; nothing happens if others share the memory."""
    base = tensor._base if tensor._is_view() else None
    owner = tensor if base is None else base
    fills_storage = owner.numel() * owner.element_size() == storage_of(owner).nbytes()
    if not fills_storage or type(owner) is not torch.Tensor:
        return
    size, stride, offset = tensor.size(), tensor.stride(), tensor.storage_offset()
    torch._C._swap_tensor_impl(owner, without_values(gpu, owner))
    if base is not None:
        torch._C._swap_tensor_impl(tensor, base.as_strided(size, stride, offset))
