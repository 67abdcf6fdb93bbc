"""What an op on meta tensors returns, without asking torch twice: shapes follow from shapes.

In comes an op with arguments without data, out comes its result without data. torch works many of these out in
Python, which costs more than all of our own accounting, so the first answer of a kind is remembered. Ops that write
in place and cannot change a shape are not run at all: there is nothing to write. Does not know values: see
`unknown_values`.
"""

from __future__ import annotations

from typing import Any

import torch

from vramcast.virtual.accounting.storages import Record, storage_of
from vramcast.virtual.kernels.op_schemas import Op

_MAX_REMEMBERED = 1 << 15
_Tensor = torch.Tensor
_META = torch.device("meta")
_PLAIN = (
    int,
    float,
    bool,
    str,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
_FILLS = frozenset(  # they return their first argument
    {
        "aten::normal_",
        "aten::uniform_",
        "aten::zero_",
        "aten::fill_",
        "aten::random_",
        "aten::bernoulli_",
    }
)


class Shapes:
    """Answers by (op, metadata of its arguments); the first call of a kind is torch's own."""

    def __init__(self, records: dict[int, Record]) -> None:
        self._records = records
        self._known: dict[Any, Any] = {}

    def call(self, func: Any, op: Op, args: Any, kwargs: dict[str, Any]) -> Any:
        if op.writes:
            return _write(func, op, args, kwargs)
        try:
            key = (func, _key(args), _key(tuple(kwargs.items())) if kwargs else None)
            found = self._known.get(key)
        except TypeError:  # an argument that cannot be compared, such as a generator
            return func(*args, **kwargs)
        if found is not None:
            return _make(found)
        result = func(*args, **kwargs)
        recipe = self._recipe(result)
        if recipe is not None:
            if len(self._known) >= _MAX_REMEMBERED:
                self._known.clear()
            self._known[key] = recipe
        return result

    def _recipe(self, result: Any) -> Any:
        """How to make the same result again; None if a part of it is not a new, dense tensor."""
        if isinstance(result, _Tensor):
            return self._tensor_recipe(result)
        if isinstance(result, (tuple, list)):
            parts = [self._part_recipe(part) for part in result]
            return None if None in parts else ("parts", type(result), parts)
        return None

    def _part_recipe(self, part: Any) -> Any:
        if part is None or isinstance(part, int):
            return "value", part
        return self._recipe(part)

    def _tensor_recipe(self, result: torch.Tensor) -> Any:
        storage = storage_of(result)
        is_new = storage._cdata not in self._records and result.storage_offset() == 0
        if not is_new or not _fills_storage(result, storage.nbytes()):
            return None
        return result.shape, result.stride(), result.dtype


def _fills_storage(tensor: torch.Tensor, storage_bytes: int) -> bool:
    if 0 in tensor.shape:
        return True
    last = 0  # the offset of the last element
    for size, step in zip(tensor.shape, tensor.stride(), strict=True):
        last += (size - 1) * step
    return bool(storage_bytes == (last + 1) * tensor.element_size())


def _make(recipe: Any) -> Any:
    if recipe[0] == "parts":
        _, kind, parts = recipe
        return kind(part[1] if part[0] == "value" else _make(part) for part in parts)
    shape, stride, dtype = recipe
    return torch.empty_strided(shape, stride, dtype=dtype, device=_META)


def _write(func: Any, op: Op, args: Any, kwargs: dict[str, Any]) -> Any:
    if op.name in _FILLS:
        return args[0]
    updates_lists = op.name.startswith(("aten::_foreach_", "aten::_fused_"))
    if updates_lists and op.name.endswith("_") and not kwargs.get("out"):
        return None
    return func(*args, **kwargs)


def _key(value: Any) -> Any:
    """Hashable, and different wherever the answer may differ: 1, 1.0 and True are three values."""
    if isinstance(value, _Tensor):
        return value.shape, value.stride(), value.dtype
    if isinstance(value, (tuple, list)):
        return tuple(map(_key, value))
    if isinstance(value, _PLAIN):
        return type(value), value
    raise TypeError(type(value))
