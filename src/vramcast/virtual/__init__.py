"""The virtual GPU: CUDA training scripts on a machine without a GPU, every storage billed."""

from __future__ import annotations

from vramcast.virtual.gpu import VirtualGpu, virtual_gpu

__all__ = ["VirtualGpu", "virtual_gpu"]
