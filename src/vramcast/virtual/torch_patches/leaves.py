"""Tensors that take part in gradients carry no values: gradients are never known, and autograd wants both alike.

A parameter is a meta tensor from the start, so moving it replaces its data and keeps its identity, which optimizers and
tied weights rely on. Other tensors give up their values when they begin to want a gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._C import _functorch as wrappers
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from vramcast.virtual.accounting.storages import is_meta
from vramcast.virtual.kernels.dispatch_mode import meta_twin

if TYPE_CHECKING:
    from vramcast.patches import Patches
    from vramcast.virtual.gpu import VirtualGpu

_TensorBase = torch._C.TensorBase
_OWN_KINDS = (torch.Tensor, torch.nn.Parameter, torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer)


def install(gpu: VirtualGpu, patches: Patches) -> None:
    _install_parameters(gpu, patches)
    _install_leaves(gpu, patches)
    _install_data(gpu, patches)
    _install_functions(gpu, patches)


def _install_parameters(gpu: VirtualGpu, patches: Patches) -> None:
    true_new = torch.nn.Parameter.__new__

    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if type(data) in (torch.Tensor, torch.nn.Parameter) and not is_meta(data) and data.layout == torch.strided:
            drop_values(gpu, data)
        return true_new(cls, data, requires_grad)

    patches.set(torch.nn.Parameter, "__new__", staticmethod(new))


def without_values(gpu: VirtualGpu, tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor without data. Its bill is handed over; where others share the storage, both have one bill."""
    if gpu.storages.find(tensor) is None:
        gpu.mode.adopt(tensor)
    with torch._C._DisableTorchDispatch():
        twin = meta_twin(tensor)
    if gpu.storages.is_shared(tensor):
        gpu.storages.share(tensor, twin)
    else:
        gpu.storages.hand_over(tensor, twin)
    return twin


def _install_leaves(gpu: VirtualGpu, patches: Patches) -> None:
    """A tensor that wants a gradient gives up its values: gradients are never known, and autograd wants them alike."""
    true_requires, true_property = torch.Tensor.requires_grad_, _TensorBase.requires_grad

    def requires_grad_(tensor: torch.Tensor, requires_grad: bool = True) -> torch.Tensor:
        if requires_grad and not tensor.requires_grad and not gpu.mode.busy:
            drop_values(gpu, tensor)
        return true_requires(tensor, requires_grad)

    def set_requires_grad(tensor: torch.Tensor, value: bool) -> None:
        tensor.requires_grad_(value)

    patches.set(torch.Tensor, "requires_grad_", requires_grad_)
    patches.set(torch.Tensor, "requires_grad", property(true_property.__get__, set_requires_grad))
    for name in ("zeros", "ones", "rand", "randn", "empty", "full", "randint", "arange", "linspace", "normal"):
        patches.set(torch, name, _wanting_gradient(getattr(torch, name)))


def _install_data(gpu: VirtualGpu, patches: Patches) -> None:
    """`parameter.data = torch.zeros(n)`: torch wants both alike, so whichever has values gives them up."""
    true_property = _TensorBase.data

    def set_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
        if not gpu.mode.busy and is_meta(tensor) != is_meta(value) and value.layout == torch.strided:
            drop_values(gpu, tensor)
            drop_values(gpu, value)
        true_property.__set__(tensor, value)

    patches.set(torch.Tensor, "data", property(true_property.__get__, set_data))


def _wanting_gradient(factory: Any) -> Any:
    def make(*args: Any, **kwargs: Any) -> Any:
        wanted = kwargs.pop("requires_grad", False)
        made = factory(*args, **kwargs)
        return made.requires_grad_() if wanted else made

    return make


def drop_values(gpu: VirtualGpu, tensor: torch.Tensor) -> None:
    if type(tensor) not in _OWN_KINDS or is_meta(tensor) or tensor.layout != torch.strided:
        return
    with torch._C.DisableTorchFunctionSubclass():  # a lazy layer's parameter forbids to look at it
        twin, wants_gradient = _valueless(gpu, tensor), tensor.requires_grad
        torch._C._swap_tensor_impl(tensor, twin.requires_grad_() if wants_gradient else twin)


def given_gradient(gpu: VirtualGpu, gradient: Any) -> Any:
    """What a script hands to backward: autograd wants it on the output's true device, which has no values."""
    if isinstance(gradient, torch.Tensor) and wrappers.is_functorch_wrapped_tensor(gradient):
        return gradient if is_meta(gradient) else _valueless(gpu, gradient)
    return gpu.mode.without_values(gradient)


def _valueless(gpu: VirtualGpu, tensor: torch.Tensor) -> torch.Tensor:
    """Transforms of torch.func wrap a tensor: the innermost one gives up its values, and is wrapped like before."""
    if not wrappers.is_functorch_wrapped_tensor(tensor):
        return without_values(gpu, tensor)
    inner = wrappers.get_unwrapped(tensor)
    with temporarily_clear_interpreter_stack():  # or what is made here would be wrapped too
        drop_values(gpu, inner)
    level = wrappers.maybe_get_level(tensor)
    if wrappers.is_batchedtensor(tensor):
        return wrappers._add_batch_dim(inner, wrappers.maybe_get_bdim(tensor), level)
    return wrappers._wrap_for_grad(inner, level)


def _install_functions(gpu: VirtualGpu, patches: Patches) -> None:
    """What a script's own backward fills in with known values loses them where autograd expects none."""
    owner = torch.autograd.function.BackwardCFunction

    def giving_up_values(apply: Any) -> Any:
        def call(node: Any, *args: Any) -> Any:
            given = apply(node, *args)
            gradients = given if isinstance(given, tuple) else (given,)
            edges = iter([edge for edge in node.next_functions if edge[0] is not None])
            for gradient, needed in zip(gradients, node.needs_input_grad, strict=False):
                wants_none = needed and _expects_no_values(*next(edges))
                if wants_none and gradient is not None:
                    drop_values(gpu, gradient)
            return given

        return call

    for name in ("apply", "apply_boxed"):
        if hasattr(owner, name):
            patches.set(owner, name, giving_up_values(getattr(owner, name)))


def _expects_no_values(node: Any, index: int) -> bool:
    return bool(node._input_metadata[index].device.type == "meta")
