"""Sparse COO tensors on virtual devices: gradients of `Embedding(sparse=True)`, adjacency matrices, masks.

In comes a call with a sparse tensor among its inputs, out comes its result, with indices and values billed like any
tensor. A sparse tensor whose values are known is a real one. Otherwise it is a sparse meta tensor, for which torch has
few kernels: what optimizers and products need is written out here. Does not know how many indices of unknown values are
the same: all are taken to differ, as far as the size allows. cuSPARSE's workspaces are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from vramcast.virtual.accounting.storages import inner_tensors, is_meta
from vramcast.virtual.kernels.op_schemas import Op

if TYPE_CHECKING:
    from vramcast.virtual.kernels.dispatch_mode import VirtualMode

aten = torch.ops.aten
_META = torch.device("meta")
Rule = Callable[..., torch.Tensor]


def compute(mode: VirtualMode, func: Any, op: Op, args: Any, kwargs: dict[str, Any], inputs: list[torch.Tensor]) -> Any:
    """An op with a sparse input: the CPU's kernel where all values are known, otherwise a rule."""
    place, _, unknown = mode.survey(op, [part for tensor in inputs for part in parts_of(tensor)])
    if "device" in kwargs:
        kwargs = {name: value for name, value in kwargs.items() if name != "device"}
    if not unknown:
        return mode.run_known(func, op, args, kwargs, place)
    try:
        result = RULES.get(op.name, func)(*args, **kwargs)
    except NotImplementedError:
        raise NotImplementedError(
            f"{op.name} of a sparse tensor whose values are unknown cannot be followed on a virtual device. Trace the "
            "script with dense ones (sparse=False): they take more, so the answer is an upper bound."
        ) from None
    mode.enroll_all(result, place, op.name)
    return result


def parts_of(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (tensor,) if tensor.layout == torch.strided else inner_tensors(tensor)


def made(indices: torch.Tensor, values: torch.Tensor, size: Any, *, coalesced: bool = False) -> torch.Tensor:
    result: torch.Tensor = aten._sparse_coo_tensor_with_dims_and_tensors(
        indices.size(0), values.dim() - 1, list(size), indices, values, dtype=values.dtype, layout=torch.sparse_coo,
        device=values.device, is_coalesced=coalesced,
    )  # fmt: skip
    return result


def rebuilt(tensor: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """A sparse tensor of the same kind with each of its parts changed."""
    parts = [change(part) for part in inner_tensors(tensor)]
    if tensor.layout == torch.sparse_coo:
        return made(parts[0], parts[1], tensor.shape, coalesced=tensor.is_coalesced())
    result: torch.Tensor = aten._sparse_csr_tensor_unsafe(*parts, list(tensor.shape), layout=tensor.layout)
    return result


def of_parts(size: Any, indices: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A sparse meta tensor of values that are unknown; the indices it was made of live as long as it does."""
    twin = indices
    if not is_meta(indices):
        twin = torch.empty(indices.shape, dtype=indices.dtype, device=_META)
        twin.stands_for = indices
    return made(twin, values, size)


def _alike(tensor: torch.Tensor, count: int | None = None, dtype: torch.dtype | None = None) -> torch.Tensor:
    """New indices and values of the same kind."""
    indices, values = inner_tensors(tensor)
    count = indices.size(1) if count is None else count
    return made(
        torch.empty((indices.size(0), count), dtype=indices.dtype, device=_META),
        torch.empty((count, *values.shape[1:]), dtype=dtype or values.dtype, device=_META),
        tensor.shape,
        coalesced=tensor.is_coalesced(),
    )


def _coalesce(tensor: torch.Tensor) -> torch.Tensor:
    indices, _ = inner_tensors(tensor)
    result = _alike(tensor, min(indices.size(1), math.prod(tensor.shape[: indices.size(0)])))
    return result._coalesced_(True)


def _masked(tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return _alike(mask, dtype=tensor.dtype)


def _sum(one: torch.Tensor, other: torch.Tensor, alpha: Any = 1) -> torch.Tensor:
    if one.layout == torch.strided:
        return torch.empty_like(one, device=_META)
    if other.layout == torch.strided:
        return torch.empty_like(other, device=_META)
    return _alike(one, sum(inner_tensors(tensor)[0].size(1) for tensor in (one, other)))


def _grown(one: torch.Tensor, other: torch.Tensor, alpha: Any = 1) -> torch.Tensor:
    """In place; the indices of a second sparse tensor are laid beside those of the first."""
    if one.layout == torch.strided:
        return one
    result: torch.Tensor = aten.copy_sparse_to_sparse_(one, _sum(one, other))
    return result


def _one_of(one: Any, other: Any = None, **options: Any) -> torch.Tensor:
    """A number for every value, or a product with a dense tensor where the sparse one has values."""
    tensor = one if isinstance(one, torch.Tensor) and one.layout != torch.strided else other
    return _alike(tensor)


def _dense(tensor: torch.Tensor, dtype: torch.dtype | None = None, masked_grad: Any = None) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=dtype or tensor.dtype, device=_META)


def _product(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return torch.empty((*one.shape[:-1], other.size(-1)), dtype=one.dtype, device=_META)


def _sum_and_product(addend: Any, one: torch.Tensor, other: torch.Tensor, **scales: Any) -> torch.Tensor:
    return _product(one, other)


def _itself(tensor: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
    return tensor


RULES: dict[str, Rule] = {
    "aten::_coalesce": _coalesce,
    "aten::sparse_mask": _masked,
    "aten::add": _sum,
    "aten::add_": _grown,
    "aten::zero_": _itself,
    "aten::clone": lambda tensor, memory_format=None: _alike(tensor),
    "aten::_to_dense": _dense,
    "aten::mm": _product,
    "aten::bmm": _product,
    "aten::_sparse_mm": _product,
    "aten::addmm": _sum_and_product,
    "aten::_sparse_addmm": _sum_and_product,
    **{f"aten::{name}": _one_of for name in ("mul", "div", "neg", "sqrt", "pow", "abs", "sign")},
    **{f"aten::{name}_": _itself for name in ("mul", "div", "neg", "sqrt", "pow")},
}
