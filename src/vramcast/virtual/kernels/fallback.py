"""Ops for which torch has no meta function: what they return is learnt by running the CPU's kernel on zeros.

Known values go in as they are, so sizes that depend on lengths or counts are true. In come the arguments of an op, out
comes its result without data. Does not know ops without a CPU kernel, and refuses inputs too large to make real.
"""

from __future__ import annotations

from typing import Any

import torch

from vramcast.units import MiB, format_bytes
from vramcast.virtual.accounting.storages import is_meta
from vramcast.virtual.kernels.op_schemas import replaced, tensors_in

LARGEST_BYTES = 512 * MiB
_META = torch.device("meta")


def without_shape(error: Exception) -> bool:
    """Whether an op says so: torch's own by the kind of the error, those of libraries by torch's words for them."""
    return isinstance(error, NotImplementedError) or "output Tensor with data-dependent shape" in str(error)


def run_on_zeros(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result as meta tensors; an input that the op returns is returned itself."""
    inputs = tensors_in(args, kwargs)
    unknown = [tensor for tensor in inputs if is_meta(tensor)]
    _check(func, unknown)
    with torch._C._DisableTorchDispatch():
        zeros = {id(tensor): torch.zeros(tensor.shape, dtype=tensor.dtype) for tensor in unknown}
        plain = {name: replaced(value, zeros) for name, value in kwargs.items()}
        result = func(*replaced(tuple(args), zeros), **plain)
        owners = {id(zeros[id(tensor)]): tensor for tensor in unknown}
        return _without_values(result, owners)


def _check(func: Any, unknown: list[torch.Tensor]) -> None:
    nbytes = sum(tensor.numel() * tensor.element_size() for tensor in unknown)
    if nbytes > LARGEST_BYTES:
        raise NotImplementedError(
            f"{func}: torch cannot tell what it returns without running it, and its inputs are too large for that here "
            f"({format_bytes(nbytes)}). A smaller batch can be traced."
        )


def _without_values(result: Any, owners: dict[int, torch.Tensor]) -> Any:
    if isinstance(result, torch.Tensor):
        return owners[id(result)] if id(result) in owners else result.to(_META)
    if isinstance(result, (list, tuple)):
        return type(result)(_without_values(item, owners) for item in result)
    return result
