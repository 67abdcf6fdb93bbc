"""Sparse COO tensors on virtual cards: gradients of `Embedding(sparse=True)`, adjacency matrices, masks.

In comes a call with a sparse tensor among its inputs, out comes its result, whose indices and values are counted like
any tensor. A sparse tensor whose values are known is a real one. Otherwise it is a sparse meta tensor, for which
torch has few kernels: what optimizers and products need is written out here. Does not know how many indices of
unknown values are the same: all are taken to differ, as far as the size allows. cuSPARSE's workspaces are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from vramcast.virtual.accounting.storages import inner_tensors, is_meta
from vramcast.virtual.kernels.op_schemas import Op

aten = torch.ops.aten
_META = torch.device("meta")
Rule = Callable[..., torch.Tensor]


def run_without_values(func: Any, op: Op, args: Any, kwargs: dict[str, Any]) -> Any:
    """An op with a sparse input, some of whose inputs are unknown."""
    try:
        return RULES.get(op.name, func)(*args, **kwargs)
    except NotImplementedError:
        raise NotImplementedError(
            f"{op.name} of a sparse tensor whose values are unknown cannot be followed on a virtual device. Trace the "
            "script with dense ones (sparse=False): they take more, so the answer is an upper bound."
        ) from None


def make_coo(
    indices: torch.Tensor, values: torch.Tensor, size: Any, *, coalesced: bool = False
) -> torch.Tensor:
    result: torch.Tensor = aten._sparse_coo_tensor_with_dims_and_tensors(
        indices.size(0),
        values.dim() - 1,
        list(size),
        indices,
        values,
        dtype=values.dtype,
        layout=torch.sparse_coo,
        device=values.device,
        is_coalesced=coalesced,
    )
    return result


def map_parts(tensor: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """A sparse tensor of the same layout with each of its indices and values changed."""
    parts = [change(part) for part in inner_tensors(tensor)]
    if tensor.layout == torch.sparse_coo:
        return make_coo(parts[0], parts[1], tensor.shape, coalesced=tensor.is_coalesced())
    result: torch.Tensor = aten._sparse_csr_tensor_unsafe(
        *parts, list(tensor.shape), layout=tensor.layout
    )
    return result


def coo_without_values(size: Any, indices: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A sparse meta tensor of unknown values, which keeps the indices it was made of alive."""
    twin = indices
    if not is_meta(indices):
        twin = torch.empty(indices.shape, dtype=indices.dtype, device=_META)
        twin.stands_for = indices
    return make_coo(twin, values, size)


def _new_like(
    tensor: torch.Tensor, count: int | None = None, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """New indices and values; as many as the tensor has unless `count` says otherwise."""
    indices, values = inner_tensors(tensor)
    count = indices.size(1) if count is None else count
    return make_coo(
        torch.empty((indices.size(0), count), dtype=indices.dtype, device=_META),
        torch.empty((count, *values.shape[1:]), dtype=dtype or values.dtype, device=_META),
        tensor.shape,
        coalesced=tensor.is_coalesced(),
    )


def _coalesce(tensor: torch.Tensor) -> torch.Tensor:
    indices, _ = inner_tensors(tensor)
    positions = math.prod(tensor.shape[: indices.size(0)])
    return _new_like(tensor, min(indices.size(1), positions))._coalesced_(True)


def _mask(tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return _new_like(mask, dtype=tensor.dtype)


def _add(one: torch.Tensor, other: torch.Tensor, alpha: Any = 1) -> torch.Tensor:
    if one.layout == torch.strided:
        return torch.empty_like(one, device=_META)
    if other.layout == torch.strided:
        return torch.empty_like(other, device=_META)
    count = _count_indices(one) + _count_indices(other)
    return _new_like(one, count)


def _count_indices(tensor: torch.Tensor) -> int:
    return int(inner_tensors(tensor)[0].size(1))


def _add_in_place(one: torch.Tensor, other: torch.Tensor, alpha: Any = 1) -> torch.Tensor:
    """The indices of a second sparse tensor are appended to those of the first."""
    if one.layout == torch.strided:
        return one
    result: torch.Tensor = aten.copy_sparse_to_sparse_(one, _add(one, other))
    return result


def _elementwise(one: Any, other: Any = None, **options: Any) -> torch.Tensor:
    """A function of each value, or a product with a dense tensor where the sparse one has values."""
    one_is_sparse = isinstance(one, torch.Tensor) and one.layout != torch.strided
    return _new_like(one if one_is_sparse else other)


def _clone(tensor: torch.Tensor, memory_format: Any = None) -> torch.Tensor:
    return _new_like(tensor)


def _to_dense(
    tensor: torch.Tensor, dtype: torch.dtype | None = None, masked_grad: Any = None
) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=dtype or tensor.dtype, device=_META)


def _matmul(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return torch.empty((*one.shape[:-1], other.size(-1)), dtype=one.dtype, device=_META)


def _addmm(addend: Any, one: torch.Tensor, other: torch.Tensor, **scales: Any) -> torch.Tensor:
    return _matmul(one, other)


def _return_first(tensor: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
    return tensor


RULES: dict[str, Rule] = {
    "aten::_coalesce": _coalesce,
    "aten::sparse_mask": _mask,
    "aten::add": _add,
    "aten::add_": _add_in_place,
    "aten::zero_": _return_first,
    "aten::clone": _clone,
    "aten::_to_dense": _to_dense,
    "aten::mm": _matmul,
    "aten::bmm": _matmul,
    "aten::_sparse_mm": _matmul,
    "aten::addmm": _addmm,
    "aten::_sparse_addmm": _addmm,
    **{f"aten::{op}": _elementwise for op in ("mul", "div", "neg", "sqrt", "pow", "abs", "sign")},
    **{f"aten::{op}_": _return_first for op in ("mul", "div", "neg", "sqrt", "pow")},
}
