"""PyTorch's CUDA caching allocator: which block a request gets, when segments are taken and given back.

Requests and frees come in; addresses and statistics come out. It follows c10/cuda/CUDACachingAllocator.cpp function by
function (torch 2.13; the names in the docstrings are its names). It does not know time: a free of a block that another
stream used completes when the caller says so. Not modelled: pools opened with use_on_oom or no_split, and the
cudaMallocAsync backend.
"""

from __future__ import annotations

from bisect import bisect_left

from vramcast.allocator import expandable
from vramcast.allocator.block import ALLOCATED, DEFAULT_POOL, FREE, PENDING, Block, BlockPool, PoolId
from vramcast.allocator.constants import (
    MIN_BLOCK_BYTES,
    OWN_SEGMENT_MIN_BYTES,
    SEGMENT_ROUNDING_BYTES,
    SMALL_REQUEST_MAX_BYTES,
    SMALL_SEGMENT_BYTES,
)
from vramcast.allocator.driver import Driver, SimulatedDriver
from vramcast.allocator.oom import OomMoment, OutOfMemory
from vramcast.allocator.settings import AllocatorSettings
from vramcast.allocator.stats import Count, Tally
from vramcast.errors import InputError, InvariantError

_NO_LIMIT = 1 << 64


class Allocator:
    """One device. `context_bytes` belong to this process outside torch, `other_bytes` to other processes."""

    def __init__(
        self,
        capacity_bytes: int | None = None,
        settings: AllocatorSettings | None = None,
        device: int = 0,
        *,
        context_bytes: int = 0,
        other_bytes: int = 0,
        driver: Driver | None = None,
    ) -> None:
        self.settings = settings or AllocatorSettings()
        self.device = device
        self.driver: Driver = driver or SimulatedDriver(capacity_bytes, context_bytes + other_bytes)
        self._context_bytes = context_bytes
        self.all, self.small, self.large = Tally(), Tally(), Tally()
        self._pools: dict[PoolId, tuple[BlockPool, BlockPool]] = {}
        self._small_pool, self._large_pool = self._open_pool(DEFAULT_POOL)
        self._released_pools: list[PoolId] = []
        self._pending: list[Block] = []
        self.num_alloc_retries = self.num_ooms = self.num_sync_all_streams = 0
        self.num_device_alloc = self.num_device_free = 0
        self.oversize_allocations, self.oversize_segments = Count(), Count()
        self._max_split = self.settings.max_split_bytes or _NO_LIMIT
        self._expandable = self.settings.expandable_segments
        self._plain_rounding = not any(count > 1 for count in self.settings.roundup_power2_divisions)
        self._allowed_bytes: int | None = None
        self.set_fraction(self.settings.per_process_memory_fraction)

    # Requests

    def malloc(self, requested_bytes: int, stream: int = 0, pool: PoolId = DEFAULT_POOL) -> Block:
        """A block for `requested_bytes`, or OutOfMemory. Empty tensors have no block: torch does not ask for one."""
        if requested_bytes < 0:
            raise InputError(f"cannot allocate {requested_bytes} bytes")
        size = self._round(requested_bytes)
        if pool == DEFAULT_POOL:
            blocks = self._small_pool if size <= SMALL_REQUEST_MAX_BYTES else self._large_pool
        else:
            blocks = self._pool_for(pool, size)
        block = self._find_free(blocks, size, stream) or self._take_segment(blocks, size, stream, requested_bytes)
        return self._hand_out(block, size, requested_bytes)

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
            uses = block.stream_uses or set()
            block.stream_uses = set() if stream is None else uses - {stream}
            if block.stream_uses:
                self._pending.append(block)
            else:
                self.complete_free(block)

    def empty_cache(self) -> None:
        """release_cached_blocks: every cached segment without a live block goes back to the driver."""
        self.num_sync_all_streams += 1
        self.complete_pending()
        self._release_free(self._large_pool)
        self._release_free(self._small_pool)
        for pool_id in tuple(self._released_pools):
            small, large = self._pools[pool_id]
            self._release_free(small)
            self._release_free(large)
            if small.segments == large.segments == 0:
                del self._pools[pool_id]
                self._released_pools.remove(pool_id)

    def release_pool(self, pool: PoolId) -> None:
        """The last user of a private pool is gone: its memory may be given back from now on."""
        if pool in self._pools and pool != DEFAULT_POOL and pool not in self._released_pools:
            self._released_pools.append(pool)

    def set_fraction(self, fraction: float) -> None:
        """set_per_process_memory_fraction; 1 lifts the limit."""
        if not 0 <= fraction <= 1:
            raise InputError(f"memory fraction {fraction} must lie between 0 and 1")
        self._allowed_bytes = int(fraction * self.driver.memory_info()[1]) if fraction < 1 else None
        self._collects = self._allowed_bytes is not None and self.settings.garbage_collection_threshold > 0

    # Figures

    @property
    def allocated_bytes(self) -> int:
        return self.all.allocated_bytes

    @property
    def reserved_bytes(self) -> int:
        return self.all.reserved_bytes

    @property
    def active_bytes(self) -> int:
        return self.all.active_bytes

    @property
    def requested_bytes(self) -> int:
        return self.all.requested_bytes

    @property
    def peak_allocated_bytes(self) -> int:
        return self.all.peak_allocated_bytes

    @property
    def peak_reserved_bytes(self) -> int:
        return self.all.peak_reserved_bytes

    @property
    def peak_active_bytes(self) -> int:
        return self.all.peak_active_bytes

    @property
    def free_device_bytes(self) -> int:
        return self.driver.memory_info()[0]

    def reset_peak(self) -> None:
        for tally in (self.all, self.small, self.large):
            tally.reset_peaks()
        for count in (self.oversize_allocations, self.oversize_segments):
            count.peak = count.current

    @property
    def stats(self) -> dict[str, int]:
        return self.memory_stats()

    def memory_stats(self) -> dict[str, int]:
        """What torch.cuda.memory_stats() returns for this device, under the same names."""
        stats = {
            **self.all.rows("all"), **self.small.rows("small_pool"), **self.large.rows("large_pool"),
            **self.oversize_allocations.rows("oversize_allocations"), **self.oversize_segments.rows("oversize_segments"),
            "num_alloc_retries": self.num_alloc_retries, "num_ooms": self.num_ooms,
            "num_sync_all_streams": self.num_sync_all_streams, "num_device_alloc": self.num_device_alloc,
            "num_device_free": self.num_device_free,
            "max_split_size": -1 if self.settings.max_split_bytes is None else self.settings.max_split_bytes,
        }  # fmt: skip
        return dict(sorted(stats.items()))

    def pools(self) -> tuple[BlockPool, ...]:
        return tuple(blocks for pair in self._pools.values() for blocks in pair)

    def check(self) -> None:
        """Raise if the counters do not add up; constant time."""
        for metric in ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes", "allocation"):
            whole, parts = getattr(self.all, metric), getattr(self.small, metric) + getattr(self.large, metric)
            if whole != parts:
                raise InvariantError(f"{metric}: {whole} in all, {parts} in the two size classes")
        if not 0 <= self.allocated_bytes <= self.active_bytes <= self.reserved_bytes:
            raise InvariantError(f"allocated {self.allocated_bytes}, active {self.active_bytes}, {self.reserved_bytes}")

    # Finding a block

    def _round(self, nbytes: int) -> int:
        """round_size"""
        if nbytes < MIN_BLOCK_BYTES:
            return MIN_BLOCK_BYTES
        if not self._plain_rounding:
            divisions = self.settings.divisions_for(nbytes)
            if divisions > 1 and nbytes > MIN_BLOCK_BYTES * divisions:
                return _next_division(nbytes, divisions)
        return (nbytes + MIN_BLOCK_BYTES - 1) // MIN_BLOCK_BYTES * MIN_BLOCK_BYTES

    def _find_free(self, pool: BlockPool, size: int, stream: int) -> Block | None:
        """get_free_block: the smallest block of this stream that fits, lowest address first."""
        if self._collects:
            pool.find_count += 1
        keys = pool.free.get(stream)
        if not keys:
            return None
        index = bisect_left(keys, (size,))
        if index == len(keys):
            return None
        block = keys[index][2]
        if block.expandable is not None:
            while self._expandable and block.expandable is not None and index + 1 < len(keys):
                following = keys[index + 1][2]
                if following.expandable_size() >= block.expandable_size():
                    break
                index, block = index + 1, following
            while not self._expandable and block.expandable is not None:  # switched off while running
                index += 1
                if index == len(keys):
                    return None
                block = keys[index][2]
        if size < self._max_split:
            if block.size >= self._max_split:
                return None
        elif block.size >= size + self.settings.max_non_split_rounding_bytes:
            return None
        del keys[index]
        return block

    def _hand_out(self, block: Block, size: int, requested_bytes: int) -> Block:
        """alloc_found_block: split off what is not needed and count the rest."""
        pool = block.pool
        rest_bytes = block.size - size
        if pool.is_small or self._expandable:
            splits = rest_bytes >= MIN_BLOCK_BYTES
        else:
            splits = size < self._max_split and rest_bytes > SMALL_REQUEST_MAX_BYTES
        if splits:
            block = self._split(block, size)
        elif block.expandable is None and (block.prev is not None or block.next is not None):
            for tally in pool.tallies:
                tally.inactive_split -= 1
                tally.inactive_split_bytes -= block.size
        block.state = ALLOCATED
        block.requested = requested_bytes
        size = block.size
        for tally in pool.tallies:
            tally.allocation = count = tally.allocation + 1
            tally.total_allocation += 1
            tally.allocated_bytes = nbytes = tally.allocated_bytes + size
            tally.total_allocated_bytes += size
            tally.active_bytes = active = tally.active_bytes + size
            tally.active += 1
            tally.requested_bytes = requested = tally.requested_bytes + requested_bytes
            tally.total_requested_bytes += requested_bytes
            if nbytes > tally.peak_allocated_bytes:
                tally.peak_allocated_bytes = nbytes
            if count > tally.peak_allocation:
                tally.peak_allocation = count
            if active > tally.peak_active_bytes:
                tally.peak_active_bytes = active
            if tally.active > tally.peak_active:
                tally.peak_active = tally.active
            if requested > tally.peak_requested_bytes:
                tally.peak_requested_bytes = requested
        if size >= self._max_split:
            self.oversize_allocations.up()
        return block

    def _split(self, whole: Block, size: int) -> Block:
        """The front of `whole` becomes the block; `whole` keeps the back and returns to the pool."""
        pool = whole.pool
        was_split = whole.prev is not None or whole.next is not None
        block = Block(whole.address, size, whole.stream, pool)
        block.expandable = whole.expandable
        block.insert_between(whole.prev, whole)
        whole.address += size
        whole.size -= size
        pool.insert(whole)
        if block.expandable is None:
            for tally in pool.tallies:
                if was_split:
                    tally.inactive_split_bytes -= size
                else:
                    tally.raise_by("inactive_split_bytes", whole.size)
                    tally.raise_by("inactive_split", 1)
        return block

    # Letting go

    def request_free(self, block: Block) -> None:
        """The first half of free: the block stops counting as allocated."""
        if block.state != ALLOCATED:
            raise InvariantError(f"{block} is not allocated")
        block.state = PENDING
        size = block.size
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
        block.state = FREE
        block.requested = 0
        swallowed = swallowed_bytes = 0
        for neighbour in (block.prev, block.next):
            if neighbour is not None and neighbour.state == FREE:
                nbytes = expandable.merge(block, neighbour)
                if nbytes:
                    swallowed += 1
                    swallowed_bytes += nbytes
        pool.insert(block)
        split_change, split_bytes_change = -swallowed, -swallowed_bytes
        if block.prev is not None or block.next is not None:
            split_change += 1
            split_bytes_change += block.size
        for tally in pool.tallies:
            tally.active -= 1
            tally.active_bytes -= size
            tally.requested_bytes -= requested_bytes
            if block.expandable is None:
                tally.change("inactive_split", split_change)
                tally.change("inactive_split_bytes", split_bytes_change)

    # Segments

    def _take_segment(self, pool: BlockPool, size: int, stream: int, requested_bytes: int) -> Block:
        """The rest of malloc: nothing cached fits, so ask the driver, giving back what is cached if need be."""
        segment_bytes = self._segment_size(size)
        if self._collects:
            self._collect_garbage()
        block = self._new_block(pool, size, segment_bytes, stream)
        if block is None and self._release_oversize(pool, size, stream):
            block = self._new_block(pool, size, segment_bytes, stream)
        if block is None and pool.id == DEFAULT_POOL:  # during a capture nothing may be given back
            self.empty_cache()
            self.num_alloc_retries += 1
            block = self._new_block(pool, size, segment_bytes, stream)
        if block is None:
            raise self._out_of_memory(requested_bytes, segment_bytes)
        return block

    def _segment_size(self, size: int) -> int:
        """get_allocation_size"""
        if size <= SMALL_REQUEST_MAX_BYTES:
            return SMALL_SEGMENT_BYTES
        if size < OWN_SEGMENT_MIN_BYTES:
            return self.settings.large_segment_bytes
        return -(-size // SEGMENT_ROUNDING_BYTES) * SEGMENT_ROUNDING_BYTES

    def _new_block(self, pool: BlockPool, size: int, segment_bytes: int, stream: int) -> Block | None:
        """alloc_block"""
        if self._allowed_bytes is not None and self.all.reserved_bytes + segment_bytes > self._allowed_bytes:
            return None
        if self._expandable:
            reserved_before = self.all.reserved_bytes
            page_bytes = expandable.page_bytes_of(pool, self.settings.large_segment_bytes)
            block = expandable.allocate(pool, stream, size, self.driver, page_bytes)
            if self.all.reserved_bytes != reserved_before:
                self.num_device_alloc += 1
            return block
        address = self.driver.malloc(segment_bytes)
        return None if address is None else self.add_segment(address, segment_bytes, stream, pool)

    def add_segment(self, address: int, nbytes: int, stream: int, pool: BlockPool) -> Block:
        """Count a segment that the driver has given; its one block is not in the pool yet."""
        pool.segments += 1
        self.num_device_alloc += 1
        for tally in pool.tallies:
            tally.raise_by("segment", 1)
            tally.raise_by("reserved_bytes", nbytes)
        if nbytes >= self._max_split:
            self.oversize_segments.up()
        return Block(address, nbytes, stream, pool)

    def _release_free(self, pool: BlockPool) -> None:
        """release_blocks"""
        for block in pool.free_blocks():
            if block.expandable is not None:
                if expandable.unmap(block, self.driver):
                    self.num_device_free += 1
                    if not block.is_split():
                        pool.remove_unmapped(block)  # nothing of the segment is left
            elif not block.is_split():
                self.release_segment(block)

    def release_segment(self, block: Block) -> None:
        """release_block: cudaFree of a cached segment."""
        pool = block.pool
        pool.remove(block)
        pool.segments -= 1
        self.num_device_free += 1
        self.driver.free(block.address, block.size)
        for tally in pool.tallies:
            tally.segment -= 1
            tally.reserved_bytes -= block.size
        if block.size >= self._max_split:
            self.oversize_segments.down()

    def _release_oversize(self, pool: BlockPool, size: int, stream: int) -> bool:
        """release_available_cached_blocks: with max_split_size_mb, give back just enough oversize blocks."""
        if self.settings.max_split_bytes is None:
            return False
        wanted = max(size, self._max_split)
        keys = pool.free.get(stream, [])
        index = bisect_left(keys, (wanted,))
        if index < len(keys) and keys[index][2].expandable is None:
            self.release_segment(keys[index][2])
            return True
        released = 0
        for _, _, block in reversed(keys[:index]):
            if released >= wanted or block.size < self._max_split:
                break
            if block.expandable is None:
                released += block.size
                self.release_segment(block)
        return released >= wanted

    def _collect_garbage(self) -> None:
        """garbage_collect_cached_blocks: give back the blocks that nobody asked for the longest."""
        assert self._allowed_bytes is not None
        excess = self.all.reserved_bytes - int(self.settings.garbage_collection_threshold * self._allowed_bytes)
        pool = self._large_pool
        candidates = [block for block in pool.free_blocks() if not block.is_split()]
        total_age = sum(pool.find_count - block.age_base for block in candidates)
        count, reclaimed, progress = len(candidates), 0, True
        while excess > 0 and reclaimed < excess and progress and count:
            oldest = total_age / count
            old = [
                block for block in candidates if block.expandable is None and pool.find_count - block.age_base >= oldest
            ]
            progress = bool(old)
            for block in old:
                reclaimed += block.size
                total_age -= pool.find_count - block.age_base
                count -= 1
                candidates.remove(block)
                self.release_segment(block)

    def _out_of_memory(self, requested_bytes: int, segment_bytes: int) -> OutOfMemory:
        self.num_ooms += 1
        free_bytes, total_bytes = self.driver.memory_info()
        private = [blocks for pool_id, pair in self._pools.items() if pool_id != DEFAULT_POOL for blocks in pair]
        return OutOfMemory(
            OomMoment(
                requested_bytes=requested_bytes,
                segment_bytes=segment_bytes,
                device=self.device,
                total_bytes=total_bytes,
                free_bytes=free_bytes,
                process_bytes=self._context_bytes + self.reserved_bytes,
                allowed_bytes=self._allowed_bytes,
                allocated_bytes=self.allocated_bytes,
                reserved_bytes=self.reserved_bytes,
                private_cached_bytes=sum(block.size for blocks in private for block in blocks.free_blocks()),
            )
        )

    # Pools

    def pool_for(self, pool_id: PoolId, is_small: bool) -> BlockPool:
        pair = self._pools.get(pool_id) or self._open_pool(pool_id)
        return pair[0] if is_small else pair[1]

    def _pool_for(self, pool_id: PoolId, size: int) -> BlockPool:
        return self.pool_for(pool_id, size <= SMALL_REQUEST_MAX_BYTES)

    def _open_pool(self, pool_id: PoolId) -> tuple[BlockPool, BlockPool]:
        small = BlockPool(pool_id, True, (self.all, self.small))
        large = BlockPool(pool_id, False, (self.all, self.large))
        self._pools[pool_id] = (small, large)
        return small, large


def _next_division(nbytes: int, divisions: int) -> int:
    """roundup_power2_next_division: 1200 with 4 divisions lies between 1024 and 2048, hence 1280."""
    if nbytes & (nbytes - 1) == 0:
        return nbytes
    step = 1 << (nbytes.bit_length() - 1) >> (divisions.bit_length() - 1)
    return -(-nbytes // step) * step
