"""Segments and pools: what the allocator holds from the driver, and when it takes more or gives some back.

In: the size of a block that no free one can serve. Out: a block on new memory, or None; and segments given back to the
driver. Does not know the requests: `core` turns them into blocks. The docstrings give the names of the functions in
CUDACachingAllocator.cpp.
"""

from __future__ import annotations

from bisect import bisect_left

from vramcast.allocator import expandable
from vramcast.allocator.block import DEFAULT_POOL, Block, BlockPool, PoolId
from vramcast.allocator.constants import (
    MIN_BLOCK_BYTES,
    OWN_SEGMENT_MIN_BYTES,
    SEGMENT_ROUNDING_BYTES,
    SMALL_REQUEST_MAX_BYTES,
    SMALL_SEGMENT_BYTES,
)
from vramcast.allocator.driver import Driver
from vramcast.allocator.settings import AllocatorSettings
from vramcast.allocator.stats import Count, Tally
from vramcast.errors import InputError

NO_LIMIT = 1 << 64


class SegmentStore:
    """The pools of one device and the driver that serves them."""

    def __init__(self, settings: AllocatorSettings, driver: Driver) -> None:
        self.settings = settings
        self.driver = driver
        self.all, self.small, self.large = Tally(), Tally(), Tally()
        self.pools: dict[PoolId, tuple[BlockPool, BlockPool]] = {}
        self.released_pools: list[PoolId] = []
        self.max_split = settings.max_split_bytes or NO_LIMIT
        self.default_small, self.default_large = self._open_pool(DEFAULT_POOL)
        self.allowed_bytes: int | None = None
        self.collects_garbage = False
        self.num_device_alloc = self.num_device_free = 0
        self.oversize_segments = Count()
        self.set_fraction(settings.per_process_memory_fraction)

    def set_fraction(self, fraction: float) -> None:
        if not 0 <= fraction <= 1:
            raise InputError(f"memory fraction {fraction} must be between 0 and 1")
        self.allowed_bytes = int(fraction * self.driver.memory_info()[1]) if fraction < 1 else None
        self.collects_garbage = (
            self.allowed_bytes is not None and self.settings.garbage_collection_threshold > 0
        )

    def pool_for(self, pool_id: PoolId, is_small: bool) -> BlockPool:
        pair = self.pools.get(pool_id) or self._open_pool(pool_id)
        return pair[0] if is_small else pair[1]

    def _open_pool(self, pool_id: PoolId) -> tuple[BlockPool, BlockPool]:
        """should_split, as two figures per pool: with expandable segments all pools split like the small one."""
        any_block = {"min_rest": MIN_BLOCK_BYTES, "split_below": NO_LIMIT}
        large_block = {"min_rest": SMALL_REQUEST_MAX_BYTES + 1, "split_below": self.max_split}
        if self.settings.expandable_segments:
            large_block = any_block
        small = BlockPool(pool_id, True, (self.all, self.small), **any_block)
        large = BlockPool(pool_id, False, (self.all, self.large), **large_block)
        self.pools[pool_id] = (small, large)
        return small, large

    def private_cached_bytes(self) -> int:
        """What is free in all pools but the default one."""
        total = 0
        for pool_id, pools in self.pools.items():
            if pool_id != DEFAULT_POOL:
                for pool in pools:
                    total += sum(block.size for block in pool.free_blocks())
        return total

    # Taking

    def segment_size(self, size: int) -> int:
        """get_allocation_size"""
        if size <= SMALL_REQUEST_MAX_BYTES:
            return SMALL_SEGMENT_BYTES
        if size < OWN_SEGMENT_MIN_BYTES:
            return self.settings.large_segment_bytes
        return -(-size // SEGMENT_ROUNDING_BYTES) * SEGMENT_ROUNDING_BYTES

    def take(self, pool: BlockPool, size: int, stream: int) -> Block | None:
        """alloc_block: a free block outside the pool, on memory that is new from the driver; None: there is none."""
        segment_bytes = self.segment_size(size)
        if (
            self.allowed_bytes is not None
            and self.all.reserved_bytes + segment_bytes > self.allowed_bytes
        ):
            return None
        if self.settings.expandable_segments:
            return self._grow(pool, size, stream)
        address = self.driver.malloc(segment_bytes)
        return None if address is None else self.add_segment(address, segment_bytes, stream, pool)

    def _grow(self, pool: BlockPool, size: int, stream: int) -> Block | None:
        reserved_before = self.all.reserved_bytes
        page_bytes = SMALL_SEGMENT_BYTES if pool.is_small else self.settings.large_segment_bytes
        block = expandable.allocate(pool, stream, size, self.driver, page_bytes)
        if self.all.reserved_bytes != reserved_before:
            self.num_device_alloc += 1
        return block

    def add_segment(self, address: int, nbytes: int, stream: int, pool: BlockPool) -> Block:
        """Count a segment that the driver has given; its one block is not in the pool yet."""
        self.num_device_alloc += 1
        for tally in pool.tallies:
            tally.add_segment(nbytes)
        if nbytes >= self.max_split:
            self.oversize_segments.up()
        return Block(address, nbytes, stream, pool)

    # Giving back

    def release_cached(self) -> None:
        """release_cached_blocks: every cached segment without a live block, also of private pools nobody uses."""
        self._release_free(self.default_large)
        self._release_free(self.default_small)
        for pool_id in self.released_pools:
            for pool in self.pools[pool_id]:
                self._release_free(pool)

    def _release_free(self, pool: BlockPool) -> None:
        """release_blocks: whole segments, and whole pages of expandable ones."""
        for block in pool.free_blocks():
            if block.expandable is not None:
                self.unmap(block)
            elif not block.is_split():
                self.release_segment(block)

    def unmap(self, block: Block) -> None:
        if expandable.unmap(block, self.driver):
            self.num_device_free += 1
            if not block.is_split():
                block.pool.remove_unmapped(block)  # nothing of the segment is left

    def release_segment(self, block: Block) -> None:
        """release_block: cudaFree of a cached segment."""
        pool = block.pool
        pool.remove(block)
        self.num_device_free += 1
        self.driver.free(block.address, block.size)
        for tally in pool.tallies:
            tally.segment -= 1
            tally.reserved_bytes -= block.size
        if block.size >= self.max_split:
            self.oversize_segments.down()

    def release_oversize(self, pool: BlockPool, size: int, stream: int) -> bool:
        """release_available_cached_blocks: with max_split_size_mb, give back just enough oversize blocks."""
        if self.settings.max_split_bytes is None:
            return False
        wanted = max(size, self.max_split)
        keys = pool.free.get(stream, [])
        index = bisect_left(keys, (wanted,))
        if index < len(keys) and keys[index][2].expandable is None:
            self.release_segment(keys[index][2])
            return True
        released = 0
        for _, _, block in reversed(keys[:index]):
            if released >= wanted or block.size < self.max_split:
                break
            if block.expandable is None:
                released += block.size
                self.release_segment(block)
        return released >= wanted

    def collect_garbage(self) -> None:
        """garbage_collect_cached_blocks: above the threshold, give back what was not used for the longest time.

        Ages are counted in searches. Example: free segments of ages 1, 2 and 9, mean 4: the one of age 9 is given back,
        then, if that is not enough, that of age 2, above the mean 1.5 of what is left.
        """
        assert self.allowed_bytes is not None
        threshold_bytes = int(self.settings.garbage_collection_threshold * self.allowed_bytes)
        excess = self.all.reserved_bytes - threshold_bytes
        pool = self.default_large
        candidates = [block for block in pool.free_blocks() if not block.is_split()]
        total_age = sum(map(pool.age, candidates))
        while excess > 0 and candidates:
            old = _blocks_to_collect(candidates, total_age / len(candidates))
            if not old:
                return
            for block in old:
                candidates.remove(block)
                excess -= block.size
                total_age -= pool.age(block)
                self.release_segment(block)


def _blocks_to_collect(candidates: list[Block], mean_age: float) -> list[Block]:
    """Those at least as old as the mean, without pages of expandable segments."""
    return [
        block
        for block in candidates
        if block.expandable is None and block.pool.age(block) >= mean_age
    ]
