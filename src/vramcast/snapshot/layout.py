"""Where the live blocks of one device are at one moment, by address: the picture that events change.

It follows recorded addresses and decides nothing. `spans` are segments, or the mapped ranges of expandable ones.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, replace

from vramcast.allocator import DEFAULT_POOL, PoolId
from vramcast.allocator.restore import HeldBlock, HeldSegment


class LiveBlock:
    """A block in use. `size` is None while it is not known how much of the segment it took."""

    __slots__ = ("address", "born", "lasts", "requested", "size", "stack", "state")

    def __init__(
        self, address: int, requested: int, size: int | None, state: int, stack: int, born: int
    ) -> None:
        self.address = address
        self.requested = requested
        self.size = size
        self.state = state
        self.stack = stack
        self.born = born  # the event that allocated it; -1: before the recording
        self.lasts = False  # it is still there at the end of the recording

    def copy(self) -> LiveBlock:
        other = LiveBlock(
            self.address, self.requested, self.size, self.state, self.stack, self.born
        )
        other.lasts = self.lasts
        return other


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A range of addresses backed by memory."""

    start: int
    end: int
    stream: int
    is_small: bool
    is_expandable: bool
    pool: PoolId


def _is_same_segment(piece: Span, other: Span) -> bool:
    """Do pieces that touch belong together? Those of expandable segments of one stream do."""
    return piece.is_expandable and piece.stream == other.stream


class Layout:
    """Spans and live blocks, each findable by address."""

    def __init__(self) -> None:
        self.blocks: dict[int, LiveBlock] = {}
        self._addresses: list[int] = []
        self.spans: dict[int, Span] = {}
        self._starts: list[int] = []

    def copy(self) -> Layout:
        other = Layout()
        other.blocks = {address: block.copy() for address, block in self.blocks.items()}
        other._addresses = list(self._addresses)
        other.spans = dict(self.spans)
        other._starts = list(self._starts)
        return other

    # Blocks

    def add_block(self, block: LiveBlock) -> None:
        if block.address not in self.blocks:
            insort(self._addresses, block.address)
        self.blocks[block.address] = block

    def remove_block(self, address: int) -> LiveBlock | None:
        block = self.blocks.pop(address, None)
        if block is not None:
            del self._addresses[bisect_left(self._addresses, address)]
        return block

    def room_at(self, address: int) -> int | None:
        """Bytes from `address` to the next live block or the end of the span; None outside all spans."""
        span = self.span_at(address)
        if span is None:
            return None
        index = bisect_right(self._addresses, address)
        end = span.end
        if index < len(self._addresses) and self._addresses[index] < end:
            end = self._addresses[index]
        return end - address

    def block_before(self, address: int) -> LiveBlock | None:
        """The nearest live block below `address` in the same span."""
        index = bisect_left(self._addresses, address) - 1
        span = self.span_at(address)
        if index < 0 or span is None or self._addresses[index] < span.start:
            return None
        return self.blocks[self._addresses[index]]

    # Spans

    def span_at(self, address: int) -> Span | None:
        index = bisect_right(self._starts, address) - 1
        if index < 0:
            return None
        span = self.spans[self._starts[index]]
        return span if address < span.end else None

    def pool_at(self, address: int) -> PoolId:
        """The pool that owns an address; the default one where nothing is known."""
        span = self.span_at(address)
        return DEFAULT_POOL if span is None else span.pool

    def add_span(self, span: Span) -> bool:
        """Add memory; a piece of an expandable segment joins the pieces it touches. False if some is there already."""
        index = bisect_right(self._starts, span.start)
        overlaps_next = index < len(self._starts) and self._starts[index] < span.end
        if span.start >= span.end or overlaps_next or self.span_at(span.start) is not None:
            return False
        if span.is_expandable:
            span = self._join_neighbours(span)
        self.spans[span.start] = span
        insort(self._starts, span.start)
        return True

    def _join_neighbours(self, span: Span) -> Span:
        """Take out the pieces of the same segment that end or begin where this one begins or ends: one span of all."""
        below = self.span_at(span.start - 1)
        if below is not None and below.end == span.start and _is_same_segment(below, span):
            self._drop(below.start)
            span = replace(span, start=below.start)
        above = self.spans.get(span.end)
        if above is not None and _is_same_segment(above, span):
            self._drop(above.start)
            span = replace(span, end=above.end)
        return span

    def remove_span(self, start: int, end: int) -> bool:
        """Take memory away; of an expandable segment also from the middle. False if it was not there."""
        span = self.span_at(start)
        if (
            span is None
            or end > span.end
            or start >= end
            or (not span.is_expandable and (span.start, span.end) != (start, end))
        ):
            return False
        self._drop(span.start)
        if span.start < start:
            self.add_span(replace(span, end=start))
        if end < span.end:
            self.add_span(replace(span, start=end))
        return True

    def _drop(self, start: int) -> None:
        del self.spans[start]
        del self._starts[bisect_left(self._starts, start)]

    def reserved_bytes(self) -> int:
        return sum(span.end - span.start for span in self.spans.values())

    def held(self) -> tuple[HeldSegment, ...]:
        """The same picture in the allocator's terms; every block size must be known."""
        segments = []
        for start in self._starts:
            span = self.spans[start]
            first, last = (
                bisect_left(self._addresses, span.start),
                bisect_left(self._addresses, span.end),
            )
            blocks = (self.blocks[address] for address in self._addresses[first:last])
            segments.append(
                HeldSegment(
                    address=span.start,
                    size=span.end - span.start,
                    stream=span.stream,
                    is_small=span.is_small,
                    is_expandable=span.is_expandable,
                    pool=span.pool,
                    blocks=tuple(
                        HeldBlock(
                            address=b.address,
                            size=b.size or 0,
                            requested=b.requested,
                            state=b.state,
                        )
                        for b in blocks
                    ),
                )
            )
        return tuple(segments)
