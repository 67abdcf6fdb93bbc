"""What an op of torch's dispatcher does to storages: makes a view, writes into an argument, resizes, takes a device.

In comes an overload (`aten.add.Tensor`), out come facts read from its schema once. Knows nothing about devices or
memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

aten = torch.ops.aten
_Tensor = torch.Tensor

# Ops that may read tensors of several devices, as on CUDA.
ACROSS_DEVICES = frozenset(
    {
        "aten::copy_",
        "aten::_to_copy",
        "aten::index",
        "aten::index_put_",
        "aten::index_put",
        "aten::_index_put_impl_",
        "aten::_foreach_copy_",
        "aten::set_",
        "aten::_amp_update_scale_",
        "aten::_pin_memory",
        "aten::equal",
        "aten::_pack_padded_sequence",
        "aten::_ctc_loss",
        "aten::_ctc_loss_backward",
    }
)


RESIZING = ("aten::resize_", "aten::resize_as_", "inductor::resize_storage_bytes_")


class Op:
    """The facts about one overload. `composite`: torch takes it apart into other ops on every device."""

    __slots__ = (
        "across_devices",
        "composite",
        "device_argument",
        "has_tensor_arguments",
        "is_view",
        "name",
        "resizes",
        "writes",
    )

    def __init__(self, func: Any) -> None:
        schema = func._schema
        self.name = str(schema.name)
        self.is_view = _returns_view(schema)
        self.writes = _written_arguments(schema)
        self.has_tensor_arguments = any("Tensor" in str(a.type) for a in schema.arguments)
        self.device_argument = any(argument.name == "device" for argument in schema.arguments)
        self.across_devices = self.name in ACROSS_DEVICES
        self.resizes = self.name in RESIZING
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
        decomposes = has_kernel(func.name(), "CompositeImplicitAutograd")
        self.composite = decomposes and not has_kernel(func.name(), "CPU")

    def written(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
        """The tensors of a call that the op writes into."""
        for index, name in self.writes:
            argument = args[index] if index < len(args) else kwargs.get(name)
            yield from tensors_in((argument,), {})


def _returns_view(schema: Any) -> bool:
    """Results that alias an argument without writing to it."""
    aliases = [result.alias_info for result in schema.returns if result.alias_info is not None]
    return bool(aliases) and not any(alias.is_write for alias in aliases)


def _written_arguments(schema: Any) -> tuple[tuple[int, str], ...]:
    """Position and name of each argument that the op writes into."""
    return tuple(
        (index, argument.name)
        for index, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def tensors_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors of a call, in order, also those inside one level of lists."""
    found: list[torch.Tensor] = []
    _add_tensors(found, args)
    if kwargs:
        _add_tensors(found, kwargs.values())
    return found


def _add_tensors(found: list[torch.Tensor], values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, _Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += [item for item in value if isinstance(item, _Tensor)]


def replace_tensors(value: Any, by_id: dict[int, torch.Tensor]) -> Any:
    """The same structure with some tensors exchanged: `by_id` has the new one under the id of the old one."""
    if isinstance(value, _Tensor):
        return by_id.get(id(value), value)
    if isinstance(value, (list, tuple)):
        return type(value)(replace_tensors(item, by_id) for item in value)
    return value


def replace_in_options(kwargs: dict[str, Any], by_id: dict[int, torch.Tensor]) -> dict[str, Any]:
    return {name: replace_tensors(value, by_id) for name, value in kwargs.items()}


def without_option(kwargs: dict[str, Any], left_out: str) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name != left_out}
