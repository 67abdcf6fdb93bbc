"""Ops for which torch has no meta function: what they return is found by running the CPU's kernel on zeros.

In come the arguments of an op, out comes its result without data. Known values go in as they are, so sizes that
depend on lengths or counts are true. Does not know ops without a CPU kernel, and refuses inputs too large to make
real.
"""

from __future__ import annotations

from typing import Any

import torch

from vramcast.units import MiB, format_bytes
from vramcast.virtual.accounting.storages import is_meta
from vramcast.virtual.kernels.op_schemas import replace_in_options, replace_tensors, tensors_in

LARGEST_BYTES = 512 * MiB
_META = torch.device("meta")


def says_no_meta_function(error: Exception) -> bool:
    """Ops of torch say so by the class of the error, ops of libraries by torch's words for it."""
    if isinstance(error, NotImplementedError):
        return True
    return "output Tensor with data-dependent shape" in str(error)


def run_on_zeros(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result as meta tensors; an input that the op returns is returned itself."""
    inputs = tensors_in(args, kwargs)
    unknown = [tensor for tensor in inputs if is_meta(tensor)]
    _check_size(func, unknown)
    with torch._C._DisableTorchDispatch():
        zeros = {id(tensor): torch.zeros(tensor.shape, dtype=tensor.dtype) for tensor in unknown}
        result = func(*replace_tensors(tuple(args), zeros), **replace_in_options(kwargs, zeros))
        inputs_of = {id(zeros[id(tensor)]): tensor for tensor in unknown}
        return _drop_values(result, inputs_of)


def _check_size(func: Any, unknown: list[torch.Tensor]) -> None:
    nbytes = sum(tensor.numel() * tensor.element_size() for tensor in unknown)
    if nbytes > LARGEST_BYTES:
        raise NotImplementedError(
            f"{func}: torch cannot tell what it returns without running it, and its inputs are too large for that here "
            f"({format_bytes(nbytes)}). A smaller batch can be traced."
        )


def _drop_values(result: Any, inputs_of: dict[int, torch.Tensor]) -> Any:
    """The result without data; zeros that stood for an input become that input."""
    if isinstance(result, torch.Tensor):
        return inputs_of[id(result)] if id(result) in inputs_of else result.to(_META)
    if isinstance(result, (list, tuple)):
        return type(result)(_drop_values(item, inputs_of) for item in result)
    return result
