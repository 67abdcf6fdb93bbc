"""The virtual GPU: CUDA training scripts on a machine without a GPU, every storage billed."""

from __future__ import annotations

from vramcast.virtual.gpu import VirtualGpu, virtual_gpu
from vramcast.virtual.step import trace_step

__all__ = ["VirtualGpu", "trace_step", "virtual_gpu"]
