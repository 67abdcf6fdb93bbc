"""The virtual GPU as the patches of torch see it: the cards, the kernels, and the dispatch mode that every op passes.

Patches only need this; `gpu` builds on it, installs them all and is what users enter.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from vramcast.catalog.gpus import Gpu
from vramcast.virtual.accounting.cards import Cards
from vramcast.virtual.kernels.cuda_kernels import Kernels
from vramcast.virtual.kernels.dispatch_mode import VirtualMode
from vramcast.virtual.world import World


class GpuState(Cards):
    def __init__(
        self, card: Gpu, *, count: int = 1, cuda_kernels: bool = True, steps: int | None = None
    ) -> None:
        super().__init__(card, count)
        self.kernels = Kernels(self, cuda=cuda_kernels)
        self.mode = VirtualMode(self, self.kernels)
        self.step_limit = steps
        self.world = World()
        self.asked_rank: int | None = None  # as which a launcher's processes are run
        self.made_process_group = False
        self.is_left = False  # the context is over
        self.tracing = False  # a compiled function is being written down as a graph
        self.compiled_plans: dict[Any, Any] = {}  # of compiled functions, by what they depend on
        self.exit = ExitStack()  # what is undone when the context is left
