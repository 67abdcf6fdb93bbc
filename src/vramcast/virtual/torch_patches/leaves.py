"""Tensors that take part in gradients carry no values: gradients are never known, and autograd wants a tensor and its
gradient to be on one device.

In come parameters, tensors that begin to require a gradient, and gradients of a script's own functions; out come the
same Python objects as meta tensors. A parameter is a meta tensor from the start, so moving it replaces its data and
keeps its identity, which optimizers and tied weights rely on. Does not know tensors of other classes: they are left
alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._C import _functorch as wrappers
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from vramcast.patches import Patches
from vramcast.virtual.accounting.storages import is_meta, meta_twin
from vramcast.virtual.state import GpuState

_TensorBase = torch._C.TensorBase
_OWN_KINDS = (
    torch.Tensor,
    torch.nn.Parameter,
    torch.nn.UninitializedParameter,
    torch.nn.UninitializedBuffer,
)
FACTORIES = (  # that take requires_grad
    "zeros",
    "ones",
    "rand",
    "randn",
    "empty",
    "full",
    "randint",
    "arange",
    "linspace",
    "normal",
)


def install(gpu: GpuState, patches: Patches) -> None:
    _install_parameters(gpu, patches)
    _install_leaves(gpu, patches)
    _install_data(gpu, patches)
    _install_functions(gpu, patches)


def _install_parameters(gpu: GpuState, patches: Patches) -> None:
    true_new = torch.nn.Parameter.__new__

    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if type(data) in (torch.Tensor, torch.nn.Parameter):
            drop_values(gpu, data)
        return true_new(cls, data, requires_grad)

    patches.set(torch.nn.Parameter, "__new__", staticmethod(new))


def without_values(gpu: GpuState, tensor: torch.Tensor) -> torch.Tensor:
    """A meta tensor for the same bytes. It takes over the record; if others share the storage, both have one record."""
    if gpu.storages.find(tensor) is None:
        gpu.adopt(tensor)
    with torch._C._DisableTorchDispatch():
        twin = meta_twin(tensor)
    if gpu.storages.is_shared(tensor):
        gpu.storages.share(tensor, twin)
    else:
        gpu.storages.hand_over(tensor, twin)
    return twin


def _install_leaves(gpu: GpuState, patches: Patches) -> None:
    """A tensor that begins to require a gradient drops its values."""
    true_requires, true_property = torch.Tensor.requires_grad_, _TensorBase.requires_grad

    def requires_grad_(tensor: torch.Tensor, requires_grad: bool = True) -> torch.Tensor:
        if requires_grad and not tensor.requires_grad and not gpu.mode.busy:
            drop_values(gpu, tensor)
        return true_requires(tensor, requires_grad)

    def set_requires_grad(tensor: torch.Tensor, value: bool) -> None:
        tensor.requires_grad_(value)

    def set_grad(tensor: torch.Tensor, value: Any) -> None:
        true_grad.__set__(tensor, given_gradient(gpu, value) if is_meta(tensor) else value)

    true_grad = _TensorBase.grad
    patches.set(torch.Tensor, "grad", property(true_grad.__get__, set_grad, true_grad.__delete__))
    patches.set(torch.Tensor, "requires_grad_", requires_grad_)
    patches.set(torch.Tensor, "requires_grad", property(true_property.__get__, set_requires_grad))
    for name in FACTORIES:
        patches.set(torch, name, _with_requires_grad(getattr(torch, name)))


def _install_data(gpu: GpuState, patches: Patches) -> None:
    """`parameter.data = torch.zeros(n)`: torch wants both on one device, so the one with values drops them."""
    true_property = _TensorBase.data

    def set_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
        is_dense = value.layout == torch.strided
        if not gpu.mode.busy and is_dense and is_meta(tensor) != is_meta(value):
            drop_values(gpu, tensor)
            drop_values(gpu, value)
        true_property.__set__(tensor, value)

    patches.set(torch.Tensor, "data", property(true_property.__get__, set_data))


def _with_requires_grad(factory: Any) -> Any:
    """`torch.zeros(3, requires_grad=True)`: first made, then asked for a gradient."""

    def make(*args: Any, **kwargs: Any) -> Any:
        requires_grad = kwargs.pop("requires_grad", False)
        made = factory(*args, **kwargs)
        return made.requires_grad_() if requires_grad else made

    return make


def drop_values(gpu: GpuState, tensor: torch.Tensor) -> None:
    """Make a tensor a meta tensor, the Python object staying the same."""
    if type(tensor) not in _OWN_KINDS or is_meta(tensor) or tensor.layout != torch.strided:
        return
    with torch._C.DisableTorchFunctionSubclass():  # a lazy layer's parameter forbids to look at it
        twin = _without_values_inside(gpu, tensor)
        if tensor.requires_grad:
            twin = twin.requires_grad_()
        torch._C._swap_tensor_impl(tensor, twin)


def given_gradient(gpu: GpuState, gradient: Any) -> Any:
    """What a script hands to backward: autograd wants it on the output's true device, which has no values."""
    if isinstance(gradient, torch.Tensor) and wrappers.is_functorch_wrapped_tensor(gradient):
        return gradient if is_meta(gradient) else _without_values_inside(gpu, gradient)
    return gpu.without_values(gradient)


def _without_values_inside(gpu: GpuState, tensor: torch.Tensor) -> torch.Tensor:
    """Transforms of torch.func wrap a tensor: the innermost one drops its values, and is wrapped like before."""
    if not wrappers.is_functorch_wrapped_tensor(tensor):
        return without_values(gpu, tensor)
    inner = wrappers.get_unwrapped(tensor)
    with temporarily_clear_interpreter_stack():  # or what is made here would be wrapped too
        drop_values(gpu, inner)
    level = wrappers.maybe_get_level(tensor)
    if wrappers.is_batchedtensor(tensor):
        return wrappers._add_batch_dim(inner, wrappers.maybe_get_bdim(tensor), level)
    return wrappers._wrap_for_grad(inner, level)


def _install_functions(gpu: GpuState, patches: Patches) -> None:
    """Gradients with known values from a script's own backward drop them where autograd expects none."""
    owner = torch.autograd.function.BackwardCFunction

    def dropping_values(apply: Any) -> Any:
        def call(node: Any, *args: Any) -> Any:
            given = apply(node, *args)
            gradients = given if isinstance(given, tuple) else (given,)
            edges = iter([edge for edge in node.next_functions if edge[0] is not None])
            for gradient, needed in zip(gradients, node.needs_input_grad, strict=False):
                if not needed:
                    continue
                expects_no_values = _expects_no_values(*next(edges))
                if expects_no_values and gradient is not None:
                    drop_values(gpu, gradient)
            return given

        return call

    for name in ("apply", "apply_boxed"):
        if hasattr(owner, name):
            patches.set(owner, name, dropping_values(getattr(owner, name)))


def _expects_no_values(node: Any, index: int) -> bool:
    return bool(node._input_metadata[index].device.type == "meta")
