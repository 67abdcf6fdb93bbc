"""Fast `malloc` and `free` for replays, which call them millions of times: default pool, allocated bytes only.

In: an Allocator. Out: two functions that make the same decisions as its methods, with every call written out (a call
costs a tenth of a `malloc`), if its settings neither limit splitting nor collect garbage; else its own methods. New
segments are taken by the Allocator. Does not keep `requested` bytes or any other statistics. The two functions are
longer than others for this reason; a test holds them against `core` on random streams.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable

from vramcast.allocator.block import ALLOCATED, FREE, Block
from vramcast.allocator.constants import SMALL_REQUEST_MAX_BYTES
from vramcast.allocator.core import ROUNDING, Allocator
from vramcast.errors import InvariantError

Malloc = Callable[..., Block]  # bytes, and a stream if it is not the main one
Free = Callable[[Block], None]
KEPT = ~ROUNDING


def fast_calls(allocator: Allocator) -> tuple[Malloc, Free]:
    settings = allocator.settings
    if settings.max_split_bytes is not None or settings.garbage_collection_threshold:
        return allocator.malloc, allocator.free
    spare: list[Block] = []  # merged into their neighbours, to be used again
    return _malloc(allocator, spare), _free(allocator, spare)


def _malloc(allocator: Allocator, spare: list[Block]) -> Malloc:
    tally = allocator.segments.all
    small, large = allocator.segments.default_small, allocator.segments.default_large
    small_free, large_free = small.free, large.free
    expands, rounds_plainly = allocator.settings.expandable_segments, allocator.rounds_plainly
    small_min_rest, large_min_rest = small.min_rest, large.min_rest

    def malloc(requested_bytes: int, stream: int = 0) -> Block:
        size = (requested_bytes + ROUNDING) & KEPT
        if not rounds_plainly:
            size = allocator.rounded(requested_bytes)
        if size <= SMALL_REQUEST_MAX_BYTES:
            pool, min_rest, keys = small, small_min_rest, small_free.get(stream)
        else:
            pool, min_rest, keys = large, large_min_rest, large_free.get(stream)
        index = bisect_left(keys, (size,)) if keys else 0
        if not keys or index == len(keys):
            block = allocator.take(pool, size, stream, requested_bytes)
            return allocator.hand_out(block, size, requested_bytes)
        if expands and index + 1 < len(keys):
            following = keys[index][2].next
            if following is not None and not following.mapped:
                # The block can grow: another one that fits may have less room to grow.
                index = allocator.among_expandable(pool, stream, index)
        whole_size, address, block = keys.pop(index)
        rest = whole_size - size
        if rest >= min_rest:
            whole, before = block, block.prev
            if spare:
                block = spare.pop()
                block.address = address
                block.size = size
                block.stream = stream
                block.pool = pool
            else:
                block = Block(address, size, stream, pool)
            block.expandable = whole.expandable
            block.prev = before
            block.next = whole
            whole.prev = block
            if before is not None:
                before.next = block
            whole.address = address = address + size
            whole.size = rest
            insort(keys, (rest, address, whole))
        else:
            size = whole_size
        block.state = ALLOCATED
        tally.allocated_bytes = value = tally.allocated_bytes + size
        if value > tally.peak_allocated_bytes:
            tally.peak_allocated_bytes = value
        return block

    return malloc


def _free(allocator: Allocator, spare: list[Block]) -> Free:
    tally = allocator.segments.all

    def free(block: Block) -> None:
        if block.state != ALLOCATED:
            raise InvariantError(f"{block} is not allocated")
        if block.stream_uses:
            return allocator.free(block)
        size, address, before, after = block.size, block.address, block.prev, block.next
        tally.allocated_bytes -= size
        block.state = FREE
        keys = block.pool.free.get(block.stream)
        if keys is None:
            keys = block.pool.free[block.stream] = []
        if before is not None and before.state == FREE and before.mapped:
            del keys[bisect_left(keys, (before.size, before.address))]
            spare.append(before)
            block.address = address = before.address
            size += before.size
            block.prev = before = before.prev
            if before is not None:
                before.next = block
        if after is not None and after.state == FREE and after.mapped:
            del keys[bisect_left(keys, (after.size, after.address))]
            spare.append(after)
            size += after.size
            block.next = after = after.next
            if after is not None:
                after.prev = block
        block.size = size
        insort(keys, (size, address, block))

    return free
