"""Ask an allocator what it would do, and make it do something else: to compare it with a recording.

In: an Allocator and what a recording says. Out: the address it would choose, or a block where the recording has it.
Does not know why the two differ.
"""

from __future__ import annotations

from vramcast.allocator import expandable
from vramcast.allocator.block import Block, BlockPool, PoolId
from vramcast.allocator.constants import SMALL_REQUEST_MAX_BYTES
from vramcast.allocator.core import Allocator


def preview(allocator: Allocator, requested_bytes: int, stream: int, pool_id: PoolId) -> int | None:
    """The address that `malloc` would give; None: one in a new segment."""
    size = allocator.rounded(requested_bytes)
    pool = allocator.segments.pool_for(pool_id, size <= SMALL_REQUEST_MAX_BYTES)
    index = allocator.choose(pool, size, stream)
    if index is not None:
        return pool.free[stream][index][1]
    return (
        expandable.preview(pool, stream, size) if allocator.settings.expandable_segments else None
    )


def malloc_at(
    allocator: Allocator, address: int, requested_bytes: int, stream: int, pool_id: PoolId
) -> Block | None:
    """Serve a request from the free block that starts at `address`; None if there is none large enough."""
    size = allocator.rounded(requested_bytes)
    pool = allocator.segments.pool_for(pool_id, size <= SMALL_REQUEST_MAX_BYTES)
    for _, start, block in pool.free.get(stream, ()):
        if start == address and block.size >= size:
            pool.remove(block)
            return allocator.hand_out(block, size, requested_bytes)
    return None


def adopt_segment(
    allocator: Allocator,
    address: int,
    nbytes: int,
    stream: int,
    pool_id: PoolId,
    requested_bytes: int,
) -> Block:
    """Serve a request from a new segment that our allocator would not have taken."""
    size = allocator.rounded(requested_bytes)
    pool = allocator.segments.pool_for(pool_id, size <= SMALL_REQUEST_MAX_BYTES)
    return allocator.hand_out(
        allocator.segments.add_segment(address, nbytes, stream, pool), size, requested_bytes
    )


def map_range(
    allocator: Allocator, address: int, nbytes: int, stream: int, pool_id: PoolId
) -> bool:
    """Back a range of an expandable segment that our allocator knows."""
    return any(
        expandable.map_at(pool, stream, address, nbytes, allocator.driver)
        for pool in _both(allocator, pool_id)
    )


def release_at(allocator: Allocator, address: int, nbytes: int, stream: int) -> bool:
    """Give back the cached segment at `address`; False if our allocator does not have it free and whole."""
    for pool in _all_pools(allocator):
        for size, start, block in pool.free.get(stream, ()):
            if (start, size) == (address, nbytes) and not block.is_split():
                allocator.segments.release_segment(block)
                return True
    return False


def unmap_at(allocator: Allocator, address: int, nbytes: int, stream: int) -> bool:
    """Give back the pages of the free block around `address`; True if exactly `nbytes` went."""
    for pool in _all_pools(allocator):
        for size, start, block in pool.free.get(stream, ()):
            if (
                block.expandable is not None
                and start <= address
                and address + nbytes <= start + size
            ):
                before = allocator.reserved_bytes
                allocator.segments.unmap(block)
                return before - allocator.reserved_bytes == nbytes
    return False


def _both(allocator: Allocator, pool_id: PoolId) -> tuple[BlockPool, BlockPool]:
    return allocator.segments.pool_for(pool_id, True), allocator.segments.pool_for(pool_id, False)


def _all_pools(allocator: Allocator) -> tuple[BlockPool, ...]:
    return tuple(pool for pair in allocator.segments.pools.values() for pool in pair)
