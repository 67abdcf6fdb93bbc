"""What a dispatcher op does to storages, read from its schema once and kept.

Knows torch's schemas; nothing about devices or memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

aten = torch.ops.aten
_Tensor = torch.Tensor

# Ops that may read tensors of several devices, as on CUDA.
ACROSS_DEVICES = frozenset(
    {
        "aten::copy_", "aten::_to_copy", "aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_",
        "aten::_foreach_copy_", "aten::set_", "aten::_amp_update_scale_", "aten::_pin_memory", "aten::equal",
        "aten::_pack_padded_sequence", "aten::_ctc_loss", "aten::_ctc_loss_backward",
    }
)  # fmt: skip


class Op:
    """The facts about one overload."""

    __slots__ = (
        "across_devices", "composite", "device_argument", "has_tensor_arguments", "is_view", "name", "resizes",
        "writes",
    )  # fmt: skip

    def __init__(self, func: Any) -> None:
        schema = func._schema
        self.name = str(schema.name)
        returned = [result.alias_info for result in schema.returns if result.alias_info is not None]
        self.is_view = bool(returned) and not any(alias.is_write for alias in returned)
        self.writes = tuple(
            (index, argument.name)
            for index, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        )
        self.has_tensor_arguments = any("Tensor" in str(argument.type) for argument in schema.arguments)
        self.device_argument = any(argument.name == "device" for argument in schema.arguments)
        self.across_devices = self.name in ACROSS_DEVICES
        self.resizes = self.name in ("aten::resize_", "aten::resize_as_", "inductor::resize_storage_bytes_")
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
        self.composite = has_kernel(func.name(), "CompositeImplicitAutograd") and not has_kernel(func.name(), "CPU")

    def written(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
        for index, name in self.writes:
            yield from tensors_in((args[index],) if index < len(args) else (kwargs.get(name),), {})


def tensors_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors of a call, in order, also those inside one level of lists."""
    found = []
    for value in args:
        if isinstance(value, _Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += [item for item in value if isinstance(item, _Tensor)]
    for value in kwargs.values():
        if isinstance(value, _Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += [item for item in value if isinstance(item, _Tensor)]
    return found


def replaced(value: Any, by: dict[int, torch.Tensor]) -> Any:
    """The same structure with some tensors exchanged, by identity."""
    if isinstance(value, _Tensor):
        return by.get(id(value), value)
    if isinstance(value, (list, tuple)):
        return type(value)(replaced(item, by) for item in value)
    return value
