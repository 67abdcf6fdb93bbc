"""What happened, event by event, at the recorded addresses: bytes, peaks, and the state at any event.

Takes a Snapshot and a device. The allocator's choices are taken from the recording, not made here (see `replay` for
that); only the size of a block is worked out, from the room there was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vramcast.allocator import Allocator
from vramcast.allocator.block import ALLOCATED, PENDING
from vramcast.snapshot.layout import Layout, LiveBlock
from vramcast.snapshot.record import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    Row,
    Snapshot,
    Trace,
)
from vramcast.snapshot.rewind import end_layout, rewind, span_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Byte counts after event `index`; -1 is the start of the recording."""

    index: int
    time_us: int
    allocated_bytes: int
    active_bytes: int
    requested_bytes: int
    reserved_bytes: int


class Walk:
    """A layout that follows the events forward and keeps count."""

    def __init__(
        self, layout: Layout, trace: Trace, rules: Allocator, lasting: frozenset[int]
    ) -> None:
        self.layout = layout
        self._lasting = lasting
        self._trace = trace
        self._rules = rules
        self._frees_at_once = not (trace.records(FREE_COMPLETED) and trace.records(FREE_REQUESTED))
        self.index = -1
        self.time_us = trace[0][6] if len(trace) else 0
        blocks = layout.blocks.values()
        self.allocated_bytes = sum(block.size or 0 for block in blocks if block.state == ALLOCATED)
        self.active_bytes = sum(block.size or 0 for block in blocks)
        self.requested_bytes = sum(block.requested for block in blocks)
        self.reserved_bytes = layout.reserved_bytes()
        self.unexplained = (
            0  # events that contradict the state, for instance a free of a block that is not there
        )
        self.changed: LiveBlock | None = (
            None  # the block whose allocated bytes the last event changed
        )
        self.change_bytes = 0

    def moment(self) -> Moment:
        return Moment(
            index=self.index,
            time_us=self.time_us,
            allocated_bytes=self.allocated_bytes,
            active_bytes=self.active_bytes,
            requested_bytes=self.requested_bytes,
            reserved_bytes=self.reserved_bytes,
        )

    def step(self, row: Row) -> None:
        action, _, _, _, address, nbytes, time_us = row
        self.index += 1
        self.time_us = time_us
        self.changed = None
        if action == ALLOC:
            self._alloc(row)
        elif action == FREE_REQUESTED:
            self._request_free(address)
            if self._frees_at_once:
                self._complete_free(address)
        elif action == FREE_COMPLETED:
            self._complete_free(address)
        elif action in (SEGMENT_ALLOC, SEGMENT_MAP):
            if self.layout.add_span(span_of(row, self._trace)):
                self.reserved_bytes += nbytes
            else:
                self.unexplained += 1
        elif action in (SEGMENT_FREE, SEGMENT_UNMAP):
            if self.layout.remove_span(address, address + nbytes):
                self.reserved_bytes -= nbytes
            else:
                self.unexplained += 1

    def _alloc(self, row: Row) -> None:
        _, stack, _, _, address, nbytes, _ = row
        size, room = self._rules.rounded(nbytes), self.layout.room_at(address)
        if room is None or room < size or address in self.layout.blocks:
            self.unexplained += 1
            self._complete_free(address)
        else:
            span = self.layout.span_at(address)
            assert span is not None
            pool = self._rules.segments.pool_for(span.pool, span.is_small)
            size = size if self._rules.splits(pool, size, room - size) else room
        block = LiveBlock(address, nbytes, size, ALLOCATED, stack, self.index)
        block.lasts = self.index in self._lasting
        self.layout.add_block(block)
        self._count(block, size)
        self.active_bytes += size
        self.requested_bytes += nbytes

    def _request_free(self, address: int) -> None:
        block = self.layout.blocks.get(address)
        if block is None or block.state != ALLOCATED:
            self.unexplained += 1
            return
        block.state = PENDING
        self._count(block, -(block.size or 0))

    def _complete_free(self, address: int) -> None:
        block = self.layout.remove_block(address)
        if block is None:
            return
        if block.state == ALLOCATED:
            self._count(block, -(block.size or 0))
        self.active_bytes -= block.size or 0
        self.requested_bytes -= block.requested

    def _count(self, block: LiveBlock, change_bytes: int) -> None:
        self.changed, self.change_bytes = block, change_bytes
        self.allocated_bytes += change_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The recorded window of one device."""

    trace: Trace
    rules: Allocator
    start: Layout
    end: Layout
    lasting: frozenset[int]  # allocations whose block is still there at the end
    uncertain_blocks: int  # blocks of the start that may have been up to 1 MiB larger than counted

    @classmethod
    def of(cls, snapshot: Snapshot, device: int) -> History:
        rules = Allocator(settings=snapshot.settings)
        start = rewind(snapshot, device, rules)
        return cls(
            trace=snapshot.trace(device),
            rules=rules,
            start=start.layout,
            end=end_layout(snapshot, device),
            lasting=start.lasting,
            uncertain_blocks=start.uncertain_blocks,
        )

    def walk(self) -> Iterator[Walk]:
        """The same Walk again and again: before the first event, then after each."""
        walk = Walk(self.start.copy(), self.trace, self.rules, self.lasting)
        yield walk
        for row in self.trace:
            walk.step(row)
            yield walk

    def state_at(self, index: int) -> Walk:
        """The state after event `index`; -1 is the start."""
        for walk in self.walk():
            if walk.index == index:
                return walk
        raise IndexError(f"event {index} of {len(self.trace)}")
