"""What a memory snapshot says, in a form that stays small: segments, events and call stacks.

Events are packed rows of fixed size, because a snapshot of a long run has millions of them. Stacks, streams and pools
are numbered. Knows nothing about pickles (see `reader`) and draws no conclusions (see `history`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from vramcast.allocator import AllocatorSettings, PoolId
from vramcast.errors import SnapshotError

(
    ALLOC,
    FREE_REQUESTED,
    FREE_COMPLETED,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    OOM,
    SNAPSHOT,
) = range(9)
ACTIONS = {
    "alloc": ALLOC,
    "free_requested": FREE_REQUESTED,
    "free_completed": FREE_COMPLETED,
    "segment_alloc": SEGMENT_ALLOC,
    "segment_free": SEGMENT_FREE,
    "segment_map": SEGMENT_MAP,
    "segment_unmap": SEGMENT_UNMAP,
    "oom": OOM,
    "snapshot": SNAPSHOT,
}

NO_STACK = 0  # the number of the empty stack: nobody recorded where it happened
NO_POOL = 0xFFFF_FFFF  # torch before 2.9 does not say in which pool an event was

ROW = struct.Struct("<BIIIQQQ")
# action, stack, pool, stream, address (oom: free bytes of the card), bytes, microseconds
Row = tuple[int, int, int, int, int, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One line of a call stack; there is one object per different line, so identity is equality."""

    filename: str
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.filename}:{self.line} {self.name}" if self.line else self.name


Stack = tuple[Frame, ...]  # innermost first


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRecord:
    """A block at the end of the recording; `state` as in vramcast.allocator.block."""

    address: int
    size: int
    requested: int
    state: int
    stack: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRecord:
    """A segment at the end of the recording, with all its blocks in order."""

    device: int
    address: int
    size: int
    stream: int
    is_small: bool
    is_expandable: bool
    pool: PoolId
    blocks: tuple[BlockRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The recorded events of one device, oldest first."""

    rows: bytes | bytearray
    streams: tuple[int, ...]
    pools: tuple[PoolId, ...]

    def __len__(self) -> int:
        return len(self.rows) // ROW.size

    def __iter__(self) -> Iterator[Row]:
        return ROW.iter_unpack(self.rows)

    def __getitem__(self, index: int) -> Row:
        return ROW.unpack_from(self.rows, index * ROW.size)

    def records(self, action: int) -> bool:
        """Does any event have this action? Recordings can leave kinds of events out."""
        return action in bytes(self.rows[:: ROW.size])

    def reversed(self) -> Iterator[Row]:
        for index in range(len(self) - 1, -1, -1):
            yield self[index]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A whole file. `traces` has one entry per device; a file without history has empty ones."""

    segments: tuple[SegmentRecord, ...]
    traces: tuple[Trace, ...]
    stacks: tuple[Stack, ...]
    settings: AllocatorSettings
    settings_text: str
    ignored_settings: tuple[str, ...]  # recorded, but not understood here

    def devices(self) -> tuple[int, ...]:
        """Devices that hold memory or have events."""
        busy = {segment.device for segment in self.segments}
        busy.update(index for index, trace in enumerate(self.traces) if len(trace))
        return tuple(sorted(busy))

    def trace(self, device: int) -> Trace:
        if device < len(self.traces):
            return self.traces[device]
        return Trace(rows=b"", streams=(), pools=())

    def segments_of(self, device: int) -> tuple[SegmentRecord, ...]:
        chosen = sorted(
            (s for s in self.segments if s.device == device), key=lambda segment: segment.address
        )
        for before, after in pairwise(chosen):
            if before.address + before.size > after.address:
                raise SnapshotError(
                    f"segments overlap at {after.address:#x}: this is not a snapshot that torch wrote."
                )
        return tuple(chosen)
