"""Where segments come from: the part of CUDA that the allocator calls.

`Driver` is what the allocator needs; `SimulatedDriver` is a card of a given size. A replay has its own driver that
returns the addresses of a recorded run. In: sizes. Out: addresses, or None. Does not know blocks.
"""

from __future__ import annotations

from typing import Protocol

from vramcast.allocator.constants import (
    EXPANDABLE_SPACE_DENOMINATOR,
    EXPANDABLE_SPACE_NUMERATOR,
    SEGMENT_ROUNDING_BYTES,
    UNKNOWN_CARD_BYTES,
)
from vramcast.units import round_up

_FIRST_ADDRESS = 0x7F00_0000_0000  # where CUDA puts device memory in a 64-bit process; any multiple of 2 MiB would do


class Driver(Protocol):
    """cudaMalloc, cudaFree, cudaMemGetInfo and the virtual memory calls, as far as the allocator uses them."""

    def malloc(self, nbytes: int) -> int | None:
        """The address of a new segment, or None: out of memory."""

    def free(self, address: int, nbytes: int) -> None: ...

    def reserve_addresses(self, page_bytes: int) -> tuple[int, int]:
        """Base and length of the addresses of a new expandable segment."""

    def map(self, address: int, nbytes: int) -> bool:
        """Back addresses with memory; False: out of memory."""

    def unmap(self, address: int, nbytes: int) -> None: ...

    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes of the card."""


class SimulatedDriver:
    """A card of `capacity_bytes`, of which `taken_bytes` are gone before the allocator gets any. None: endless."""

    __slots__ = ("_next_address", "_used_bytes", "capacity_bytes", "taken_bytes")

    def __init__(
        self, capacity_bytes: int | None, taken_bytes: int = 0, first_address: int = _FIRST_ADDRESS
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.taken_bytes = taken_bytes
        self._used_bytes = 0
        self._next_address = first_address

    def malloc(self, nbytes: int) -> int | None:
        return self._new_addresses(nbytes) if self._take(nbytes) else None

    def free(self, address: int, nbytes: int) -> None:
        self._used_bytes -= nbytes

    def reserve_addresses(self, page_bytes: int) -> tuple[int, int]:
        card_bytes = self.capacity_bytes or UNKNOWN_CARD_BYTES
        space = round_up(
            card_bytes * EXPANDABLE_SPACE_NUMERATOR // EXPANDABLE_SPACE_DENOMINATOR, page_bytes
        )
        return self._new_addresses(space), space

    def map(self, address: int, nbytes: int) -> bool:
        return self._take(nbytes)

    def unmap(self, address: int, nbytes: int) -> None:
        self._used_bytes -= nbytes

    def memory_info(self) -> tuple[int, int]:
        total = self.capacity_bytes or UNKNOWN_CARD_BYTES
        return max(0, total - self.taken_bytes - self._used_bytes), total

    def _take(self, nbytes: int) -> bool:
        if (
            self.capacity_bytes is not None
            and nbytes > self.capacity_bytes - self.taken_bytes - self._used_bytes
        ):
            return False
        self._used_bytes += nbytes
        return True

    def _new_addresses(self, nbytes: int) -> int:
        address = self._next_address
        self._next_address += round_up(nbytes, SEGMENT_ROUNDING_BYTES)
        return address
