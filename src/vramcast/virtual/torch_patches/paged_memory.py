"""Unified memory for bitsandbytes' paged optimizers: outside torch's allocator, moved by the driver: here nowhere.

bitsandbytes asks the driver for it by ctypes. A script may import it at any time, so its functions are exchanged when
an optimizer steps for the first time; states are made then.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from vramcast.virtual.accounting.storages import NOWHERE

if TYPE_CHECKING:
    from vramcast.patches import Patches
    from vramcast.virtual.gpu import VirtualGpu


def serve(gpu: VirtualGpu, patches: Patches) -> None:
    """Does nothing before bitsandbytes is imported, nor a second time."""
    functional = sys.modules.get("bitsandbytes.functional")
    if functional is None or functional.get_paged.__module__ != functional.__name__:
        return

    def nowhere(*shape: int, dtype: torch.dtype = torch.float32, device: Any = None) -> torch.Tensor:
        gpu.mode.target = NOWHERE  # said so, because inside backward a bare meta tensor is torch's own, on the card
        try:
            made = torch.empty(shape, dtype=dtype, device="meta")
        finally:
            gpu.mode.target = None
        made.is_paged, made.page_deviceid = True, getattr(device, "index", 0)
        gpu.note("states of bitsandbytes' paged optimizer are unified memory, outside torch's counters")
        return made

    patches.set(functional, "get_paged", nowhere)
    for name in ("fill", "prefetch_tensor"):
        patches.set(functional, name, lambda *args, **kwargs: None)
