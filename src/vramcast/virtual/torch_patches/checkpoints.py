"""torch.save and torch.load without weights: what was saved is remembered and given back, on the device asked for.

In come objects and file names, out come placeholders and the same objects with new tensors. Virtual tensors have
nothing to write: the file is a placeholder with a number, under which the content is remembered, so a copied or
renamed file still is that checkpoint. Files go where the sandbox leads them, not over real ones. Does not know
checkpoints of an earlier run: their placeholders are refused.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from vramcast.ledger import SAVE
from vramcast.patches import Patches
from vramcast.virtual.kernels.unknown_values import has_values
from vramcast.virtual.state import GpuState

MARK = b"vramcast: a virtual checkpoint without weights, number "
_HEAD_BYTES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTensor:
    """A tensor as it was when it was saved."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    trains: bool
    is_parameter: bool
    values: torch.Tensor | None  # of small host tensors: counters, states of generators


def install(gpu: GpuState, patches: Patches) -> Checkpoints:
    checkpoints = Checkpoints(gpu, torch.load)
    patches.set(torch, "save", checkpoints.save)
    patches.set(torch, "load", checkpoints.load)
    return checkpoints


class Checkpoints:
    """The checkpoints of this run, by their number."""

    def __init__(self, gpu: GpuState, true_load: Callable[..., Any]) -> None:
        self._gpu = gpu
        self._true_load = true_load
        self._saved: list[Any] = []

    def save(self, content: Any, file: Any, *args: Any, **kwargs: Any) -> None:
        gpu = self._gpu
        before = gpu.phases.current
        gpu.phases.enter(SAVE)
        gpu.note("torch.save wrote no weights: virtual tensors have no values")
        self._saved.append(_describe(gpu, content))
        placeholder = MARK + b"%d\n" % (len(self._saved) - 1)
        if isinstance(file, (str, os.PathLike)):
            _write(os.path.abspath(file), placeholder)
        else:
            file.write(placeholder)
        gpu.phases.enter(before)

    def load(self, file: Any, map_location: Any = None, **kwargs: Any) -> Any:
        number = self._number(file)
        if number is not None:
            return _make(self._saved[number], map_location)
        content = self._true_load(file, map_location="cpu", **kwargs)
        if map_location is None or callable(map_location):
            return content
        return _move(content, map_location)

    def holds(self, file: Any) -> bool:
        return self._number(file) is not None

    def _number(self, file: Any) -> int | None:
        """Which checkpoint of this run a file is; None for a file with values of its own."""
        if isinstance(file, (str, os.PathLike)):
            head = _head(file) if os.path.isfile(file) else b""
        else:
            head = file.read(_HEAD_BYTES)
            file.seek(-len(head), os.SEEK_CUR)
        if not head.startswith(MARK):
            return None
        number = int(head[len(MARK) :].split(b"\n")[0])
        if number >= len(self._saved):
            raise RuntimeError(
                f"{file} was left by an earlier virtual run and holds no weights. Delete it."
            )
        return number


def _write(path: str, placeholder: bytes) -> None:
    if not os.path.isdir(os.path.dirname(path)):
        raise RuntimeError(f"Parent directory {os.path.dirname(path)} does not exist.")
    with open(path, "wb") as file:
        file.write(placeholder)


def _head(path: str | os.PathLike[str]) -> bytes:
    with open(path, "rb") as file:
        return file.read(_HEAD_BYTES)


def _describe(gpu: GpuState, content: Any) -> Any:
    """The same structure with a description of each tensor in its place."""
    if not isinstance(content, torch.Tensor):
        return _map_items(content, lambda item: _describe(gpu, item))
    known = content.device.type == "cpu" and has_values(gpu, content)
    with torch._C._DisableTorchDispatch():
        values = content.detach().clone() if known else None
    return SavedTensor(
        size=tuple(content.size()),
        stride=tuple(content.stride()),
        dtype=content.dtype,
        device=content.device,
        trains=content.requires_grad,
        is_parameter=isinstance(content, torch.nn.Parameter),
        values=values,
    )


def _make(content: Any, map_location: Any) -> Any:
    """The same structure with a new tensor for each description."""
    if not isinstance(content, SavedTensor):
        return _map_items(content, lambda item: _make(item, map_location))
    device = target_device(content.device, map_location)
    if content.values is not None:
        tensor = content.values.clone().to(device)
    else:
        tensor = torch.empty_strided(
            content.size, content.stride, dtype=content.dtype, device=device
        )
    return torch.nn.Parameter(tensor, content.trains) if content.is_parameter else tensor


def target_device(saved: torch.device, map_location: Any) -> torch.device:
    if map_location is None:
        return saved
    if callable(map_location):
        return torch.device("cpu")  # `lambda storage, location: storage` leaves it on the host
    if isinstance(map_location, dict):
        return torch.device(map_location.get(str(saved), saved))
    return torch.device(map_location)


def _move(content: Any, device: Any) -> Any:
    if isinstance(device, dict):
        device = next(iter(device.values()), "cpu")
    if isinstance(content, torch.Tensor):
        return content.to(device)
    return _map_items(content, lambda item: _move(item, device))


def _map_items(content: Any, change: Callable[[Any], Any]) -> Any:
    """Dicts, lists and tuples with every item changed; subclasses keep their own attributes."""
    if isinstance(content, dict):
        new = copy.copy(content)
        for key, value in content.items():
            new[key] = change(value)
        return new
    if isinstance(content, tuple) and hasattr(content, "_fields"):
        return type(content)(*map(change, content))
    if isinstance(content, (list, tuple)):
        return type(content)(map(change, content))
    return content
