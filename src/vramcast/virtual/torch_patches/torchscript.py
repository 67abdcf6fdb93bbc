"""TorchScript: scripts and traces run op by op in torch's own interpreter; what a script saves it can load again.

In come modules and file names. The compiler knows torch's functions by identity, so the patched ones are named to it as
well. Files written by `torch.jit.save` would hold weights, and there are none: see `checkpoints`. Does not know fused
kernels.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.jit import _builtins

from vramcast.patches import Patches
from vramcast.virtual.state import GpuState
from vramcast.virtual.torch_patches.checkpoints import Checkpoints, target_device

_ScriptModule = torch.jit.RecursiveScriptModule


def install(checkpoints: Checkpoints, patches: Patches) -> None:
    true_load = torch.jit.load

    def load(file: Any, map_location: Any = None, **kwargs: Any) -> Any:
        if not checkpoints.holds(file):
            return true_load(file, map_location, **kwargs)
        return _copy_to(checkpoints.load(file), map_location)

    def save(module: Any, file: Any, _extra_files: Any = None) -> None:
        checkpoints.save(module, file)

    patches.set(torch.jit, "load", load)
    patches.set(torch.jit, "save", save)
    patches.set(_ScriptModule, "save", save)


def _copy_to(module: Any, map_location: Any) -> Any:
    """A copy whose tensors are new ones, on the device asked for."""
    with torch.no_grad():
        made = copy.deepcopy(module)
    new_tensors = (*made.parameters(), *made.buffers())
    old_tensors = (*module.parameters(), *module.buffers())
    for new, old in zip(new_tensors, old_tensors, strict=True):
        new.data = torch.empty_like(old, device=target_device(old.device, map_location))
        new.requires_grad_(old.requires_grad)
    return made


def name_replacements(gpu: GpuState, patches: Patches) -> None:
    """Let a patched function compile to the op of the original."""
    table = _builtins._get_builtin_table()
    names = {
        id(new): table[id(old)]
        for old, new in patches.replaced()
        if id(old) in table and id(new) not in table
    }
    table.update(names)
    gpu.exit.callback(lambda: [table.pop(key) for key in names])
