"""CUDA graphs: what is captured runs once, on a private pool, as torch does it; a replay allocates nothing.

In come `torch.cuda.CUDAGraph`, `torch.cuda.graph` and `make_graphed_callables`. Does not know the driver's own memory
for an instantiated graph, which is outside torch.
"""

from __future__ import annotations

from itertools import count
from typing import Any, ClassVar

import torch

from vramcast.allocator import DEFAULT_POOL, PoolId
from vramcast.patches import Patches
from vramcast.virtual.state import GpuState

_NOTE = "CUDA graphs: the captured ops are counted once, in a private pool; the driver's own memory for it is unknown"


def install(gpu: GpuState, patches: Patches) -> None:
    handles = count(1)
    kind = type("CUDAGraph", (VirtualGraph,), {"gpu": gpu, "handles": handles})
    for owner in (torch.cuda, torch.cuda.graphs):
        patches.set(owner, "CUDAGraph", kind)
        patches.set(owner, "graph_pool_handle", lambda: (0, next(handles)))
        patches.set(
            owner, "is_current_stream_capturing", lambda: _current(gpu).pool != DEFAULT_POOL
        )
    # torch keeps the first stream for good, which would be one of an earlier virtual GPU
    patches.set(torch.cuda.graph, "default_capture_stream", None)
    patches.set(torch._C, "_host_emptyCache", lambda: None)


def _current(gpu: GpuState) -> Any:
    return gpu.memories[gpu.current_index]


class VirtualGraph:
    gpu: ClassVar[GpuState]
    handles: ClassVar[count[int]]

    def __init__(self, keep_graph: bool = False) -> None:
        self._pool: PoolId | None = None
        self._memory: Any = None

    def capture_begin(
        self, pool: PoolId | None = None, capture_error_mode: str = "global", **options: Any
    ) -> None:
        self.gpu.note_once(_NOTE)
        self._pool = pool or (0, next(self.handles))
        self._memory = _current(self.gpu)
        self._memory.pool = self._pool

    def capture_end(self) -> None:
        self._memory.pool = DEFAULT_POOL

    def pool(self) -> PoolId | None:
        return self._pool

    def reset(self) -> None:
        if self._pool is not None:
            self._memory.allocator.release_pool(self._pool)

    def instantiate(self) -> None: ...
    def replay(self) -> None: ...
    def enable_debug_mode(self) -> None: ...
    def debug_dump(self, path: str) -> None: ...

    def __del__(self) -> None:
        self.reset()
