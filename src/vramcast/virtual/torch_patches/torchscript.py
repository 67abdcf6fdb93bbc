"""TorchScript: scripts and traces run op by op in torch's own interpreter; what a script saves it can load again.

The compiler knows torch's functions by identity, so those that stand in their place are named to it as well. Files
written by `torch.jit.save` would hold weights, and there are none: see `checkpoints`. Does not know fused kernels.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch.jit import _builtins

from vramcast.virtual.torch_patches.checkpoints import Checkpoints, target_device

if TYPE_CHECKING:
    from vramcast.patches import Patches
    from vramcast.virtual.gpu import VirtualGpu

_ScriptModule = torch.jit.RecursiveScriptModule


def install(checkpoints: Checkpoints, patches: Patches) -> None:
    true_load = torch.jit.load

    def load(file: Any, map_location: Any = None, **kwargs: Any) -> Any:
        if not checkpoints.holds(file):
            return true_load(file, map_location, **kwargs)
        return _made(checkpoints.load(file), map_location)

    def save(module: Any, file: Any, _extra_files: Any = None) -> None:
        checkpoints.save(module, file)

    patches.set(torch.jit, "load", load)
    patches.set(torch.jit, "save", save)
    patches.set(_ScriptModule, "save", save)


def _made(module: Any, map_location: Any) -> Any:
    """A copy whose tensors are new ones, on the device asked for."""
    with torch.no_grad():
        made = copy.deepcopy(module)
    for new, old in zip((*made.parameters(), *made.buffers()), (*module.parameters(), *module.buffers()), strict=True):
        new.data = torch.empty_like(old, device=target_device(old.device, map_location))
        new.requires_grad_(old.requires_grad)
    return made


def name_replacements(gpu: VirtualGpu, patches: Patches) -> None:
    """What stands in for a function of torch compiles to the same op."""
    table = _builtins._get_builtin_table()
    names = {id(new): table[id(old)] for old, new in patches.replaced() if id(old) in table and id(new) not in table}
    table.update(names)
    gpu.exit.callback(lambda: [table.pop(key) for key in names])
