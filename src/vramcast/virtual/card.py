"""One virtual card's memory, handed out as torch's caching allocator would."""

from __future__ import annotations

import os
from dataclasses import dataclass

from vramcast.allocator import Allocator, AllocatorSettings, Block
from vramcast.units import GiB, MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    name: str
    total_bytes: int
    compute_capability: tuple[int, int]
    context_bytes: int
    sm_count: int | None = None


class CardMemory:
    """The allocator of one device, on whatever stream is current."""

    def __init__(self, card: Card, index: int, settings: AllocatorSettings) -> None:
        self.allocator = Allocator(card.total_bytes, settings, index, context_bytes=card.context_bytes)
        self.stream = 0

    @property
    def allocated_bytes(self) -> int:
        return self.allocator.allocated_bytes

    @property
    def reserved_bytes(self) -> int:
        return self.allocator.reserved_bytes

    def malloc(self, nbytes: int) -> tuple[object, int]:
        if nbytes == 0:
            return None, 0
        block = self.allocator.malloc(nbytes, self.stream)
        return block, block.size

    def free(self, block: object) -> None:
        if isinstance(block, Block):
            self.allocator.free(block)


def allocator_settings() -> AllocatorSettings:
    """What the environment tells torch's allocator; the newer name wins."""
    text = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    return AllocatorSettings.parse(text)


def find_card(name: str) -> Card:
    return Card(name=name, total_bytes=8000 * GiB, compute_capability=(8, 0), context_bytes=414 * MiB)
