"""One virtual card's memory, handed out as torch's caching allocator would."""

from __future__ import annotations

import os

from vramcast.allocator import DEFAULT_POOL, Allocator, AllocatorSettings, Block, SimulatedDriver
from vramcast.catalog.gpus import Gpu
from vramcast.errors import UnsupportedError

# An anonymous card (`--gpu 24GiB`) is taken for an Ampere one.
DEFAULT_CAPABILITY = (8, 0)


class CardMemory:
    """The allocator of one device, on whatever stream is current."""

    def __init__(self, card: Gpu, index: int, settings: AllocatorSettings) -> None:
        context_bytes = card.context_bytes or 0
        self._driver = SimulatedDriver(card.capacity_bytes(), context_bytes)
        self.allocator = Allocator(
            None, settings, index, context_bytes=context_bytes, driver=self._driver
        )
        self.stream = 0
        self.pool = DEFAULT_POOL  # another one while a CUDA graph is captured

    @property
    def allocated_bytes(self) -> int:
        return self.allocator.allocated_bytes

    @property
    def reserved_bytes(self) -> int:
        return self.allocator.reserved_bytes

    def malloc(self, nbytes: int) -> tuple[object, int]:
        if nbytes == 0:
            return None, 0
        block = self.allocator.malloc(nbytes, self.stream, self.pool)
        return block, block.size

    def lift_limit(self) -> None:
        """From now on the card is as large as it has to be."""
        self._driver.capacity_bytes = None
        self.allocator.set_fraction(1.0)

    def free(self, block: object) -> None:
        if isinstance(block, Block):
            self.allocator.free(block)


def allocator_settings() -> AllocatorSettings:
    """What the environment tells torch's allocator; the newer name wins."""
    text = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    return AllocatorSettings.parse(text)


def check_card(gpu: Gpu) -> None:
    """A card can be virtual if its memory is known and its kernels are CUDA's."""
    gpu.capacity_bytes()
    if gpu.vendor != "nvidia":
        raise UnsupportedError(
            f"{gpu.name}: the virtual GPU knows CUDA's kernels and allocator, not {gpu.vendor}'s. Give an NVIDIA card "
            "or a size such as --gpu 24GiB."
        )
