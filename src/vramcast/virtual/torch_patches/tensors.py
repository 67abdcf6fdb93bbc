"""Tensor methods that speak of devices, answered for virtual tensors: `.device`, `.to`, `.cuda`, and reading of values.

Everything else about a tensor is torch's own.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _device

from vramcast.allocator import Block
from vramcast.virtual.accounting.storages import HOST_PLACE, NOWHERE, is_meta, storage_of
from vramcast.virtual.kernels.dispatch_mode import meta_twin
from vramcast.virtual.kernels.sparse import parts_of
from vramcast.virtual.kernels.unknown_values import stand_in

if TYPE_CHECKING:
    from vramcast.patches import Patches
    from vramcast.virtual.gpu import VirtualGpu

_TensorBase = torch._C.TensorBase


def install(gpu: VirtualGpu, patches: Patches) -> None:
    _install_properties(gpu, patches)
    _install_transfers(gpu, patches)
    _install_values(gpu, patches)
    _install_factories(gpu, patches)
    _install_storages(gpu, patches)
    _install_wrappers(patches)


def _plain(tensor: torch.Tensor) -> bool:
    """Subclasses that handle their own ops answer for themselves."""
    return not torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python)


def place_of(gpu: VirtualGpu, tensor: torch.Tensor) -> str:
    try:
        record = gpu.storages.find(parts_of(tensor)[-1])
    except (NotImplementedError, RuntimeError):
        return HOST_PLACE  # layouts without a storage
    except ValueError:
        with torch._C.DisableTorchFunctionSubclass():  # of a lazy layer, which forbids to look at it
            return place_of(gpu, tensor)
    if record is not None:
        return record.place
    return NOWHERE if is_meta(tensor) else HOST_PLACE


_WRAPPED = "_vramcast_device"


def _install_wrappers(patches: Patches) -> None:
    """Subclasses that wrap other tensors have a device and no memory: on CUDA, torch would ask its driver for it."""
    true_make = torch.Tensor._make_wrapper_subclass

    def make(cls: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        asked = torch.device(kwargs.get("device") or "cpu")
        if asked.type != "cuda":
            return true_make(cls, *args, **kwargs)
        wrapper: torch.Tensor = true_make(cls, *args, **{**kwargs, "device": "meta"})
        setattr(wrapper, _WRAPPED, asked)
        return wrapper

    patches.set(torch.Tensor, "_make_wrapper_subclass", staticmethod(make))


def _install_properties(gpu: VirtualGpu, patches: Patches) -> None:
    true_device = _TensorBase.device.__get__
    devices = gpu.devices

    def device(tensor: torch.Tensor) -> torch.device:
        if gpu.mode.busy:
            return true_device(tensor)
        if not _plain(tensor):
            local = getattr(tensor, "_local_tensor", None)  # of a DTensor
            if local is not None and _plain(local):
                return device(local)
            found: torch.device = getattr(tensor, _WRAPPED, None) or true_device(tensor)
            return gpu.devices.get(gpu.last_place, found) if found.type == "meta" else found
        place = place_of(gpu, tensor)
        return true_device(tensor) if place == NOWHERE else devices[place]

    patches.set(torch.Tensor, "device", property(device))
    for kind in ("cuda", "meta", "cpu"):
        patches.set(torch.Tensor, f"is_{kind}", _is_kind(gpu, kind))
    patches.set(torch.Tensor, "get_device", lambda tensor: tensor.device.index if tensor.is_cuda else -1)
    patches.set(torch.Tensor, "is_pinned", lambda tensor, device=None: torch.ops.aten.is_pinned(tensor))
    patches.set(torch, "get_device", lambda tensor: tensor.get_device())


def _is_kind(gpu: VirtualGpu, kind: str) -> property:
    true_answer = getattr(_TensorBase, f"is_{kind}").__get__

    def answer(tensor: torch.Tensor) -> bool:
        if gpu.mode.busy or isinstance(tensor, FakeTensor):
            return bool(true_answer(tensor))
        return bool(tensor.device.type == kind)

    return property(answer)


class Transfer(torch.autograd.Function):  # type: ignore[misc]
    """A copy to another place inside a graph; its gradient travels back."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, gpu: VirtualGpu, place: str, options: dict[str, Any]) -> torch.Tensor:
        ctx.gpu, ctx.place, ctx.dtype, ctx.real = gpu, place_of(gpu, tensor), tensor.dtype, not is_meta(tensor)
        return copy_to(gpu, tensor, place, options)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        if ctx.real:  # autograd wants the gradient of a real host tensor to be real
            return torch.zeros(gradient.shape, dtype=ctx.dtype), None, None, None
        return copy_to(ctx.gpu, gradient, ctx.place, {"dtype": ctx.dtype}), None, None, None


