"""PyTorch's CUDA caching allocator: which block a request gets.

In: requests and frees. Out: addresses and statistics. It follows c10/cuda/CUDACachingAllocator.cpp function by function
(torch 2.13; the names in the docstrings are its names). It does not know time: the free of a block that another stream
used completes when the caller says so. Not modelled: pools opened with use_on_oom or no_split, and the cudaMallocAsync
backend.

Worked example, with torch's defaults and an empty cache:
1. malloc(3,000,000) is rounded up to 3,000,320 bytes, a multiple of 512. That is above 1 MiB, so it goes to the large
   pool; below 10 MiB, so the driver is asked for a segment of 20 MiB. 17,971,200 bytes are left of it, more than 1 MiB:
   they become a free block. Allocated 3,000,320, reserved 20,971,520.
2. malloc(17,500,000) is rounded up to 17,500,160 and finds that free block. 471,040 bytes would be left, less than
   1 MiB: the block is not split, and all of its 17,971,200 bytes count as allocated.
3. Both are freed. The second block merges with the first, and the segment is one free block again, still reserved.
4. malloc(21,000,000) does not fit into it: a segment of its own, rounded up to 2 MiB, 23,068,672 bytes. If the card has
   no room for that, `empty_cache` gives the first segment back and the driver is asked again.
"""

from __future__ import annotations

from bisect import bisect_left

from vramcast.allocator.block import (
    ALLOCATED,
    DEFAULT_POOL,
    FREE,
    PENDING,
    Block,
    BlockPool,
    PoolId,
)
from vramcast.allocator.constants import MIN_BLOCK_BYTES, SMALL_REQUEST_MAX_BYTES
from vramcast.allocator.driver import Driver, SimulatedDriver
from vramcast.allocator.expandable import merge
from vramcast.allocator.oom import OomMoment, OutOfMemory
from vramcast.allocator.segments import SegmentStore
from vramcast.allocator.settings import AllocatorSettings
from vramcast.allocator.stats import Count, count_allocated, count_freed, count_splits
from vramcast.errors import InputError, InvariantError

ROUNDING = MIN_BLOCK_BYTES - 1  # a power of two less one: the bits that no rounded size has


