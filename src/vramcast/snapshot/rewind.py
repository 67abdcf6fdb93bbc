"""The state at the start of the recorded window: the end state with every event taken back.

A block that was freed inside the window left no record of its size, only of what was asked for. Its size is what was
asked for, rounded, plus a remainder that was too small to split off. Where the next block began while it lived tells
which.
"""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.allocator import DEFAULT_POOL, Allocator, PoolId
from vramcast.allocator.block import ALLOCATED, FREE, PENDING
from vramcast.allocator.constants import MIN_BLOCK_BYTES, SMALL_SEGMENT_BYTES
from vramcast.allocator.restore import SpaceKey
from vramcast.snapshot.layout import Layout, LiveBlock, Span
from vramcast.snapshot.record import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    NO_POOL,
    NO_STACK,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    BlockRecord,
    Row,
    Snapshot,
    Trace,
)


def end_layout(snapshot: Snapshot, device: int) -> Layout:
    """What the snapshot itself shows."""
    layout = Layout()
    mapped = {
        row[4] for row in snapshot.trace(device) if row[0] == SEGMENT_MAP
    }  # torch 2.0 does not say is_expandable
    for segment in snapshot.segments_of(device):
        end = segment.address + segment.size
        layout.add_span(
            Span(
                start=segment.address,
                end=end,
                stream=segment.stream,
                is_small=segment.is_small,
                pool=segment.pool,
                is_expandable=segment.is_expandable or segment.address in mapped,
            )
        )
        for block in segment.blocks:
            if block.state != FREE:
                layout.add_block(_at_end(block))
    return layout


def _at_end(record: BlockRecord) -> LiveBlock:
    block = LiveBlock(record.address, record.requested, record.size, record.state, record.stack, -1)
    block.lasts = True
    return block


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The state at the start, with every block size filled in."""

    layout: Layout
    lasting: frozenset[int]  # allocations whose block is there to the end
    uncertain_blocks: int  # blocks that may have been up to 1 MiB larger than counted


def rewind(snapshot: Snapshot, device: int, rules: Allocator) -> Start:
    """`rules` knows how torch rounds and splits."""
    layout, trace = end_layout(snapshot, device), snapshot.trace(device)
    lasting = set()
    for index, row in zip(range(len(trace) - 1, -1, -1), trace.reversed(), strict=True):
        removed = _take_back(layout, row, trace)
        if removed is not None and removed.lasts:
            lasting.add(index)
    uncertain = _find_sizes(layout, trace, rules)
    _drop_contradictions(layout)
    return Start(layout=layout, lasting=frozenset(lasting), uncertain_blocks=uncertain)


def expandable_bases(start: Layout, trace: Trace) -> dict[SpaceKey, int]:
    """The lowest address at which each expandable segment of the start was ever mapped.

    A segment exists as long as any of it is mapped; when all of it is gone, the next one may be anywhere.
    """
    mapped: dict[SpaceKey, int] = {}
    bases: dict[SpaceKey, int] = {}
    for span in start.spans.values():
        if span.is_expandable:
            key = (span.stream, span.pool, span.is_small)
            mapped[key] = mapped.get(key, 0) + span.end - span.start
            bases[key] = min(bases.get(key, span.start), span.start)
    for row in trace if mapped else ():
        if row[0] not in (SEGMENT_MAP, SEGMENT_UNMAP):
            continue
        span = span_of(row, trace)
        key = (span.stream, span.pool, span.is_small)
        if mapped.get(key):
            mapped[key] += span.end - span.start if row[0] == SEGMENT_MAP else span.start - span.end
            bases[key] = min(bases[key], span.start)
    return bases


def span_of(row: Row, trace: Trace) -> Span:
    """The memory that a segment event is about."""
    action, _, _, stream, address, nbytes, _ = row
    expandable = action in (SEGMENT_MAP, SEGMENT_UNMAP)
    return Span(
        start=address,
        end=address + nbytes,
        stream=trace.streams[stream],
        is_small=nbytes == SMALL_SEGMENT_BYTES,  # nothing else is that small
        is_expandable=expandable,
        pool=pool_of(row, trace),
    )


def pool_of(row: Row, trace: Trace) -> PoolId:
    return DEFAULT_POOL if row[2] == NO_POOL else trace.pools[row[2]]


def _take_back(layout: Layout, row: Row, trace: Trace) -> LiveBlock | None:
    """Undo one event; returns the block that an allocation had made."""
    action, _, _, _, address, nbytes, _ = row
    if action == ALLOC:
        return layout.remove_block(address)
    if action == FREE_COMPLETED:
        if address not in layout.blocks:
            layout.add_block(LiveBlock(address, nbytes, None, PENDING, NO_STACK, -1))
    elif action == FREE_REQUESTED:
        if address not in layout.blocks:  # recordings may leave out the other half of a free
            layout.add_block(LiveBlock(address, nbytes, None, PENDING, NO_STACK, -1))
        layout.blocks[address].state = ALLOCATED
    elif action in (SEGMENT_ALLOC, SEGMENT_MAP):
        layout.remove_span(address, address + nbytes)
    elif action in (SEGMENT_FREE, SEGMENT_UNMAP):
        layout.add_span(span_of(row, trace))
    return None


def _find_sizes(start: Layout, trace: Trace, rules: Allocator) -> int:
    """Give every block of unknown size the size it had; returns how many could have been larger."""
    unknown = {address: block for address, block in start.blocks.items() if block.size is None}
    exact = _seen_ends(start, trace, set(unknown)) if unknown else {}
    uncertain = 0
    for address, block in unknown.items():
        rounded, span = rules.rounded(block.requested), start.span_at(address)
        if address in exact or span is None:
            block.size = max(rounded, exact.get(address, address) - address)
            continue
        room = start.room_at(address) or rounded
        pool = rules.segments.pool_for(span.pool, span.is_small)
        block.size = rounded if rules.splits(pool, rounded, room - rounded) else room
        # A free block follows: what it began as, and so where this one ended, was not seen.
        uncertain += room > block.size and not rules.splits(pool, rounded, MIN_BLOCK_BYTES)
    return uncertain


def _drop_contradictions(start: Layout) -> None:
    """Where events are missing, blocks can lie outside all memory or reach into one another; the walk reports it."""
    for address in sorted(start.blocks):
        room = start.room_at(address)
        if room is None:
            start.remove_block(address)
        else:
            block = start.blocks[address]
            block.size = min(block.size or 0, room)


def _seen_ends(start: Layout, trace: Trace, unknown: set[int]) -> dict[int, int]:
    """Ends given away by allocations: a new block starts where the block before it ends."""
    layout, exact = start.copy(), {}
    for row in trace:
        action, _, _, _, address, nbytes, _ = row
        if action == ALLOC:
            before = layout.block_before(address)
            if before is not None and before.address in unknown:
                exact[before.address] = address
                unknown.discard(before.address)
            if address not in layout.blocks:
                layout.add_block(LiveBlock(address, nbytes, None, ALLOCATED, NO_STACK, 0))
        elif action == FREE_COMPLETED:
            layout.remove_block(address)
            unknown.discard(address)
        elif action in (SEGMENT_ALLOC, SEGMENT_MAP):
            layout.add_span(span_of(row, trace))
        elif action in (SEGMENT_FREE, SEGMENT_UNMAP):
            layout.remove_span(address, address + nbytes)
        if not unknown:
            break
    return exact
