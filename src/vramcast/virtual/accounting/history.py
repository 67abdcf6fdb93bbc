"""Every allocation and free of one card, in order, for as long as somebody wants it: a saved trace, a torch snapshot.

In come blocks as the meter gets and frees them, out come plain numbers. Kept only if asked for: a script may run for
days. Frames are the Python stack without ours, innermost first, as torch records them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import CodeType, FrameType

from vramcast.allocator import Block
from vramcast.virtual.accounting.source_lines import is_ours
from vramcast.virtual.accounting.storages import Record

_MOST_FRAMES = 64

Frame = tuple[CodeType, int]


@dataclass(slots=True)
class Allocation:
    requested_bytes: int
    block_bytes: int
    address: int
    stream: int
    phase: str
    record: Record | None  # None: memory that a kernel takes while it runs
    frames: tuple[Frame, ...]


class History:
    """`events` has the index of an allocation where it is made, and ~index where it is freed."""

    def __init__(self, *, with_frames: bool = True) -> None:
        self.allocations: list[Allocation] = []
        self.events: list[int] = []
        self._with_frames = with_frames
        self._alive: dict[int, int] = {}  # by block

    def add(self, block: object, requested_bytes: int, record: Record | None, phase: str) -> None:
        if not isinstance(block, Block):
            return
        index = len(self.allocations)
        frames = _frames() if self._with_frames else ()
        self.allocations.append(
            Allocation(
                requested_bytes, block.size, block.address, block.stream, phase, record, frames
            )
        )
        self._alive[id(block)] = index
        self.events.append(index)

    def remove(self, block: object) -> None:
        index = self._alive.pop(id(block), None)
        if index is not None:
            self.events.append(~index)

    def frames_of(self, block: object) -> tuple[Frame, ...]:
        index = self._alive.get(id(block))
        return () if index is None else self.allocations[index].frames


def _frames() -> tuple[Frame, ...]:
    frames: list[Frame] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and len(frames) < _MOST_FRAMES:
        if not is_ours(frame.f_code.co_filename):
            frames.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return tuple(frames)
