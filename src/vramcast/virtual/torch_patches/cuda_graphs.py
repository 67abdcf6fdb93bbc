"""CUDA graphs: what is captured runs once, on a private pool, as torch does it; a replay allocates nothing.

Comes in: `torch.cuda.CUDAGraph`, `torch.cuda.graph`, `make_graphed_callables`. Not known: the driver's own memory for
an instantiated graph, which is outside torch.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from vramcast.allocator import DEFAULT_POOL, PoolId

if TYPE_CHECKING:
    from vramcast.patches import Patches
    from vramcast.virtual.gpu import VirtualGpu

_NOTE = "CUDA graphs: the captured ops are billed once, in a private pool; the driver's memory for a graph is not known"


def install(gpu: VirtualGpu, patches: Patches) -> None:
    handles = count(1)
    kind = type("CUDAGraph", (VirtualGraph,), {"gpu": gpu, "handles": handles})
    for owner in (torch.cuda, torch.cuda.graphs):
        patches.set(owner, "CUDAGraph", kind)
        patches.set(owner, "graph_pool_handle", lambda: (0, next(handles)))
        patches.set(owner, "is_current_stream_capturing", lambda: _here(gpu).pool != DEFAULT_POOL)
    patches.set(torch.cuda.graph, "default_capture_stream", None)  # torch keeps the first one for good
    patches.set(torch._C, "_host_emptyCache", lambda: None)


def _here(gpu: VirtualGpu) -> Any:
    return gpu.memories[gpu.current_index]


class VirtualGraph:
    gpu: ClassVar[VirtualGpu]
    handles: ClassVar[count[int]]

    def __init__(self, keep_graph: bool = False) -> None:
        self._pool: PoolId | None = None
        self._memory: Any = None

    def capture_begin(self, pool: PoolId | None = None, capture_error_mode: str = "global", **options: Any) -> None:
        self.gpu.notes.setdefault(_NOTE, 1)
        self._pool = pool or (0, next(self.handles))
        self._memory = _here(self.gpu)
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
