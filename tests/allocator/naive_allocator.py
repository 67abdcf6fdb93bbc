"""The caching allocator written down the slow and obvious way, from torch's description of it, to compare with ours.

Memory is one list of pieces in order of address. Every step looks at all of them. It also writes the events and the
snapshot that torch would write, so that tests can make recordings whose truth is known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MIB = 1 << 20
SMALL_LIMIT = MIB
UNLIMITED = 1 << 70


@dataclass
class Piece:
    address: int
    size: int
    segment: int
    stream: int
    small: bool
    pool: tuple[int, int]
    state: str = "free"  # free, live, waiting, unmapped
    requested: int = 0
    frames: list[dict[str, Any]] = field(default_factory=list)


class NoMemory(Exception):
    pass


class NaiveAllocator:
    def __init__(
        self,
        capacity: int = UNLIMITED,
        *,
        expandable: bool = False,
        max_split: int = UNLIMITED,
        large_segment: int = 20 * MIB,
        divisions: int = 0,
        first_address: int = 0x7F00_0000_0000,
    ) -> None:
        self.capacity = capacity
        self.expandable = expandable
        self.max_split = max_split
        self.large_segment = large_segment
        self.divisions = divisions
        self.next_address = first_address
        self.pieces: list[Piece] = []
        self.expandable_segments: set[int] = set()
        self.reserved = self.peak_reserved = self.peak_allocated = 0
        self.events: list[dict[str, Any]] = []
        self.figures: list[tuple[int, int]] = [
            (0, 0)
        ]  # allocated and reserved before the first and after each event

    # The three things a program does

    def malloc(
        self, nbytes: int, stream: int = 0, pool: tuple[int, int] = (0, 0), frames: Any = ()
    ) -> Piece:
        size = self.round(nbytes)
        piece = self.best_fit(size, stream, pool) or self.from_driver(size, stream, pool)
        rest = piece.size - size
        if rest >= 512 if piece.small or self.expandable else rest > MIB and size < self.max_split:
            index = self.pieces.index(piece)
            remainder = Piece(piece.address + size, rest, piece.segment, stream, piece.small, pool)
            self.pieces.insert(index + 1, remainder)
            piece.size = size
        piece.state, piece.requested, piece.frames = "live", nbytes, list(frames)
        self.peak_allocated = max(self.peak_allocated, self.allocated())
        self.log("alloc", piece.address, nbytes, stream, pool, frames)
        return piece

    def free(self, piece: Piece, wait: bool = False) -> None:
        piece.state = "waiting"
        self.log("free_requested", piece.address, piece.requested, piece.stream, piece.pool)
        if not wait:
            self.complete(piece)

    def complete(self, piece: Piece) -> None:
        self.log("free_completed", piece.address, piece.requested, piece.stream, piece.pool)
        piece.state, piece.requested, piece.frames = "free", 0, []
        self.merge()

    def empty_cache(self) -> None:
        for piece in [piece for piece in self.pieces if piece.state == "waiting"]:
            self.complete(piece)
        order = sorted(
            (piece for piece in self.pieces if piece.state == "free" and piece.pool == (0, 0)),
            key=lambda piece: (piece.small, piece.stream, piece.size, piece.address),
        )
        for piece in order:
            if piece.segment in self.expandable_segments:
                self.unmap(piece)
            elif sum(other.segment == piece.segment for other in self.pieces) == 1:
                self.pieces.remove(piece)
                self.reserved -= piece.size
                self.log("segment_free", piece.address, piece.size, piece.stream, piece.pool)

    # How it does them

    def round(self, nbytes: int) -> int:
        if self.divisions > 1 and nbytes > 512 * self.divisions and nbytes & (nbytes - 1):
            power = 1
            while power * 2 <= nbytes:
                power *= 2
            step = power // self.divisions
            while power < nbytes:
                power += step
            return power
        return max(512, (nbytes + 511) // 512 * 512)

    def best_fit(self, size: int, stream: int, pool: tuple[int, int]) -> Piece | None:
        fitting = sorted(
            (piece for piece in self.pieces if self.usable(piece, size, stream, pool)),
            key=lambda piece: (piece.size, piece.address),
        )
        if not fitting:
            return None
        index = 0
        if self.expandable:
            while index + 1 < len(fitting) and self.growable(fitting[index + 1]) < self.growable(
                fitting[index]
            ):
                index += 1
        chosen = fitting[index]
        if size < self.max_split <= chosen.size:
            return None
        if size >= self.max_split and chosen.size >= size + 20 * MIB:
            return None
        return chosen

    def usable(self, piece: Piece, size: int, stream: int, pool: tuple[int, int]) -> bool:
        same_place = (piece.stream, piece.small, piece.pool) == (stream, size <= SMALL_LIMIT, pool)
        return piece.state == "free" and piece.size >= size and same_place

    def growable(self, piece: Piece) -> int:
        """Its size and, if addresses without memory follow in its segment, theirs."""
        index = self.pieces.index(piece)
        after = self.pieces[index + 1] if index + 1 < len(self.pieces) else None
        grows = after is not None and after.segment == piece.segment and after.state == "unmapped"
        return piece.size + (after.size if after is not None and grows else 0)

    def from_driver(self, size: int, stream: int, pool: tuple[int, int]) -> Piece:
        piece = self.new_memory(size, stream, pool)
        if piece is None and self.max_split != UNLIMITED and self.release_some(size, stream, pool):
            piece = self.new_memory(size, stream, pool)
        if piece is None and pool == (0, 0):
            self.empty_cache()
            piece = self.new_memory(size, stream, pool)
        if piece is None:
            self.log("oom", self.capacity - self.reserved, size, stream, pool)
            raise NoMemory
        return piece

    def release_some(self, size: int, stream: int, pool: tuple[int, int]) -> bool:
        wanted = max(size, self.max_split)
        cached = [p for p in self.pieces if self.usable(p, size, stream, pool) or (
            p.state == "free" and (p.stream, p.small, p.pool) == (stream, size <= SMALL_LIMIT, pool))]  # fmt: skip
        cached.sort(key=lambda piece: (piece.size, piece.address))
        enough = [piece for piece in cached if piece.size >= wanted]
        if enough:
            self.release(enough[0])
            return True
        released = 0
        for piece in reversed(cached):
            if released >= wanted or piece.size < self.max_split:
                break
            released += piece.size
            self.release(piece)
        return released >= wanted

    def release(self, piece: Piece) -> None:
        self.pieces.remove(piece)
        self.reserved -= piece.size
        self.log("segment_free", piece.address, piece.size, piece.stream, piece.pool)

    def new_memory(self, size: int, stream: int, pool: tuple[int, int]) -> Piece | None:
        if self.expandable:
            return self.map_lowest(size, stream, pool)
        if size <= SMALL_LIMIT:
            segment_size = 2 * MIB
        elif size < 10 * MIB:
            segment_size = self.large_segment
        else:
            segment_size = (size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
        if self.reserved + segment_size > self.capacity:
            return None
        address = self.addresses(segment_size)
        piece = Piece(address, segment_size, address, stream, size <= SMALL_LIMIT, pool)
        self.add(piece)
        self.reserve(segment_size)
        self.log("segment_alloc", address, segment_size, stream, pool)
        return piece

    def map_lowest(self, size: int, stream: int, pool: tuple[int, int]) -> Piece | None:
        small = size <= SMALL_LIMIT
        page = 2 * MIB if small else self.large_segment
        start = self.lowest_room(size, stream, pool, small)
        if start is None:
            card = self.capacity if self.capacity != UNLIMITED else 1 << 40
            space = (card * 9 // 8 + page - 1) // page * page
            address = self.addresses(space)
            self.expandable_segments.add(address)
            self.add(Piece(address, space, address, stream, small, pool, "unmapped"))
            start = address
        while True:  # grow the free piece at `start` until it is large enough
            free = next((p for p in self.pieces if p.address == start and p.state == "free"), None)
            if free is not None and free.size >= size:
                return free
            have = free.size if free is not None else 0
            hole = next(
                p for p in self.pieces if p.state == "unmapped" and p.address == start + have
            )
            pages = min((size - have + page - 1) // page * page, hole.size)
            if self.reserved + pages > self.capacity:
                return None
            mapped = Piece(hole.address, pages, hole.segment, stream, small, pool)
            hole.address += pages
            hole.size -= pages
            if not hole.size:
                self.pieces.remove(hole)
            self.add(mapped)
            self.reserve(pages)
            self.log("segment_map", mapped.address, pages, stream, pool)
            self.merge()

    def lowest_room(self, size: int, stream: int, pool: tuple[int, int], small: bool) -> int | None:
        for index, hole in enumerate(self.pieces):
            if hole.state != "unmapped" or (hole.stream, hole.small, hole.pool) != (
                stream,
                small,
                pool,
            ):
                continue
            first = index
            if (
                index
                and self.pieces[index - 1].segment == hole.segment
                and self.pieces[index - 1].state == "free"
            ):
                first = index - 1
            room, at = 0, first
            while at < len(self.pieces) and self.pieces[at].segment == hole.segment:
                if self.pieces[at].state not in ("free", "unmapped") or room >= size:
                    break
                room += self.pieces[at].size
                at += 1
            if room >= size:
                return self.pieces[first].address
        return None

    def unmap(self, piece: Piece) -> None:
        page = 2 * MIB if piece.small else self.large_segment
        begin = piece.segment + (piece.address - piece.segment + page - 1) // page * page
        end = piece.segment + (piece.address + piece.size - piece.segment) // page * page
        if begin >= end:
            return
        self.pieces.remove(piece)
        for start, stop, state in (
            (piece.address, begin, "free"), (begin, end, "unmapped"), (end, piece.address + piece.size, "free"),
        ):  # fmt: skip
            if stop > start:
                self.add(
                    Piece(
                        start,
                        stop - start,
                        piece.segment,
                        piece.stream,
                        piece.small,
                        piece.pool,
                        state,
                    )
                )
        self.reserved -= end - begin
        self.log("segment_unmap", begin, end - begin, piece.stream, piece.pool)
        self.merge()
        if [p.state for p in self.pieces if p.segment == piece.segment] == ["unmapped"]:
            self.pieces = [p for p in self.pieces if p.segment != piece.segment]

    def merge(self) -> None:
        """Neighbours of one segment that are both free, or both unmapped, are one piece."""
        merged: list[Piece] = []
        for piece in self.pieces:
            last = merged[-1] if merged else None
            if (
                last
                and last.segment == piece.segment
                and last.state == piece.state
                and piece.state in ("free", "unmapped")
            ):
                last.size += piece.size
            else:
                merged.append(piece)
        self.pieces = merged

    def add(self, piece: Piece) -> None:
        self.pieces.append(piece)
        self.pieces.sort(key=lambda other: other.address)

    def addresses(self, size: int) -> int:
        address = self.next_address
        self.next_address += (size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
        return address

    def reserve(self, size: int) -> None:
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def allocated(self) -> int:
        return sum(piece.size for piece in self.pieces if piece.state == "live")

    def log(
        self,
        action: str,
        address: int,
        size: int,
        stream: int,
        pool: tuple[int, int],
        frames: Any = (),
    ) -> None:
        self.events.append({
            "action": action, "device_free" if action == "oom" else "addr": address, "size": size, "stream": stream,
            "time_us": 1_700_000_000_000_000 + len(self.events), "pool_id": pool, "frames": list(frames),
        })  # fmt: skip
        self.figures.append((self.allocated(), self.reserved))

    def segments(self) -> list[dict[str, Any]]:
        """As torch.cuda.memory_snapshot() shows them: an expandable segment once per range that has memory."""
        states = {"free": "inactive", "live": "active_allocated", "waiting": "active_pending_free"}
        segments: list[dict[str, Any]] = []
        last: Piece | None = None
        for piece in self.pieces:
            if piece.state != "unmapped":
                if last is None or last.segment != piece.segment or last.state == "unmapped":
                    segments.append({
                        "device": 0, "address": piece.address, "total_size": 0, "stream": piece.stream,
                        "segment_type": "small" if piece.small else "large", "segment_pool_id": piece.pool,
                        "is_expandable": piece.segment in self.expandable_segments, "frames": [], "blocks": [],
                    })  # fmt: skip
                segments[-1]["total_size"] += piece.size
                segments[-1]["blocks"].append({
                    "address": piece.address, "size": piece.size, "requested_size": piece.requested,
                    "state": states[piece.state], "frames": piece.frames,
                })  # fmt: skip
            last = piece
        return segments
