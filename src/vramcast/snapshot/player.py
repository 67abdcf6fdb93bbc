"""Recorded events -> calls of an allocator, keeping track of which block belongs to which recorded address."""

from __future__ import annotations

from vramcast.allocator import Allocator, AllocatorSettings, Block, PoolId
from vramcast.allocator.block import ALLOCATED, PENDING
from vramcast.snapshot.history import History
from vramcast.snapshot.layout import Layout
from vramcast.snapshot.record import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    NO_POOL,
    SEGMENT_FREE,
    SEGMENT_UNMAP,
    Row,
    Trace,
)


class Player:
    """Plays requests and frees; what else was recorded is for others to heed."""

    def __init__(
        self, allocator: Allocator, trace: Trace, live: dict[int, Block], end: Layout
    ) -> None:
        self.allocator = allocator
        self.live = live
        self._trace = trace
        self._end = end
        self._frees_at_once = not (trace.records(FREE_COMPLETED) and trace.records(FREE_REQUESTED))

    def play(self, row: Row) -> None:
        action, _, _, _, address, nbytes, _ = row
        if action == ALLOC:
            self.complete_free(address)  # a recording can lack a free
            self.live[address] = self.malloc(address, nbytes, self.stream(row), self.pool(row))
        elif action == FREE_REQUESTED:
            self.request_free(address)
            if self._frees_at_once:
                self.complete_free(address)
        elif action == FREE_COMPLETED:
            self.complete_free(address)

    def malloc(self, address: int, nbytes: int, stream: int, pool: PoolId) -> Block:
        return self.allocator.malloc(nbytes, stream, pool)

    def request_free(self, address: int) -> None:
        block = self.live.get(address)
        if block is not None and block.state == ALLOCATED:
            self.allocator.request_free(block)

    def complete_free(self, address: int) -> None:
        block = self.live.pop(address, None)
        if block is not None:
            if block.state == ALLOCATED:
                self.allocator.request_free(block)
            self.allocator.complete_free(block)

    def stream(self, row: Row) -> int:
        return self._trace.streams[row[3]]

    def pool(self, row: Row) -> PoolId:
        return self._trace.pools[row[2]] if row[2] != NO_POOL else self._end.pool_at(row[4])


def play_from_empty(history: History, settings: AllocatorSettings) -> Allocator:
    """All requests under other settings. What lived at the start is requested first, by address, since its order was
    not recorded; where torch gave memory back, the whole cache is given back."""
    allocator = Allocator(settings=settings)
    player = Player(allocator, history.trace, {}, history.end)
    for segment in history.start.held():
        for block in segment.blocks:
            player.live[block.address] = allocator.malloc(
                block.requested, segment.stream, segment.pool
            )
            if block.state == PENDING:
                allocator.request_free(player.live[block.address])
    allocator.reset_peak()
    releasing = False
    for row in history.trace:
        was_releasing, releasing = releasing, row[0] in (SEGMENT_FREE, SEGMENT_UNMAP)
        if releasing and not was_releasing:
            allocator.segments.release_cached()
        player.play(row)
    allocator.check()
    return allocator
