"""Put models and batches on a device: device names, copies outside the module registry, nested batches.

In: a module and a device in any spelling. Out: a copy whose parameters were made directly on that device, one tensor
at a time, so neither device ever holds a second whole copy. Ties between parameters are kept; any submodule can be
replaced by a stand-in that is not copied at all. Does not know what the copy is for.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from vramcast.errors import InputError, UnsupportedError

M = TypeVar("M", bound=nn.Module)


def normalise_device(spec: int | str | torch.device) -> torch.device:
    """3, "3", "cuda:3" and torch.device("cuda", 3) are one device; "cuda" and "cpu" mean index 0."""
    if isinstance(spec, bool) or not isinstance(spec, (int, str, torch.device)):
        raise InputError(f"{spec!r} is not a device. Write it like 3, '3', 'cuda:3' or 'cpu'.")
    text = str(spec).strip()
    if text.isdigit():
        text = f"cuda:{text}"
    try:
        device = torch.device(text)
    except RuntimeError as error:
        raise InputError(
            f"{spec!r} is not a device. Write it like 3, '3', 'cuda:3' or 'cpu'."
        ) from error
    if device.type == "cpu" and not device.index:
        return torch.device("cpu")  # torch itself never writes cpu:0, and would copy to get there
    return torch.device(device.type, device.index or 0)


def require_available(device: torch.device) -> None:
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        known = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
        raise UnsupportedError(f"{device} is not here. Known: {', '.join([*known, 'cpu'])}.")


def copy_to(
    model: M,
    device: torch.device | None,
    *,
    dtype: torch.dtype | None = None,
    replace: Mapping[nn.Module, nn.Module] | None = None,
    share: bool = False,
) -> M:
    """A frozen copy of the module tree. With `share` it uses the very same tensors and costs no memory."""
    replace = replace or {}
    memo: dict[int, Any] = {id(old): new for old, new in replace.items()}
    skipped = {id(module) for old in replace for module in old.modules()}
    for module in model.modules():
        if id(module) in skipped:
            continue
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            memo.setdefault(id(tensor), tensor if share else _copied(tensor, device, dtype))
    copied: M = copy.deepcopy(model, memo)
    if not share:
        copied.requires_grad_(False)
    return copied


def _copied(tensor: Tensor, device: torch.device | None, dtype: torch.dtype | None) -> Tensor:
    target = dtype if tensor.is_floating_point() else None
    values = tensor.detach().to(device=device, dtype=target, copy=True)
    return nn.Parameter(values, requires_grad=False) if isinstance(tensor, nn.Parameter) else values


def move(batch: Any, device: torch.device) -> Any:
    """Tensors inside dicts, lists, tuples and mapping-like batches on the device; other values as they are."""
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: move(value, device) for key, value in batch.items()}
    if isinstance(getattr(batch, "data", None), Mapping):  # transformers' BatchEncoding
        return move(batch.data, device)
    if isinstance(batch, (list, tuple)):
        values = [move(value, device) for value in batch]
        is_named = isinstance(batch, tuple) and hasattr(batch, "_fields")
        return type(batch)(*values) if is_named else type(batch)(values)
    return batch


def tensor_bytes(tensors: Mapping[str, Tensor] | list[Tensor]) -> int:
    """Bytes behind the tensors, each storage once."""
    values = tensors.values() if isinstance(tensors, Mapping) else tensors
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in values
    }
    return sum(storages.values())


def module_bytes(model: nn.Module) -> int:
    return tensor_bytes([*model.parameters(), *model.buffers()])
