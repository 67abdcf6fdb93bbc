"""Weights that are not on disk, for `--empty-weights`: `torch.load` of a file that is not there, diffusers' models.

In come file names, out come a checkpoint without content, which every model and optimizer accepts as it is, and models
made from their config alone. What loading would hold on the way (the state dict, on the device it was asked for) is
not known, and the report says so. transformers' models are in `libraries`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import torch

from vramcast.patches import Patches
from vramcast.virtual.state import GpuState


class MissingCheckpoint(dict):  # type: ignore[type-arg]
    """The content of a file that is not there: whatever key is asked for, there is another one; as a number it is 0."""

    def __missing__(self, key: Any) -> MissingCheckpoint:
        return MissingCheckpoint()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MissingCheckpoint()

    def __int__(self) -> int:
        return 0

    __index__ = __int__

    def __float__(self) -> float:
        return 0.0

    def __add__(self, other: Any) -> Any:
        return other

    __radd__ = __add__

    def __call__(self, *args: Any, **kwargs: Any) -> MissingCheckpoint:
        return MissingCheckpoint()


def install(gpu: GpuState, patches: Patches) -> None:
    _install_load(gpu, patches)
    _install_state_dicts(patches)
    _install_diffusers(gpu, patches)


def _install_load(gpu: GpuState, patches: Patches) -> None:
    def with_missing(true_load: Callable[..., Any]) -> Callable[..., Any]:
        def load(file: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(file, (str, os.PathLike)) or os.path.exists(file):
                return true_load(file, *args, **kwargs)
            gpu.note(
                f"{os.fspath(file)} is not there: its weights were left out, and what loading them holds"
            )
            return MissingCheckpoint()

        return load

    patches.set(torch, "load", with_missing(torch.load))
    try:
        import safetensors.torch
    except ImportError:
        return
    patches.set(safetensors.torch, "load_file", with_missing(safetensors.torch.load_file))


def _install_state_dicts(patches: Patches) -> None:
    """An empty state dict, of a missing checkpoint or made of one, leaves a model as it is."""
    true_module = torch.nn.Module.load_state_dict
    true_optimizer = torch.optim.Optimizer.load_state_dict

    def load_into_module(module: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
        if not state:
            return torch.nn.modules.module._IncompatibleKeys([], [])
        return true_module(module, state, *args, **kwargs)

    def load_into_optimizer(optimizer: Any, state: Any) -> None:
        if state:
            true_optimizer(optimizer, state)

    patches.set(torch.nn.Module, "load_state_dict", load_into_module)
    patches.set(torch.optim.Optimizer, "load_state_dict", load_into_optimizer)


def _install_diffusers(gpu: GpuState, patches: Patches) -> None:
    try:
        modeling: Any = importlib.import_module("diffusers.models.modeling_utils")
    except (
        Exception
    ):  # not there, or another version than its own dependencies: the script will say so
        return

    def from_pretrained(cls: Any, path: Any, /, **kwargs: Any) -> Any:
        config = cls.load_config(path, subfolder=kwargs.get("subfolder"))
        dtype = kwargs.get("torch_dtype") or torch.float32
        gpu.note(f"{cls.__name__}.from_pretrained({str(path)!r}): empty weights in {dtype}")
        return cls.from_config(config).to(dtype).eval()

    patches.set(modeling.ModelMixin, "from_pretrained", classmethod(from_pretrained))
