"""What an op on meta tensors returns, without asking torch twice: shapes follow from shapes.

torch works many of them out in Python, which costs more than all of our own accounting. Ops that write in place and
cannot change a shape are not run at all: there is nothing to write.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vramcast.virtual.accounting.storages import Record, storage_of
from vramcast.virtual.kernels.op_schemas import Op

_ENTRIES = 1 << 15
_Tensor = torch.Tensor
_META = torch.device("meta")
_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
_FILLS = frozenset(
    {"aten::normal_", "aten::uniform_", "aten::zero_", "aten::fill_", "aten::random_", "aten::bernoulli_"}
)

Make = Callable[[], torch.Tensor]


class Shapes:
    """Answers by (op, metadata of its arguments); the first call of a kind is torch's own."""

    def __init__(self, records: dict[int, Record]) -> None:
        self._records = records
        self._known: dict[Any, Any] = {}

    def call(self, func: Any, op: Op, args: Any, kwargs: dict[str, Any]) -> Any:
        if op.writes:
            return _written(func, op, args, kwargs)
        try:
            key = (func, _key(args), _key(tuple(kwargs.items())) if kwargs else None)
            found = self._known.get(key)
        except TypeError:
            return func(*args, **kwargs)  # an argument without a value of its own, such as a generator
        if found is not None:
            return _made(found)
        result = func(*args, **kwargs)
        recipe = self._recipe(result)
        if recipe is not None:
            if len(self._known) >= _ENTRIES:
                self._known.clear()
            self._known[key] = recipe
        return result

    def _recipe(self, result: Any) -> Any:
        """How to make the same again; None where a part is not a fresh, dense tensor."""
        if isinstance(result, _Tensor):
            fresh = storage_of(result)._cdata not in self._records and result.storage_offset() == 0
            spans = sum((size - 1) * step for size, step in zip(result.shape, result.stride(), strict=True)) + 1
            whole = 0 in result.shape or storage_of(result).nbytes() == spans * result.element_size()
            return (result.shape, result.stride(), result.dtype) if fresh and whole else None
        if isinstance(result, (tuple, list)):
            parts = [
                ("value", part) if part is None or isinstance(part, int) else self._recipe(part) for part in result
            ]
            return None if None in parts else ("parts", type(result), parts)
        return None


def _made(recipe: Any) -> Any:
    if recipe[0] == "parts":
        return recipe[1](part[1] if part[0] == "value" else _made(part) for part in recipe[2])
    shape, stride, dtype = recipe
    return torch.empty_strided(shape, stride, dtype=dtype, device=_META)


def _written(func: Any, op: Op, args: Any, kwargs: dict[str, Any]) -> Any:
    if op.name in _FILLS:
        return args[0]
    if op.name.startswith(("aten::_foreach_", "aten::_fused_")) and not kwargs.get("out") and op.name.endswith("_"):
        return None
    return func(*args, **kwargs)


def _key(value: Any) -> Any:
    """Hashable, and different wherever the answer may be: 1, 1.0 and True are three values."""
    if isinstance(value, _Tensor):
        return value.shape, value.stride(), value.dtype
    if isinstance(value, (tuple, list)):
        return tuple(map(_key, value))
    if isinstance(value, _PLAIN):
        return type(value), value
    raise TypeError(type(value))
