"""Tensor methods that speak of devices or values, answered for virtual tensors: `.device`, `.to`, `.cuda`, `.tolist`.

In come calls of a script on its tensors, out come the answers of a CUDA build. Everything else about a tensor is
torch's own; functions that make tensors are in `factories`. Does not know devices other than cuda, cpu and meta.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy

from vramcast.allocator import Block
from vramcast.patches import Patches
from vramcast.virtual.accounting.storages import (
    HOST_PLACE,
    NOWHERE,
    is_meta,
    meta_twin,
    storage_of,
    strided_parts,
)
from vramcast.virtual.kernels.unknown_values import stand_in
from vramcast.virtual.state import GpuState
from vramcast.virtual.torch_patches import factories

_TensorBase = torch._C.TensorBase


def install(gpu: GpuState, patches: Patches) -> None:
    _install_properties(gpu, patches)
    _install_transfers(gpu, patches)
    _install_values(gpu, patches)
    _install_representation(gpu, patches)
    _install_deepcopy(gpu, patches)
    _install_addresses(patches)
    factories.install(gpu, patches)
    _install_storages(gpu, patches)
    _install_wrappers(patches)


def _is_plain(tensor: torch.Tensor) -> bool:
    """False for subclasses that handle their own ops: they answer for themselves."""
    return not torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python)


def place_of(gpu: GpuState, tensor: torch.Tensor) -> str:
    try:
        record = gpu.storages.find(strided_parts(tensor)[-1])
    except (NotImplementedError, RuntimeError):
        return HOST_PLACE  # layouts without a storage
    except ValueError:  # a parameter of a lazy layer, which forbids to look at it
        with torch._C.DisableTorchFunctionSubclass():
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


def _install_properties(gpu: GpuState, patches: Patches) -> None:
    true_device = _TensorBase.device.__get__

    def device(tensor: torch.Tensor) -> torch.device:
        if gpu.mode.busy:
            return true_device(tensor)
        if not _is_plain(tensor):
            return device_of_subclass(tensor)
        place = place_of(gpu, tensor)
        return true_device(tensor) if place == NOWHERE else gpu.devices[place]

    def device_of_subclass(tensor: torch.Tensor) -> torch.device:
        local = getattr(tensor, "_local_tensor", None)  # of a DTensor
        if local is not None and _is_plain(local):
            return device(local)
        found: torch.device = getattr(tensor, _WRAPPED, None) or true_device(tensor)
        return gpu.devices.get(gpu.last_place, found) if found.type == "meta" else found

    patches.set(torch.Tensor, "device", property(device))
    for kind in ("cuda", "meta", "cpu"):
        patches.set(torch.Tensor, f"is_{kind}", _is_kind(gpu, kind))
    patches.set(
        torch.Tensor, "get_device", lambda tensor: tensor.device.index if tensor.is_cuda else -1
    )
    patches.set(
        torch.Tensor, "is_pinned", lambda tensor, device=None: torch.ops.aten.is_pinned(tensor)
    )
    patches.set(torch, "get_device", lambda tensor: tensor.get_device())


def _is_kind(gpu: GpuState, kind: str) -> property:
    true_answer = getattr(_TensorBase, f"is_{kind}").__get__

    def answer(tensor: torch.Tensor) -> bool:
        if gpu.mode.busy or isinstance(tensor, FakeTensor):
            return bool(true_answer(tensor))
        return bool(tensor.device.type == kind)

    return property(answer)


class TransferFunction(torch.autograd.Function):  # type: ignore[misc]
    """A copy to another place inside a graph; its gradient travels back."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, gpu: GpuState, place: str, options: dict[str, Any]
    ) -> torch.Tensor:
        ctx.gpu, ctx.place = gpu, place_of(gpu, tensor)
        ctx.dtype, ctx.is_real = tensor.dtype, not is_meta(tensor)
        return copy_to(gpu, tensor, place, options)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        if ctx.is_real:  # autograd wants the gradient of a real host tensor to be real
            return torch.zeros(gradient.shape, dtype=ctx.dtype), None, None, None
        return copy_to(ctx.gpu, gradient, ctx.place, {"dtype": ctx.dtype}), None, None, None