class Allocator:
    """One device. `context_bytes` belong to this process outside torch, `other_bytes` to other processes. Without
    `statistics` only allocated and reserved bytes are counted: half as much work, for replays."""

    def __init__(
        self,
        capacity_bytes: int | None = None,
        settings: AllocatorSettings | None = None,
        device: int = 0,
        *,
        context_bytes: int = 0,
        other_bytes: int = 0,
        driver: Driver | None = None,
        statistics: bool = True,
    ) -> None:
        self.settings = settings or AllocatorSettings()
        self.device = device
        self.driver: Driver = driver or SimulatedDriver(capacity_bytes, context_bytes + other_bytes)
        self.segments = SegmentStore(self.settings, self.driver)
        self._tally = self.segments.all
        self._context_bytes = context_bytes
        self._small, self._large = self.segments.default_small, self.segments.default_large
        self._max_split = self.segments.max_split
        self._expandable = self.settings.expandable_segments
        self.rounds_plainly = not any(count > 1 for count in self.settings.roundup_power2_divisions)
        self._pending: list[Block] = []
        self._statistics = statistics
        self._finds_first_fit = (
            not self._expandable
            and self.settings.max_split_bytes is None
            and self.settings.garbage_collection_threshold == 0
        )
        self.num_alloc_retries = self.num_ooms = self.num_sync_all_streams = 0
        self.oversize_allocations = Count()

    # What a program does

    def malloc(self, requested_bytes: int, stream: int = 0, pool: PoolId = DEFAULT_POOL) -> Block:
        """A block for `requested_bytes`, or OutOfMemory. Empty tensors have no block: torch does not ask for one."""
        plain = self.rounds_plainly and requested_bytes >= MIN_BLOCK_BYTES  # `rounded`, written out
        size = (requested_bytes + ROUNDING) & ~ROUNDING if plain else self.rounded(requested_bytes)
        if pool is DEFAULT_POOL or pool == DEFAULT_POOL:
            blocks = self._small if size <= SMALL_REQUEST_MAX_BYTES else self._large
        else:
            blocks = self.segments.pool_for(pool, size <= SMALL_REQUEST_MAX_BYTES)
        block = self._find_free(blocks, size, stream) or self.take(
            blocks, size, stream, requested_bytes
        )
        return self.hand_out(block, size, requested_bytes)

    def free(self, block: Block) -> None:
        """The program lets go. A block that another stream used stays pending until `complete_pending`."""
        self.request_free(block)
        if block.stream_uses:
            self._pending.append(block)
        else:
            self.complete_free(block)

    def record_stream(self, block: Block, stream: int) -> None:
        if stream != block.stream:
            block.stream_uses = (block.stream_uses or set()) | {stream}

    def complete_pending(self, stream: int | None = None) -> None:
        """The work of `stream` (None: of all streams) is done: blocks that waited for it alone become free."""
        waiting, self._pending = self._pending, []
        for block in waiting:
            if stream is None:
                block.stream_uses = None
            elif block.stream_uses:
                block.stream_uses = block.stream_uses - {stream}
            if block.stream_uses:
                self._pending.append(block)
            else:
                self.complete_free(block)

    def empty_cache(self) -> None:
        """Every cached segment without a live block goes back to the driver, after waiting for all streams."""
        self.num_sync_all_streams += 1
        self.complete_pending()
        self.segments.release_cached()

    def release_pool(self, pool: PoolId) -> None:
        """The last user of a private pool is gone: from now on `empty_cache` may give its memory back."""
        store = self.segments
        if pool == DEFAULT_POOL or pool not in store.pools or pool in store.released_pools:
            return
        store.released_pools.append(pool)

    def set_fraction(self, fraction: float) -> None:
        """torch.cuda.set_per_process_memory_fraction; 1 lifts the limit."""
        self.segments.set_fraction(fraction)

    # Counters

    @property
    def allocated_bytes(self) -> int:
        return self._tally.allocated_bytes

    @property
    def reserved_bytes(self) -> int:
        return self._tally.reserved_bytes

    @property
    def active_bytes(self) -> int:
        return self._tally.active_bytes

    @property
    def requested_bytes(self) -> int:
        return self._tally.requested_bytes

    @property
    def peak_allocated_bytes(self) -> int:
        return self._tally.peak_allocated_bytes

    @property
    def peak_reserved_bytes(self) -> int:
        return self._tally.peak_reserved_bytes

    @property
    def peak_active_bytes(self) -> int:
        return self._tally.peak_active_bytes

    @property
    def free_device_bytes(self) -> int:
        return self.driver.memory_info()[0]

    def reset_peak(self) -> None:
        for tally in (self.segments.all, self.segments.small, self.segments.large):
            tally.reset_peaks()
        for count in (self.oversize_allocations, self.segments.oversize_segments):
            count.peak = count.current

    @property
    def stats(self) -> dict[str, int]:
        return self.memory_stats()

    def memory_stats(self) -> dict[str, int]:
        """What torch.cuda.memory_stats() returns for this device, under the same names."""
        store = self.segments
        stats = {
            **store.all.rows("all"),
            **store.small.rows("small_pool"),
            **store.large.rows("large_pool"),
            **self.oversize_allocations.rows("oversize_allocations"),
            **store.oversize_segments.rows("oversize_segments"),
            "num_alloc_retries": self.num_alloc_retries,
            "num_ooms": self.num_ooms,
            "num_sync_all_streams": self.num_sync_all_streams,
            "num_device_alloc": store.num_device_alloc,
            "num_device_free": store.num_device_free,
            "num_oom_rejections": 0,  # counts a policy that is not modelled: throw_on_cudamalloc_oom
            "max_split_size": self.settings.max_split_bytes or -1,
        }
        return dict(sorted(stats.items()))

    def check(self) -> None:
        """Raise if the counters do not add up; constant time."""
        store = self.segments
        for metric in (
            "allocated_bytes",
            "reserved_bytes",
            "active_bytes",
            "requested_bytes",
            "allocation",
            "segment",
        ):
            whole = getattr(store.all, metric)
            parts = getattr(store.small, metric) + getattr(store.large, metric)
            if whole != parts:
                raise InvariantError(f"{metric}: {whole} in all, {parts} in the two size classes")
        if not 0 <= self.allocated_bytes <= self.active_bytes <= self.reserved_bytes:
            raise InvariantError(
                f"allocated {self.allocated_bytes}, active {self.active_bytes}, reserved {self.reserved_bytes}"
            )

    # Finding a block

    def rounded(self, nbytes: int) -> int:
        """round_size: what a request takes at least."""
        if nbytes < MIN_BLOCK_BYTES:
            if nbytes < 0:
                raise InputError(f"cannot allocate {nbytes} bytes")
            return MIN_BLOCK_BYTES
        if not self.rounds_plainly:
            divisions = self.settings.divisions_for(nbytes)
            if divisions > 1 and nbytes > MIN_BLOCK_BYTES * divisions:
                return _next_division(nbytes, divisions)
        return (nbytes + ROUNDING) & ~ROUNDING

    def splits(self, pool: BlockPool, size: int, rest_bytes: int) -> bool:
        """should_split: is what a request leaves of a block worth a block of its own?"""
        return rest_bytes >= pool.min_rest and size < pool.split_below

    def _find_free(self, pool: BlockPool, size: int, stream: int) -> Block | None:
        """get_free_block: take the best block out of the pool."""
        if self._finds_first_fit:  # `choose`, written out for these settings
            keys = pool.free.get(stream)
            if not keys:
                return None
            first = bisect_left(keys, (size,))
            if first == len(keys):
                return None
            if keys[first][2].expandable is None:
                return keys.pop(first)[2]
        if self.segments.collects_garbage:
            pool.find_count += 1
        index = self.choose(pool, size, stream)
        if index is None:
            return None
        return pool.free[stream].pop(index)[2]

    def choose(self, pool: BlockPool, size: int, stream: int) -> int | None:
        """The index in the pool's list of the smallest block of this stream that fits, lowest address first."""
        keys = pool.free.get(stream)
        if not keys:
            return None
        index = bisect_left(keys, (size,))
        if index == len(keys):
            return None
        block = keys[index][2]
        if block.expandable is not None:
            index = self.among_expandable(pool, stream, index)
            if index == len(keys):
                return None
            block = keys[index][2]
        if size < self._max_split:
            if block.size >= self._max_split:  # an oversize block is not for small requests
                return None
        elif block.size >= size + self.settings.max_non_split_rounding_bytes:
            return None
        return index

    def among_expandable(self, pool: BlockPool, stream: int, index: int) -> int:
        """From the first fitting block on: the one with the least room to grow; with the feature off, none of them."""
        keys = pool.free[stream]
        if not self._expandable:
            while index < len(keys) and keys[index][2].expandable is not None:
                index += 1
            return index
        while index + 1 < len(keys) and keys[index][2].expandable is not None:
            if keys[index + 1][2].expandable_size() >= keys[index][2].expandable_size():
                break
            index += 1
        return index

    def take(self, pool: BlockPool, size: int, stream: int, requested_bytes: int) -> Block:
        """The second half of malloc: nothing cached fits, so ask the driver, giving back what is cached if need be."""
        store = self.segments
        if store.collects_garbage:
            store.collect_garbage()
        block = store.take(pool, size, stream)
        if block is None and store.release_oversize(pool, size, stream):
            block = store.take(pool, size, stream)
        if block is None and pool.id == DEFAULT_POOL:  # during a capture nothing may be given back
            self.empty_cache()
            self.num_alloc_retries += 1
            block = store.take(pool, size, stream)
        if block is None:
            raise self._out_of_memory(requested_bytes, store.segment_size(size))
        return block

    def hand_out(self, block: Block, size: int, requested_bytes: int) -> Block:
        """alloc_found_block: split off what is not needed, mark the block as allocated and count it."""
        pool = block.pool
        was_split = block.prev is not None or block.next is not None
        if block.size - size >= pool.min_rest and size < pool.split_below:  # `splits`, written out
            rest = block
            block = self._split(block, size)
            splits_change, split_bytes_change = (0, -size) if was_split else (1, rest.size)
        else:
            size = block.size
            splits_change, split_bytes_change = (-1, -size) if was_split else (0, 0)
        block.state = ALLOCATED
        block.requested = requested_bytes
        if not self._statistics:
            self._tally.add_allocated_bytes(size)
            return block
        count_allocated(pool.tallies, size, requested_bytes)
        if split_bytes_change and block.expandable is None:
            count_splits(pool.tallies, splits_change, split_bytes_change)
        if size >= self._max_split:
            self.oversize_allocations.up()
        return block

    def _split(self, whole: Block, size: int) -> Block:
        """The front of `whole` becomes the block; `whole` keeps the back and returns to the pool."""
        pool, before = whole.pool, whole.prev
        block = Block(whole.address, size, whole.stream, pool)
        block.expandable = whole.expandable
        block.prev, block.next = before, whole
        whole.prev = block
        if before is not None:
            before.next = block
        whole.address += size
        whole.size -= size
        pool.insert(whole)
        return block

    # Freeing

    def request_free(self, block: Block) -> None:
        """The first half of free: the block stops counting as allocated."""
        if block.state != ALLOCATED:
            raise InvariantError(f"{block} is not allocated")
        block.state = PENDING
        size = block.size
        if not self._statistics:
            self._tally.allocated_bytes -= size
            return
        for tally in block.pool.tallies:
            tally.allocation -= 1
            tally.allocated_bytes -= size
        if size >= self._max_split:
            self.oversize_allocations.down()

    def complete_free(self, block: Block) -> None:
        """free_block: merge with free neighbours and return to the pool."""
        if block.state != PENDING:
            raise InvariantError(f"{block} has no free under way")
        pool, size, requested_bytes = block.pool, block.size, block.requested
        block.state, block.requested = FREE, 0
        num_merged = 0
        for neighbour in (block.prev, block.next):
            if neighbour is not None and neighbour.state == FREE and merge(block, neighbour):
                num_merged += 1
        pool.insert(block)
        if not self._statistics:
            return
        count_freed(pool.tallies, size, requested_bytes)
        if block.expandable is not None:
            return
        if block.prev is not None or block.next is not None:
            count_splits(pool.tallies, 1 - num_merged, size)
        elif num_merged:
            count_splits(pool.tallies, -num_merged, size - block.size)

    def _out_of_memory(self, requested_bytes: int, segment_bytes: int) -> OutOfMemory:
        self.num_ooms += 1
        free_bytes, total_bytes = self.driver.memory_info()
        return OutOfMemory(
            OomMoment(
                requested_bytes=requested_bytes,
                segment_bytes=segment_bytes,
                device=self.device,
                total_bytes=total_bytes,
                free_bytes=free_bytes,
                process_bytes=self._context_bytes + self.reserved_bytes,
                allowed_bytes=self.segments.allowed_bytes,
                allocated_bytes=self.allocated_bytes,
                reserved_bytes=self.reserved_bytes,
                private_cached_bytes=self.segments.private_cached_bytes(),
            )
        )


def _next_division(nbytes: int, divisions: int) -> int:
    """roundup_power2_next_division: 1200 is between 1024 and 2048; four divisions are 256 apart, hence 1280."""
    if nbytes & (nbytes - 1) == 0:
        return nbytes
    step = 1 << (nbytes.bit_length() - 1) >> (divisions.bit_length() - 1)
    return -(-nbytes // step) * step