def _distributed_to(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """A DTensor goes where its local part goes."""
    local = tensor.to_local()
    moved = local.to(*args, **kwargs)
    if moved is local:
        return tensor
    return type(tensor).from_local(
        moved, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


def copy_to(gpu: VirtualGpu, tensor: torch.Tensor, place: str, options: dict[str, Any]) -> torch.Tensor:
    """A new storage at `place`, with the values if they are known and few."""
    gpu.mode.target = place
    try:
        return torch.ops.aten._to_copy.default(tensor, **options)
    finally:
        gpu.mode.target = None


def _install_parsing(patches: Patches) -> None:
    true_parse = torch._C._nn._parse_to

    def parse_to(*args: Any, **kwargs: Any) -> Any:
        """`.to(0)` asks for the current accelerator, which a build without CUDA does not have: it is cuda:0."""
        if isinstance(kwargs.get("device"), int):
            kwargs = {**kwargs, "device": torch.device("cuda", kwargs["device"])}
        if args and type(args[0]) is int:
            args = (torch.device("cuda", args[0]), *args[1:])
        return true_parse(*args, **kwargs)

    patches.set(torch._C._nn, "_parse_to", parse_to)


def _install_types(gpu: VirtualGpu, patches: Patches) -> None:
    true_type = torch.Tensor.type

    def type_(tensor: torch.Tensor, dtype: Any = None, non_blocking: bool = False) -> Any:
        name = dtype if isinstance(dtype, str) else f"torch.cuda.{getattr(dtype, '__name__', '')}"
        if name in LEGACY:
            return tensor.to("cuda", LEGACY[name])
        if dtype is None and tensor.is_cuda and not gpu.mode.busy:
            return next(legacy for legacy, kind in LEGACY.items() if kind == tensor.dtype)
        return true_type(tensor, dtype) if dtype is not None else true_type(tensor)

    patches.set(torch.Tensor, "type", type_)
    patches.set(torch.Tensor, "new", _new_like)
    for name, kind in LEGACY.items():
        patches.set(torch.cuda, name.rpartition(".")[2], _legacy_class(name.rpartition(".")[2], kind))


def _new_like(tensor: torch.Tensor, *args: Any, device: Any = None) -> torch.Tensor:
    """`x.new(2, 3)`, `x.new([1.0])` and, of a sparse tensor, `x.new(indices, values, size)`, as old code writes it."""
    if tensor.layout == torch.sparse_coo:
        return torch.sparse_coo_tensor(*args)
    if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
        return args[0] if isinstance(args[0], torch.Tensor) else tensor.new_tensor(args[0], device=device)
    return tensor.new_empty(*(args or (0,)), device=device)


def _install_transfers(gpu: VirtualGpu, patches: Patches) -> None:
    true_to = torch.Tensor.to

    def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if hasattr(tensor, "_local_tensor") and not gpu.mode.busy:
            return _distributed_to(tensor, *args, **kwargs)
        if gpu.mode.busy or not _plain(tensor):
            return true_to(tensor, *args, **kwargs)
        if is_lazy(tensor):
            with torch._C.DisableTorchFunctionSubclass():
                return to(tensor.data, *args, **kwargs)
        copy = bool(kwargs.pop("copy", False))
        if (args and isinstance(args[0], torch.Tensor)) or "other" in kwargs:
            other = kwargs.pop("other", None) if "other" in kwargs else args[0]
            device, dtype, form = other.device, other.dtype, kwargs.get("memory_format")
        else:
            if len(args) > 3 or (len(args) == 3 and isinstance(args[0], torch.dtype)):
                args, copy = args[:-1], bool(args[-1])
            device, dtype, _, form = torch._C._nn._parse_to(*args, **kwargs)
        here = place_of(gpu, tensor)
        there = here if device is None else gpu.place_named(device)
        options = {} if dtype is None else {"dtype": dtype}
        if form is not None:
            options["memory_format"] = form
        if there == here:
            return true_to(tensor, copy=copy, **options) if options or copy else tensor
        if there == NOWHERE:
            return meta_twin(tensor).to(dtype=dtype or tensor.dtype)
        if tensor.requires_grad and torch.is_grad_enabled():
            return Transfer.apply(tensor, gpu, there, options)
        return copy_to(gpu, tensor, there, options)

    def cuda(
        tensor: torch.Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = None
    ) -> torch.Tensor:
        index = device if isinstance(device, int) else None
        target = torch.device("cuda", index) if device is None or index is not None else torch.device(device)
        return tensor.to(target) if memory_format is None else tensor.to(target, memory_format=memory_format)

    _install_parsing(patches)
    _install_types(gpu, patches)
    patches.set(torch.Tensor, "to", to)
    patches.set(torch.Tensor, "cuda", cuda)
    patches.set(torch.Tensor, "cpu", lambda tensor, memory_format=None: tensor.to(torch.device("cpu")))
    patches.set(torch.Tensor, "pin_memory", lambda tensor, device=None: torch.ops.aten._pin_memory(tensor))
    patches.set(torch.Tensor, "record_stream", lambda tensor, stream: _record_stream(gpu, tensor, stream))


def _record_stream(gpu: VirtualGpu, tensor: torch.Tensor, stream: Any) -> None:
    """The block stays taken after the tensor's end until the other stream's work is known to be done."""
    record = gpu.storages.find(tensor)
    if record is not None and isinstance(record.block, Block):
        gpu.memory_at(record.place).allocator.record_stream(record.block, stream.stream_id)
        gpu.notes.setdefault(_STREAM_NOTE, 1)


_STREAM_NOTE = (
    "record_stream: blocks stay taken until the script synchronises, reads a value, or its phase ends; "
    "on a real GPU they may come back sooner"
)


LEGACY = {
    f"torch.cuda.{name}Tensor": kind
    for name, kind in {
        "Float": torch.float32, "Double": torch.float64, "Half": torch.float16, "BFloat16": torch.bfloat16,
        "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
        "Bool": torch.bool,
    }.items()
}  # fmt: skip


def _legacy_class(name: str, kind: torch.dtype) -> type:
    """`torch.cuda.FloatTensor(2, 3)` and `torch.cuda.FloatTensor([1.0])`, as old scripts write it."""

    def new(cls: type, *args: Any) -> torch.Tensor:
        if args and not all(isinstance(value, int) for value in args):
            return torch.tensor(args[0], dtype=kind, device="cuda")
        return torch.empty(*(args or (0,)), dtype=kind, device="cuda")

    return type(name, (), {"__new__": new})


def _install_values(gpu: VirtualGpu, patches: Patches) -> None:
    true_tolist, true_numpy, true_repr = torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__repr__
    true_deepcopy, true_pointer = torch.Tensor.__deepcopy__, torch.Tensor.data_ptr

    def with_values(tensor: torch.Tensor) -> torch.Tensor:
        record = gpu.storages.find(tensor) if _plain(tensor) else None
        if record is None or (record.known and not is_meta(tensor)):
            return tensor
        return stand_in(gpu, tensor)

    def tolist(tensor: torch.Tensor) -> Any:
        return true_tolist(with_values(tensor))

    def numpy(tensor: torch.Tensor, *, force: bool = False) -> Any:
        if not force and not gpu.mode.busy and tensor.is_cuda:
            raise TypeError(
                f"can't convert {tensor.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to "
                "host memory first."
            )
        return true_numpy(with_values(tensor.detach() if force else tensor), force=force)

    def representation(tensor: torch.Tensor, *, tensor_contents: Any = None) -> str:
        if is_meta(tensor) and place_of(gpu, tensor) != NOWHERE:
            return f"tensor(..., device='{tensor.device}', size={tuple(tensor.shape)}, dtype={tensor.dtype})"
        return str(true_repr(tensor, tensor_contents=tensor_contents))

    def deepcopy(tensor: torch.Tensor, memo: dict[int, Any]) -> Any:
        place = place_of(gpu, tensor)
        if place == NOWHERE or (place == HOST_PLACE and not is_meta(tensor)) or not tensor.is_leaf:
            return true_deepcopy(tensor, memo)
        if id(tensor) not in memo:
            memo[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return memo[id(tensor)]

    def data_ptr(tensor: torch.Tensor) -> int:
        if not is_meta(tensor):
            return int(true_pointer(tensor))
        return address(storage_of(tensor)) + int(tensor.storage_offset() * tensor.element_size())

    patches.set(torch.Tensor, "tolist", tolist)
    patches.set(torch.Tensor, "numpy", numpy)
    patches.set(torch.Tensor, "__repr__", representation)
    patches.set(torch.Tensor, "__deepcopy__", deepcopy)
    patches.set(torch.Tensor, "data_ptr", data_ptr)


def address(storage: torch.UntypedStorage) -> int:
    """A meta storage has no address; programs that compare addresses find tied weights by this one."""
    return int(storage._cdata)


def _install_factories(gpu: VirtualGpu, patches: Patches) -> None:
    """`torch.tensor(..., device="cuda")` makes a host tensor first; the rest of the factories reach the mode."""
    _device._device_constructors()  # torch lists its factories once, and must list the true ones
    for owner, names in ((torch, _FACTORIES), (torch.Tensor, _FACTORY_METHODS)):
        for name in names:
            patches.set(owner, name, _on_numbered_device(getattr(owner, name)))
    for name in ("tensor", "as_tensor", "asarray", "scalar_tensor"):
        patches.set(torch, name, _made_on_host(gpu, getattr(torch, name)))


_FACTORIES = (
    "arange", "empty", "empty_like", "empty_strided", "eye", "full", "full_like", "linspace", "logspace", "ones",
    "ones_like", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm", "tril_indices",
    "triu_indices", "zeros", "zeros_like",
)  # fmt: skip
_FACTORY_METHODS = ("new_empty", "new_full", "new_ones", "new_tensor", "new_zeros")


def _on_numbered_device(factory: Any) -> Any:
    """`torch.zeros(4, device=1)` asks for the accelerator, which a build without CUDA does not have: it is cuda:1."""

    @wraps(factory)
    def make(*args: Any, **kwargs: Any) -> Any:
        if type(kwargs.get("device")) is int:
            kwargs["device"] = torch.device("cuda", kwargs["device"])
        return factory(*args, **kwargs)

    return make


def _default_device() -> torch.device:
    """As torch.get_default_device, which would ask torch.tensor for the index, and so this module again."""
    modes = (mode for mode in reversed(_get_current_function_mode_stack()) if isinstance(mode, _device.DeviceContext))
    context = next(modes, None) or getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return torch.device("cpu") if context is None else context.device


def _made_on_host(gpu: VirtualGpu, factory: Any) -> Any:
    def make(*args: Any, **kwargs: Any) -> Any:
        if gpu.mode.busy:
            return factory(*args, **kwargs)
        device = kwargs.pop("device", None)
        if device is None and not (args and isinstance(args[0], torch.Tensor)):
            device = _default_device()
        if device is None:
            return factory(*args, **kwargs)
        device = torch.device(device) if not isinstance(device, torch.device) else device
        requires_grad = kwargs.pop("requires_grad", False)
        if device.type == "meta":
            return factory(*args, device=device, requires_grad=requires_grad, **kwargs)
        with torch.device("cpu"):
            made = factory(*args, **kwargs)
        made = made.detach().to(device) if requires_grad else made.to(device)
        return made.requires_grad_() if requires_grad else made

    return make


def _install_storages(gpu: VirtualGpu, patches: Patches) -> None:
    true_resize, true_pointer = torch.UntypedStorage.resize_, torch.UntypedStorage.data_ptr

    def resize(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        true_resize(storage, size)
        gpu.storages.resized(storage)
        return storage

    def data_ptr(storage: torch.UntypedStorage) -> int:
        return (
            address(storage)
            if storage._cdata in gpu.storages.records and storage.device.type == "meta"
            else true_pointer(storage)
        )

    patches.set(torch.UntypedStorage, "resize_", resize)
    patches.set(torch.UntypedStorage, "data_ptr", data_ptr)