def _dtensor_to(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """A DTensor goes where its local part goes."""
    local = tensor.to_local()
    moved = local.to(*args, **kwargs)
    if moved is local:
        return tensor
    return type(tensor).from_local(
        moved,
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )


def copy_to(
    gpu: GpuState, tensor: torch.Tensor, place: str, options: dict[str, Any]
) -> torch.Tensor:
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


class _Transfer(NamedTuple):
    """What `tensor.to(…)` asks for; None is: as it is."""

    device: torch.device | None
    dtype: torch.dtype | None
    memory_format: torch.memory_format | None
    copy: bool  # also if nothing changes

    @property
    def options(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if self.dtype is not None:
            options["dtype"] = self.dtype
        if self.memory_format is not None:
            options["memory_format"] = self.memory_format
        return options


def _parse_transfer(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Transfer:
    copy = bool(kwargs.pop("copy", False))
    other = kwargs.pop("other", None)
    if other is None and args and isinstance(args[0], torch.Tensor):
        other = args[0]
    if other is not None:
        return _Transfer(other.device, other.dtype, kwargs.get("memory_format"), copy)
    # .to(dtype, non_blocking, copy) and .to(device, dtype, non_blocking, copy): torch's parser does not take the last
    before_copy = 2 if args and isinstance(args[0], torch.dtype) else 3
    if len(args) > before_copy:
        args, copy = args[:-1], bool(args[-1])
    device, dtype, _, memory_format = torch._C._nn._parse_to(*args, **kwargs)
    return _Transfer(device, dtype, memory_format, copy)


def _transfer(
    gpu: GpuState, true_to: Callable[..., torch.Tensor], tensor: torch.Tensor, asked: _Transfer
) -> torch.Tensor:
    """The tensor as it is asked for: itself if nothing changes, else a copy here or at another place."""
    here = place_of(gpu, tensor)
    there = here if asked.device is None else gpu.place_named(asked.device)
    options = asked.options
    if there == here:
        if not options and not asked.copy:
            return tensor
        return true_to(tensor, copy=asked.copy, **options)
    if there == NOWHERE:
        return meta_twin(tensor).to(dtype=asked.dtype or tensor.dtype)
    if tensor.requires_grad and torch.is_grad_enabled():
        return TransferFunction.apply(tensor, gpu, there, options)
    return copy_to(gpu, tensor, there, options)


def cuda(
    tensor: torch.Tensor,
    device: Any = None,
    non_blocking: bool = False,
    memory_format: Any = None,
) -> torch.Tensor:
    """`tensor.cuda()`: the current card, one by its number, or one by its name."""
    is_index = device is None or isinstance(device, int)
    target = torch.device("cuda", device) if is_index else torch.device(device)
    if memory_format is None:
        return tensor.to(target)
    return tensor.to(target, memory_format=memory_format)


def _install_transfers(gpu: GpuState, patches: Patches) -> None:
    true_to = torch.Tensor.to

    def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if gpu.mode.busy:
            return true_to(tensor, *args, **kwargs)
        if hasattr(tensor, "_local_tensor"):
            return _dtensor_to(tensor, *args, **kwargs)
        if not _is_plain(tensor):
            return true_to(tensor, *args, **kwargs)
        if is_lazy(tensor):
            with torch._C.DisableTorchFunctionSubclass():
                return to(tensor.data, *args, **kwargs)
        return _transfer(gpu, true_to, tensor, _parse_transfer(args, kwargs))

    _install_parsing(patches)
    patches.set(torch.Tensor, "to", to)
    patches.set(torch.Tensor, "cuda", cuda)
    patches.set(
        torch.Tensor, "cpu", lambda tensor, memory_format=None: tensor.to(torch.device("cpu"))
    )
    patches.set(
        torch.Tensor, "pin_memory", lambda tensor, device=None: torch.ops.aten._pin_memory(tensor)
    )
    patches.set(
        torch.Tensor, "record_stream", lambda tensor, stream: _record_stream(gpu, tensor, stream)
    )


def _record_stream(gpu: GpuState, tensor: torch.Tensor, stream: Any) -> None:
    """After the tensor is freed, its block stays active until the other stream's work is known to be done."""
    record = gpu.storages.find(tensor)
    if record is not None and isinstance(record.block, Block):
        gpu.memory_at(record.place).allocator.record_stream(record.block, stream.stream_id)
        gpu.note_once(_STREAM_NOTE)


_STREAM_NOTE = (
    "record_stream: blocks stay taken until the script synchronises, reads a value, or its phase ends; "
    "on a real GPU they may come back sooner"
)


def _with_values(gpu: GpuState, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself if its values are known, else a stand-in."""
    record = gpu.storages.find(tensor) if _is_plain(tensor) else None
    if record is None or (record.known and not is_meta(tensor)):
        return tensor
    return stand_in(gpu, tensor)


def _install_values(gpu: GpuState, patches: Patches) -> None:
    """Values as Python's or NumPy's."""
    true_tolist, true_numpy = torch.Tensor.tolist, torch.Tensor.numpy

    def tolist(tensor: torch.Tensor) -> Any:
        return true_tolist(_with_values(gpu, tensor))

    def numpy(tensor: torch.Tensor, *, force: bool = False) -> Any:
        if not force and not gpu.mode.busy and tensor.is_cuda:
            raise TypeError(
                f"can't convert {tensor.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to "
                "host memory first."
            )
        return true_numpy(_with_values(gpu, tensor.detach() if force else tensor), force=force)

    patches.set(torch.Tensor, "tolist", tolist)
    patches.set(torch.Tensor, "numpy", numpy)


def _install_representation(gpu: GpuState, patches: Patches) -> None:
    """A tensor without values prints its size and dtype."""
    true_repr = torch.Tensor.__repr__

    def representation(tensor: torch.Tensor, *, tensor_contents: Any = None) -> str:
        if is_meta(tensor) and place_of(gpu, tensor) != NOWHERE:
            return f"tensor(..., device='{tensor.device}', size={tuple(tensor.shape)}, dtype={tensor.dtype})"
        return str(true_repr(tensor, tensor_contents=tensor_contents))

    patches.set(torch.Tensor, "__repr__", representation)


def _install_deepcopy(gpu: GpuState, patches: Patches) -> None:
    """A deep copy is allocated where the tensor is."""
    true_deepcopy = torch.Tensor.__deepcopy__

    def deepcopy(tensor: torch.Tensor, memo: dict[int, Any]) -> Any:
        place = place_of(gpu, tensor)
        is_real = place == HOST_PLACE and not is_meta(tensor)
        if place == NOWHERE or is_real or not tensor.is_leaf:
            return true_deepcopy(tensor, memo)
        if id(tensor) not in memo:
            memo[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return memo[id(tensor)]

    patches.set(torch.Tensor, "__deepcopy__", deepcopy)


def _install_addresses(patches: Patches) -> None:
    """Tensors without memory have an address that no other storage has."""
    true_pointer = torch.Tensor.data_ptr

    def data_ptr(tensor: torch.Tensor) -> int:
        if not is_meta(tensor):
            return int(true_pointer(tensor))
        return address(storage_of(tensor)) + int(tensor.storage_offset() * tensor.element_size())

    patches.set(torch.Tensor, "data_ptr", data_ptr)


def address(storage: torch.UntypedStorage) -> int:
    """A meta storage has no address; scripts that compare addresses find tied weights by this one."""
    return int(storage._cdata)


def _install_storages(gpu: GpuState, patches: Patches) -> None:
    true_resize, true_pointer = torch.UntypedStorage.resize_, torch.UntypedStorage.data_ptr
    records = gpu.storages.records

    def resize(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        true_resize(storage, size)
        gpu.storages.reallocate(storage)
        return storage

    def data_ptr(storage: torch.UntypedStorage) -> int:
        if storage._cdata in records and storage.device.type == "meta":
            return address(storage)
        return int(true_pointer(storage))

    _install_sharing(gpu, patches)
    patches.set(torch.UntypedStorage, "resize_", resize)
    patches.set(torch.UntypedStorage, "data_ptr", data_ptr)


def _install_sharing(gpu: GpuState, patches: Patches) -> None:
    """Memory of a card is shared without being moved; so is what has no memory."""
    true_share, true_is_shared = torch.UntypedStorage.share_memory_, torch.UntypedStorage.is_shared

    def is_on_card(storage: torch.UntypedStorage) -> bool:
        record = gpu.storages.records.get(storage._cdata)
        return record is not None and record.place not in (HOST_PLACE, NOWHERE)

    def share(storage: torch.UntypedStorage) -> torch.UntypedStorage:
        if is_on_card(storage) or storage.device.type == "meta":
            return storage
        return true_share(storage)

    def is_shared(storage: torch.UntypedStorage) -> bool:
        return is_on_card(storage) or bool(true_is_shared(storage))

    patches.set(torch.UntypedStorage, "share_memory_", share)
    patches.set(torch.UntypedStorage, "is_shared", is_shared)
