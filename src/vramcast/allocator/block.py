"""Blocks and the pools of free ones: the allocator's data, without its decisions.

A segment is a chain of blocks (`prev`, `next`) without gaps. A pool lists the free ones by stream, sorted by size and
address, so that the first that fits is the best.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from vramcast.allocator.stats import Tally

FREE, ALLOCATED, PENDING = 0, 1, 2  # PENDING: freed by the program, still used by another stream

PoolId = tuple[int, int]
DEFAULT_POOL: PoolId = (0, 0)


class ExpandableSegment:
    """A range of addresses that is backed by memory page by page."""

    __slots__ = ("base", "page_bytes", "space_bytes")

    def __init__(self, base: int, page_bytes: int, space_bytes: int) -> None:
        self.base = base
        self.page_bytes = page_bytes
        self.space_bytes = space_bytes


class Block:
    """A piece of a segment: allocated, waiting for a stream, free, or (in an expandable segment) not mapped yet."""

    __slots__ = (
        "address",
        "age_base",
        "expandable",
        "mapped",
        "next",
        "pool",
        "prev",
        "requested",
        "size",
        "state",
        "stream",
        "stream_uses",
    )

    def __init__(self, address: int, size: int, stream: int, pool: BlockPool) -> None:
        self.address = address
        self.size = size  # bytes, what torch counts as allocated
        self.requested = 0  # bytes the program asked for
        self.stream = stream
        self.pool = pool
        self.state = FREE
        self.mapped = True
        self.prev: Block | None = None
        self.next: Block | None = None
        self.expandable: ExpandableSegment | None = None
        self.stream_uses: set[int] | None = None
        self.age_base = 0

    def is_split(self) -> bool:
        return self.prev is not None or self.next is not None

    def insert_between(self, before: Block | None, after: Block | None) -> None:
        self.prev, self.next = before, after
        if before is not None:
            before.next = self
        if after is not None:
            after.prev = self

    def expandable_size(self) -> int:
        """What the block could grow to: best fit counts an expandable block with the unmapped range after it."""
        following = self.next
        return self.size + (following.size if following is not None and not following.mapped else 0)

    def __repr__(self) -> str:
        state = ("free", "allocated", "pending")[self.state]
        return f"Block(address={self.address:#x}, size={self.size}, requested={self.requested}, {state})"


FreeKey = tuple[int, int, Block]


class BlockPool:
    """Free blocks of one size class, by stream, in the order of (size, address): the first that fits is the best."""

    __slots__ = (
        "find_count",
        "free",
        "id",
        "is_small",
        "min_rest",
        "split_below",
        "tallies",
        "unmapped",
    )

    def __init__(
        self,
        pool_id: PoolId,
        is_small: bool,
        tallies: tuple[Tally, Tally],
        *,
        min_rest: int,
        split_below: int,
    ) -> None:
        self.id = pool_id
        self.is_small = is_small
        self.free: dict[int, list[FreeKey]] = {}
        self.unmapped: dict[int, list[tuple[int, Block]]] = {}
        self.find_count = 0  # searches so far: the clock by which garbage collection measures age
        self.tallies = tallies  # (aggregate, this size class)
        # A request splits a block if it leaves at least `min_rest` bytes of it and is smaller than `split_below`.
        self.min_rest = min_rest
        self.split_below = split_below

    def insert(self, block: Block) -> None:
        block.age_base = self.find_count
        keys = self.free.get(block.stream)
        if keys is None:
            keys = self.free[block.stream] = []
        insort(keys, (block.size, block.address, block))

    def remove(self, block: Block) -> None:
        keys = self.free[block.stream]
        del keys[bisect_left(keys, (block.size, block.address))]

    def age(self, block: Block) -> int:
        """How many searches there were since the block became free."""
        return self.find_count - block.age_base

    def insert_unmapped(self, block: Block) -> None:
        insort(self.unmapped.setdefault(block.stream, []), (block.address, block))

    def remove_unmapped(self, block: Block) -> None:
        keys = self.unmapped[block.stream]
        del keys[bisect_left(keys, (block.address,))]

    def free_blocks(self) -> list[Block]:
        """In torch's order: by stream, size and address."""
        return [key[2] for stream in sorted(self.free) for key in self.free[stream]]
