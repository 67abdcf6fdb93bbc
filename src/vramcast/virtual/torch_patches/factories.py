"""Functions that make tensors: `torch.zeros(…, device="cuda")`, `torch.tensor`, and the classes of old scripts.

In come calls with a device, out come tensors of virtual cards. Most factories reach the dispatch mode by themselves;
here are those that would ask a driver first: numbered devices, `torch.tensor` with data, `torch.cuda.FloatTensor`.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _device

from vramcast.patches import Patches
from vramcast.virtual.state import GpuState


def install(gpu: GpuState, patches: Patches) -> None:
    _device._device_constructors()  # torch lists its factories once, and must list the true ones
    for name in _FACTORIES:
        patches.set(torch, name, _on_numbered_device(getattr(torch, name)))
    for name in _FACTORY_METHODS:
        patches.set(torch.Tensor, name, _on_numbered_device(getattr(torch.Tensor, name)))
    for name in ("tensor", "as_tensor", "asarray", "scalar_tensor"):
        patches.set(torch, name, _made_on_host_first(gpu, getattr(torch, name)))
    _install_types(gpu, patches)


_FACTORIES = (
    "arange",
    "empty",
    "empty_like",
    "empty_strided",
    "eye",
    "full",
    "full_like",
    "linspace",
    "logspace",
    "ones",
    "ones_like",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
    "tril_indices",
    "triu_indices",
    "zeros",
    "zeros_like",
)
_FACTORY_METHODS = ("new_empty", "new_full", "new_ones", "new_zeros")


def _on_numbered_device(factory: Any) -> Any:
    """`torch.zeros(4, device=1)` asks for the accelerator, which a build without CUDA does not have: it is cuda:1."""

    @wraps(factory)
    def make(*args: Any, **kwargs: Any) -> Any:
        if type(kwargs.get("device")) is int:
            kwargs["device"] = torch.device("cuda", kwargs["device"])
        return factory(*args, **kwargs)

    return make


def _made_on_host_first(gpu: GpuState, factory: Any) -> Any:
    """`torch.tensor(data, device="cuda")`: a host tensor, then a copy on the card."""

    def make(*args: Any, **kwargs: Any) -> Any:
        if gpu.mode.busy:
            return factory(*args, **kwargs)
        device = kwargs.pop("device", None)
        takes_a_tensor = bool(args) and isinstance(args[0], torch.Tensor)
        if device is None and takes_a_tensor:
            return factory(*args, **kwargs)
        device = _default_device() if device is None else torch.device(device)
        requires_grad = kwargs.pop("requires_grad", False)
        if device.type == "meta":
            return factory(*args, device=device, requires_grad=requires_grad, **kwargs)
        with torch.device("cpu"):
            made = factory(*args, **kwargs)
        if requires_grad:
            return made.detach().to(device).requires_grad_()
        return made.to(device)

    return make


def _default_device() -> torch.device:
    """As torch.get_default_device, which would ask torch.tensor for the index, and so this module again."""
    for mode in reversed(_get_current_function_mode_stack()):
        if isinstance(mode, _device.DeviceContext):
            return mode.device
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return torch.device("cpu") if context is None else context.device


# -- tensor types of old scripts ------------------------------------------------------------------------------------


LEGACY = {
    f"torch.cuda.{name}Tensor": kind
    for name, kind in {
        "Float": torch.float32,
        "Double": torch.float64,
        "Half": torch.float16,
        "BFloat16": torch.bfloat16,
        "Long": torch.int64,
        "Int": torch.int32,
        "Short": torch.int16,
        "Char": torch.int8,
        "Byte": torch.uint8,
        "Bool": torch.bool,
    }.items()
}


def _legacy_class(name: str, kind: torch.dtype) -> type:
    """`torch.cuda.FloatTensor(2, 3)` and `torch.cuda.FloatTensor([1.0])`, as old scripts write it."""

    def new(cls: type, *args: Any) -> torch.Tensor:
        if args and not all(isinstance(value, int) for value in args):
            return torch.tensor(args[0], dtype=kind, device="cuda")
        return torch.empty(*(args or (0,)), dtype=kind, device="cuda")

    return _LegacyType(name, (), {"__new__": new, "__module__": "torch.cuda", "kind": kind})


class _LegacyType(type):
    """`isinstance(x, torch.cuda.FloatTensor)` asks where x is and of what dtype."""

    kind: torch.dtype

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, torch.Tensor) and value.is_cuda and value.dtype == cls.kind


def _type_name(kind: Any) -> str:
    """`torch.FloatTensor` and `torch.cuda.FloatTensor`, said as a class or by name."""
    if isinstance(kind, str):
        return kind
    return f"{getattr(kind, '__module__', '')}.{getattr(kind, '__name__', '')}"


def _install_types(gpu: GpuState, patches: Patches) -> None:
    true_type = torch.Tensor.type

    def type_(tensor: torch.Tensor, dtype: Any = None, non_blocking: bool = False) -> Any:
        name = _type_name(dtype)
        if name in LEGACY:
            return tensor.to("cuda", LEGACY[name])
        if name.replace("torch.", "torch.cuda.", 1) in LEGACY:
            return tensor.to("cpu", LEGACY[name.replace("torch.", "torch.cuda.", 1)])
        if dtype is not None:
            return true_type(tensor, dtype)
        if tensor.is_cuda and not gpu.mode.busy:
            return next(legacy for legacy, kind in LEGACY.items() if kind == tensor.dtype)
        return true_type(tensor)

    def type_as(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return tensor.to(other.device, other.dtype)

    def set_default_tensor_type(kind: Any) -> None:
        """`torch.cuda.FloatTensor` is two defaults: a dtype, and the card."""
        name = _type_name(kind)
        if name in LEGACY:
            torch.set_default_dtype(LEGACY[name])
            torch.set_default_device("cuda")
        else:
            torch.set_default_device(None)
            true_default(kind)

    true_default = torch.set_default_tensor_type
    default_dtype, default_device = torch.get_default_dtype(), torch._GLOBAL_DEVICE_CONTEXT
    had_device = getattr(default_device, "device_context", None) is not None

    def reset() -> None:
        torch.set_default_dtype(default_dtype)
        if not had_device:
            torch.set_default_device(None)

    gpu.exit.callback(reset)
    patches.set(torch, "set_default_tensor_type", set_default_tensor_type)
    patches.set(torch.Tensor, "type_as", type_as)
    patches.set(torch.Tensor, "new_tensor", _new_tensor(gpu, torch.Tensor.new_tensor))
    patches.set(torch.Tensor, "type", type_)
    patches.set(torch.Tensor, "new", _new_like)
    for path, kind in LEGACY.items():
        name = path.rpartition(".")[2]
        patches.set(torch.cuda, name, _legacy_class(name, kind))


def _new_tensor(gpu: GpuState, true_method: Any) -> Any:
    """`x.new_tensor([1, 2])`: made on the host, then copied to where x is."""

    def new_tensor(
        tensor: torch.Tensor, data: Any, dtype: Any = None, device: Any = None, **options: Any
    ) -> Any:
        if gpu.mode.busy or (device is None and not tensor.is_cuda):
            return true_method(tensor, data, dtype=dtype, device=device, **options)
        place = tensor.device if device is None else device
        kind = tensor.dtype if dtype is None else dtype
        if isinstance(data, torch.Tensor):
            return data.detach().to(place, kind, copy=True)
        return torch.tensor(data, dtype=kind, device=place, **options)

    return new_tensor


def _new_like(tensor: torch.Tensor, *args: Any, device: Any = None) -> torch.Tensor:
    """`x.new(2, 3)`, `x.new([1.0])` and, of a sparse tensor, `x.new(indices, values, size)`, as old code writes it."""
    if tensor.layout == torch.sparse_coo:
        return torch.sparse_coo_tensor(*args)
    if len(args) != 1 or isinstance(args[0], (int, torch.Size)):
        return tensor.new_empty(*(args or (0,)), device=device)
    if isinstance(args[0], torch.Tensor):
        return args[0]
    return tensor.new_tensor(args[0], device=device)
