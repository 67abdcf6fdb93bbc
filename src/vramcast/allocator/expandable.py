"""Expandable segments: one range of addresses per stream and pool, backed page by page (2 MiB small, 20 MiB large).

In: the pool, a size and the driver. Out: a block on mapped addresses. As in torch, `allocate` maps the lowest addresses
that can hold a request, and `unmap` gives whole free pages back. Does not know limits: the driver refuses.

Example: a request of 50 MiB in an empty large pool maps three pages of 20 MiB. 10 MiB of them stay free; a request of
25 MiB takes these and one page more, where segments of fixed size would have needed a new one of 26 MiB.
"""

from __future__ import annotations

from vramcast.allocator.block import FREE, Block, BlockPool, ExpandableSegment
from vramcast.allocator.driver import Driver
from vramcast.units import round_up


def allocate(
    pool: BlockPool, stream: int, nbytes: int, driver: Driver, page_bytes: int
) -> Block | None:
    """A free, mapped block of at least `nbytes`, already taken out of the pool; None: the driver has no more."""
    block = _lowest_room(pool, stream, nbytes) or _new_segment(pool, stream, driver, page_bytes)
    if not block.mapped and not _map(block, min(block.size, nbytes), driver):
        return None
    while block.size < nbytes:
        unmapped = block.next
        if unmapped is None or not _map(unmapped, min(nbytes - block.size, unmapped.size), driver):
            return None
        block = unmapped  # mapping merged the free block before it
    pool.remove(block)
    return block


def preview(pool: BlockPool, stream: int, nbytes: int) -> int | None:
    """Where `allocate` would put a request; None: in a new segment."""
    first = _lowest_room(pool, stream, nbytes)
    return None if first is None else first.address


def map_at(pool: BlockPool, stream: int, address: int, nbytes: int, driver: Driver) -> bool:
    """Back a range that a recording says was backed; False if it is not the start of an unmapped range."""
    found = next(
        (block for start, block in pool.unmapped.get(stream, ()) if start == address), None
    )
    return found is not None and nbytes <= found.size and _map(found, nbytes, driver)


def unmap(block: Block, driver: Driver) -> int:
    """Give back the whole pages of a free block; returns their bytes. The block keeps what is left of its edges."""
    segment = block.expandable
    assert segment is not None
    page = segment.page_bytes
    begin = segment.base + round_up(block.address - segment.base, page)
    end = segment.base + (block.address + block.size - segment.base) // page * page
    if begin >= end:
        return 0
    pool = block.pool
    pool.remove(block)
    _split_off(block, block.address, begin - block.address, block.prev, block)
    _split_off(block, end, block.address + block.size - end, block, block.next)
    block.address, block.size, block.mapped = begin, end - begin, False
    driver.unmap(begin, end - begin)
    merge(block, block.prev)
    merge(block, block.next)
    pool.insert_unmapped(block)
    _count_reserved(pool, begin - end)
    return end - begin


def merge(block: Block, neighbour: Block | None) -> int:
    """Merge a free neighbour of the same kind into the block; returns its bytes, or 0."""
    if neighbour is None or neighbour.state != FREE or neighbour.mapped != block.mapped:
        return 0
    pool = block.pool
    if neighbour.mapped:
        pool.remove(neighbour)
    else:
        pool.remove_unmapped(neighbour)
    if block.prev is neighbour:
        block.address = neighbour.address
        before = block.prev = neighbour.prev
        if before is not None:
            before.next = block
    else:
        after = block.next = neighbour.next
        if after is not None:
            after.prev = block
    block.size += neighbour.size
    return neighbour.size


def _lowest_room(pool: BlockPool, stream: int, nbytes: int) -> Block | None:
    """The lowest addresses with enough room, counting free blocks and unmapped ranges together."""
    for _, block in pool.unmapped.get(stream, ()):
        first = block.prev if block.prev is not None and block.prev.state == FREE else block
        room, piece = 0, first if first.state == FREE else None
        while room < nbytes and piece is not None:
            room += piece.size
            piece = piece.next if piece.next is not None and piece.next.state == FREE else None
        if room >= nbytes:
            return first
    return None


def _new_segment(pool: BlockPool, stream: int, driver: Driver, page_bytes: int) -> Block:
    base, space = driver.reserve_addresses(page_bytes)
    block = Block(base, space, stream, pool)
    block.mapped = False
    block.expandable = ExpandableSegment(base, page_bytes, space)
    pool.insert_unmapped(block)
    return block


def _map(block: Block, nbytes: int, driver: Driver) -> bool:
    """Back the start of an unmapped block, in whole pages, and merge it with free neighbours."""
    segment, pool = block.expandable, block.pool
    assert segment is not None
    mapped_bytes = min(round_up(nbytes, segment.page_bytes), block.size)
    if not driver.map(block.address, mapped_bytes):
        return False
    pool.remove_unmapped(block)
    block.mapped = True
    if mapped_bytes < block.size:
        rest = Block(block.address + mapped_bytes, block.size - mapped_bytes, block.stream, pool)
        rest.mapped, rest.expandable = False, segment
        rest.insert_between(block, block.next)
        pool.insert_unmapped(rest)
        block.size = mapped_bytes
    merge(block, block.prev)
    merge(block, block.next)
    pool.insert(block)
    _count_reserved(pool, mapped_bytes)
    return True


def _split_off(
    block: Block, address: int, nbytes: int, before: Block | None, after: Block | None
) -> None:
    if nbytes <= 0:
        return
    piece = Block(address, nbytes, block.stream, block.pool)
    piece.expandable = block.expandable
    piece.insert_between(before, after)
    block.pool.insert(piece)


def _count_reserved(pool: BlockPool, nbytes: int) -> None:
    for tally in pool.tallies:
        tally.change("reserved_bytes", nbytes)
