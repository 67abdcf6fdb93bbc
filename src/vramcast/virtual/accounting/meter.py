"""One place's memory over time: what is allocated and reserved now, and the moment each phase needed most.

Births and deaths come in; at the end of every phase the records alive at its peak are handed out. Only the most
demanding instance of each phase is kept, so a script may run for days. Knows nothing about torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from vramcast.units import round_up

if TYPE_CHECKING:
    from vramcast.virtual.accounting.storages import Record

TIMELINE_POINTS = 4096


class Memory(Protocol):
    """What gives out blocks: the allocator model of a card, or a plain count."""

    @property
    def allocated_bytes(self) -> int: ...
    @property
    def reserved_bytes(self) -> int: ...

    def malloc(self, nbytes: int) -> tuple[object, int]: ...
    def free(self, block: object) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One sample of the timeline; the most demanding event of its stretch."""

    event: int
    phase: str
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The moment of one phase that needed most, and what was alive."""

    phase: str
    place: str
    event: int
    allocated_bytes: int
    reserved_bytes: int  # the most reserved at any time of the phase
    alive: tuple[Record, ...]


class HostMemory:
    """The host gives out what is asked for."""

    def __init__(self) -> None:
        self.allocated_bytes = 0

    @property
    def reserved_bytes(self) -> int:
        return self.allocated_bytes

    def malloc(self, nbytes: int) -> tuple[object, int]:
        nbytes = round_up(nbytes, 64)  # c10's CPU allocator aligns to 64 bytes
        self.allocated_bytes += nbytes
        return nbytes, nbytes

    def free(self, block: object) -> None:
        assert isinstance(block, int)
        self.allocated_bytes -= block


class PinnedMemory:
    """torch's CachingHostAllocator: powers of two, given out again but never given back."""

    def __init__(self) -> None:
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        self._cached: dict[int, int] = {}  # block size → how many wait

    def malloc(self, nbytes: int) -> tuple[object, int]:
        size = 1 << max(0, nbytes - 1).bit_length()
        if self._cached.get(size, 0):
            self._cached[size] -= 1
        else:
            self.reserved_bytes += size
        self.allocated_bytes += size
        return size, size

    def free(self, block: object) -> None:
        assert isinstance(block, int)
        self.allocated_bytes -= block
        self._cached[block] = self._cached.get(block, 0) + 1


class Meter:
    def __init__(self, place: str, memory: Memory) -> None:
        self.place = place
        self.memory = memory
        self.live: dict[int, Record] = {}
        self.timeline: list[Point] = []
        self.max_allocated_bytes = 0
        self.max_reserved_bytes = 0
        self.possible_bytes: dict[str, int] = {}  # by phase: the most that may have been allocated
        self.largest_workspace_bytes = 0  # that one kernel may have taken
        self._died: list[Record] = []
        self._stride = 1
        self._open(0)

    def born(self, record: Record, requested_bytes: int, event: int, phase: str) -> None:
        record.block, record.nbytes = self.memory.malloc(requested_bytes)
        record.birth = event
        self.live[id(record)] = record
        self._look(event, phase)

    def died(self, record: Record, event: int, phase: str) -> None:
        if self.live.pop(id(record), None) is None:
            return
        self.memory.free(record.block)
        record.death = event
        self._died.append(record)
        self._sample(event, phase)

    def momentary(self, sizes: Iterable[int], event: int, phase: str) -> list[object]:
        """Memory a kernel takes and gives back while it runs; the caller frees the blocks."""
        blocks: list[object] = []
        try:
            for size in sizes:
                blocks.append(self.memory.malloc(size)[0])
                self._look(event, phase)
        except BaseException:
            self.release(blocks)
            raise
        return blocks

    def release(self, blocks: Iterable[object]) -> None:
        for block in blocks:
            self.memory.free(block)

    def might_take(self, nbytes: int, phase: str) -> None:
        """A kernel that has just run may have held this much more; what that would add to the phase's peak is kept."""
        self.largest_workspace_bytes = max(self.largest_workspace_bytes, nbytes)
        over = self.memory.allocated_bytes + nbytes
        if nbytes and over > self.possible_bytes.get(phase, 0):
            self.possible_bytes[phase] = over

    def close(self, phase: str, event: int) -> Peak:
        """End of a phase: its peak, and a fresh window."""
        peak_event = self._peak_event
        alive = [record for record in self.live.values() if record.birth <= peak_event]
        alive += [record for record in self._died if record.birth <= peak_event < (record.death or 0)]
        peak = Peak(
            phase=phase, place=self.place, event=peak_event, allocated_bytes=self._peak_bytes,
            reserved_bytes=self._peak_reserved_bytes, alive=tuple(alive),
        )  # fmt: skip
        self._open(event)
        return peak

    def _open(self, event: int) -> None:
        self._died = []
        self._peak_event = event
        self._peak_bytes = self.memory.allocated_bytes
        self._peak_reserved_bytes = self.memory.reserved_bytes

    def _look(self, event: int, phase: str) -> None:
        memory = self.memory
        if memory.allocated_bytes > self._peak_bytes:
            self._peak_bytes, self._peak_event = memory.allocated_bytes, event
        if memory.reserved_bytes > self._peak_reserved_bytes:
            self._peak_reserved_bytes = memory.reserved_bytes
        self.max_allocated_bytes = max(self.max_allocated_bytes, memory.allocated_bytes)
        self.max_reserved_bytes = max(self.max_reserved_bytes, memory.reserved_bytes)
        self._sample(event, phase)

    def _sample(self, event: int, phase: str) -> None:
        memory = self.memory
        last = self.timeline[-1] if self.timeline else None
        if last is not None and event - last.event < self._stride and last.phase == phase:
            if memory.allocated_bytes <= last.allocated_bytes:
                return
            self.timeline.pop()
        self.timeline.append(
            Point(
                event=event, phase=phase, allocated_bytes=memory.allocated_bytes, reserved_bytes=memory.reserved_bytes
            )
        )
        if len(self.timeline) > 2 * TIMELINE_POINTS:
            self._thin()

    def _thin(self) -> None:
        """Half the points, keeping the higher of each pair, so that no peak is lost."""
        pairs = zip(self.timeline[::2], self.timeline[1::2], strict=False)
        self.timeline = [max(pair, key=lambda point: point.allocated_bytes) for pair in pairs]
        self._stride *= 2
