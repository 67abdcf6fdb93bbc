"""Put an allocator into a known state.

In: an empty Allocator, segments and their live blocks. Out: the same Allocator in that state. Free blocks need not be
given: there is exactly one between two live blocks, since the allocator merges neighbours. An expandable segment is
given as the pieces of it that are mapped; pieces of one stream and pool belong together. Does not know how the state
came about: peaks start from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vramcast.allocator.block import ALLOCATED, FREE, Block, BlockPool, ExpandableSegment, PoolId
from vramcast.allocator.constants import SMALL_SEGMENT_BYTES
from vramcast.allocator.core import Allocator
from vramcast.errors import InvariantError


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBlock:
    """A live block; `state` is ALLOCATED or PENDING."""

    address: int
    size: int
    requested: int
    state: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSegment:
    """A segment, or a mapped range of an expandable one, with its live blocks in order of address."""

    address: int
    size: int
    stream: int
    is_small: bool
    is_expandable: bool
    pool: PoolId
    blocks: tuple[HeldBlock, ...]


# Stream, pool, is_small: each has one expandable segment at a time.
SpaceKey = tuple[int, PoolId, bool]


def restore(
    allocator: Allocator,
    segments: Iterable[HeldSegment],
    bases: Mapping[SpaceKey, int] | None = None,
) -> dict[int, Block]:
    """Fill an empty allocator; returns its live blocks by address. Peaks start from here.

    `bases` are the first addresses of expandable segments, if those are below the first mapped piece.
    """
    live: dict[int, Block] = {}
    groups: dict[SpaceKey, list[HeldSegment]] = {}
    for segment in sorted(segments, key=lambda held: held.address):
        if segment.is_expandable:
            groups.setdefault((segment.stream, segment.pool, segment.is_small), []).append(segment)
            continue
        pool = allocator.segments.pool_for(segment.pool, segment.is_small)
        allocator.segments.add_segment(segment.address, segment.size, segment.stream, pool)
        _adopt(_chain(segment, pool, None), live)
    for key, pieces in groups.items():
        base = min((bases or {}).get(key, pieces[0].address), pieces[0].address)
        _restore_expandable(allocator, pieces, base, live)
    allocator.reset_peak()
    allocator.check()
    return live


def _restore_expandable(
    allocator: Allocator, pieces: list[HeldSegment], base: int, live: dict[int, Block]
) -> None:
    """Make one segment of the mapped pieces and the gaps between them; it continues after the last piece."""
    first = pieces[0]
    pool = allocator.segments.pool_for(first.pool, first.is_small)
    page_bytes = SMALL_SEGMENT_BYTES if first.is_small else allocator.settings.large_segment_bytes
    _, space_bytes = allocator.driver.reserve_addresses(page_bytes)
    owner = ExpandableSegment(base, page_bytes, space_bytes)
    end = max(base + space_bytes, pieces[-1].address + pieces[-1].size + page_bytes)
    blocks: list[Block] = []
    position = base
    for piece in pieces:
        blocks += _unmapped(position, piece.address, first.stream, pool, owner)
        blocks += _chain(piece, pool, owner)
        position = piece.address + piece.size
        for tally in pool.tallies:
            tally.raise_by("reserved_bytes", piece.size)
    blocks += _unmapped(position, end, first.stream, pool, owner)
    _adopt(blocks, live)


def _unmapped(
    start: int, end: int, stream: int, pool: BlockPool, owner: ExpandableSegment
) -> list[Block]:
    if start >= end:
        return []
    block = Block(start, end - start, stream, pool)
    block.mapped, block.expandable = False, owner
    return [block]


def _chain(segment: HeldSegment, pool: BlockPool, owner: ExpandableSegment | None) -> list[Block]:
    """The live blocks of a segment and the free ones between them."""
    blocks: list[Block] = []
    position, end = segment.address, segment.address + segment.size
    for held in segment.blocks:
        if held.address < position or held.address + held.size > end:
            raise InvariantError(
                f"block {held.address:#x} of {held.size} bytes does not fit segment {segment.address:#x}"
            )
        if held.address > position:
            blocks.append(Block(position, held.address - position, segment.stream, pool))
        block = Block(held.address, held.size, segment.stream, pool)
        block.state, block.requested = held.state, held.requested
        blocks.append(block)
        position = held.address + held.size
    if position < end:
        blocks.append(Block(position, end - position, segment.stream, pool))
    for block in blocks:
        block.expandable = owner
    return blocks


def _adopt(blocks: list[Block], live: dict[int, Block]) -> None:
    """Link the blocks of one segment, put the free ones into their pool and count the rest."""
    before: Block | None = None
    for block in blocks:
        block.insert_between(before, None)
        before = block
    for block in blocks:
        if block.state == FREE and block.mapped:
            block.pool.insert(block)
            if block.is_split() and block.expandable is None:
                for tally in block.pool.tallies:
                    tally.raise_by("inactive_split", 1)
                    tally.raise_by("inactive_split_bytes", block.size)
        elif block.state == FREE:
            block.pool.insert_unmapped(block)
        else:
            live[block.address] = block
            _count_live(block)


def _count_live(block: Block) -> None:
    for tally in block.pool.tallies:
        tally.raise_by("active", 1)
        tally.raise_by("active_bytes", block.size)
        tally.raise_by("requested_bytes", block.requested)
        if block.state == ALLOCATED:
            tally.raise_by("allocation", 1)
            tally.raise_by("allocated_bytes", block.size)
