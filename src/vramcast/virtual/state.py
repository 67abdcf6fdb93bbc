"""The virtual GPU as the patches of torch see it: the cards, the kernels, and the dispatch mode that every op passes.

Patches only need this; `gpu` builds on it, installs them all and is what users enter.
"""

from __future__ import annotations

from contextlib import ExitStack

from vramcast.catalog.gpus import Gpu
from vramcast.virtual.accounting.cards import Cards
from vramcast.virtual.kernels.cuda_kernels import Kernels
from vramcast.virtual.kernels.dispatch_mode import VirtualMode


class GpuState(Cards):
    def __init__(
        self, card: Gpu, *, count: int = 1, cuda_kernels: bool = True, steps: int | None = None
    ) -> None:
        super().__init__(card, count)
        self.kernels = Kernels(self, cuda=cuda_kernels)
        self.mode = VirtualMode(self, self.kernels)
        self.step_limit = steps
        self.exit = ExitStack()  # what is undone when the context is left
