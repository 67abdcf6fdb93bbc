"""Unified memory for bitsandbytes' paged optimizers: outside torch's allocator, so counted nowhere.

In come bitsandbytes' requests for paged tensors, which it makes to the driver by ctypes. A script may import it at any
time, so its functions are patched when an optimizer steps for the first time; states are made then. Does not know how
much of it the driver keeps on the card.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from vramcast.patches import Patches
from vramcast.virtual.accounting.storages import NOWHERE
from vramcast.virtual.state import GpuState


def install_if_imported(gpu: GpuState, patches: Patches) -> None:
    """Does nothing before bitsandbytes is imported, nor a second time."""
    functional = sys.modules.get("bitsandbytes.functional")
    if functional is None or functional.get_paged.__module__ != functional.__name__:
        return

    def nowhere(
        *shape: int, dtype: torch.dtype = torch.float32, device: Any = None
    ) -> torch.Tensor:
        # inside backward, a meta tensor without a target would be torch's own, on the card
        gpu.mode.target = NOWHERE
        try:
            made = torch.empty(shape, dtype=dtype, device="meta")
        finally:
            gpu.mode.target = None
        made.is_paged, made.page_deviceid = True, getattr(device, "index", 0)
        gpu.note(
            "states of bitsandbytes' paged optimizer are unified memory, outside torch's counters"
        )
        return made

    patches.set(functional, "get_paged", nowhere)
    for name in ("fill", "prefetch_tensor"):
        patches.set(functional, name, lambda *args, **kwargs: None)
