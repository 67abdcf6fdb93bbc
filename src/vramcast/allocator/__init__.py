"""The CUDA caching allocator of PyTorch, without CUDA and without torch.

Requests and frees in, addresses and statistics out; `Allocator` in `core` is the place to start reading.
"""

from __future__ import annotations

from vramcast.allocator.block import DEFAULT_POOL, Block, BlockPool, PoolId
from vramcast.allocator.core import Allocator
from vramcast.allocator.driver import Driver, SimulatedDriver
from vramcast.allocator.oom import OomMoment, OutOfMemory
from vramcast.allocator.settings import AllocatorSettings

__all__ = [
    "DEFAULT_POOL",
    "Allocator",
    "AllocatorSettings",
    "Block",
    "BlockPool",
    "Driver",
    "OomMoment",
    "OutOfMemory",
    "PoolId",
    "SimulatedDriver",
]
