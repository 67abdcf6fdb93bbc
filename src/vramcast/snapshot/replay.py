"""The recorded requests once more, through our own allocator: does it make the choices torch made?

`replay` starts from the reconstructed state and decides everything itself; only the addresses of new segments come from
the recording, because the driver chose them. `replay_with` runs the same requests under other settings.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from vramcast.allocator import Allocator, AllocatorSettings, Block, SimulatedDriver
from vramcast.allocator.block import ALLOCATED, PENDING
from vramcast.allocator.restore import restore
from vramcast.snapshot.history import History
from vramcast.snapshot.record import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    Row,
    Trace,
)
from vramcast.snapshot.rewind import pool_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """How the replay went. `same_address` of `allocations` got the address that torch gave them."""

    allocations: int
    same_address: int
    segments: int
    same_segments: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    end_state_matches: bool
    first_difference: int | None


class RecordedDriver:
    """Hands out the segments of the recording, in its order. Asked for one that is not there, it makes one up."""

    def __init__(self) -> None:
        self.recorded: deque[tuple[int, int]] = deque()
        self.asked = self.matched = 0
        self._made_up = SimulatedDriver(None)

    def malloc(self, nbytes: int) -> int | None:
        self.asked += 1
        if self.recorded and self.recorded[0][1] == nbytes:
            self.matched += 1
            return self.recorded.popleft()[0]
        return self._made_up.malloc(nbytes)

    def free(self, address: int, nbytes: int) -> None:
        pass

    def reserve_addresses(self, page_bytes: int) -> tuple[int, int]:
        base, space = self._made_up.reserve_addresses(page_bytes)
        return (self.recorded[0][0] if self.recorded else base), space

    def map(self, address: int, nbytes: int) -> bool:
        self.asked += 1
        if self.recorded and self.recorded[0] == (address, nbytes):
            self.matched += 1
            self.recorded.popleft()
        return True

    def unmap(self, address: int, nbytes: int) -> None:
        pass

    def memory_info(self) -> tuple[int, int]:
        return self._made_up.memory_info()
