"""One place's memory over time: what is allocated and reserved now, and the moment at which each phase needed most.

In come allocations and frees, each with its number on the clock and its phase. Out comes, at the end of every phase, a
`Peak`: the records that were allocated at the phase's peak. A meter keeps one phase at a time and a timeline of bounded
length, so a script may run for days. Does not know tensors, nor what a record is for.

One step of `Sequential(Linear(1024, 1024, bias=False), ReLU())` in fp32, SGD with momentum, 2048 rows on an RTX 4090
(weight, gradient and momentum 4 MiB each; input, product and output 8 MiB each; a cuBLAS workspace is 8.125 MiB):

    event                                    allocated MiB   phase
    weight, then the input                    4.000, 12.000   load, peak 12.000
    product of the linear layer              20.000          forward
    cuBLAS workspace, kept for good          28.125
    output of ReLU                           36.125          forward, peak
    product freed: ReLU saves its output     28.125
    loss, and the gradient of it             28.126          loss, peak
    gradient of the product                  36.126          backward
    output of ReLU freed                     28.126
    gradient of the weight                   32.126
    cuBLAS workspace of the backward thread  40.251          backward, peak
    gradient of the product freed            32.251
    momentum                                 36.250          step, peak
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from vramcast.units import round_up
from vramcast.virtual.accounting.history import History
from vramcast.virtual.accounting.storages import Record

TIMELINE_POINTS = 4096


class Memory(Protocol):
    """Where blocks come from: the allocator model of a card, or a plain count of the host's bytes."""

    @property
    def allocated_bytes(self) -> int: ...
    @property
    def reserved_bytes(self) -> int: ...

    def malloc(self, nbytes: int) -> tuple[object, int]: ...
    def free(self, block: object) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One sample of the timeline: the event of its interval with the most allocated."""

    event: int
    phase: str
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The moment at which one phase had the most allocated, and the records allocated then."""

    phase: str
    place: str
    event: int
    allocated_bytes: int
    reserved_bytes: int  # the most reserved at any time of the phase
    alive: tuple[Record, ...]


class HostMemory:
    """Pageable memory of the host: without a limit."""

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
    """torch's CachingHostAllocator: blocks are powers of two, reused and never returned to the system."""

    def __init__(self) -> None:
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        self._cached: dict[int, int] = {}  # block size → how many free ones

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
    """Counts one place's memory. `live` has the records that are allocated now."""

    def __init__(self, place: str, memory: Memory) -> None:
        self.place = place
        self.memory = memory
        self.live: dict[int, Record] = {}
        self.timeline: list[Point] = []
        self.max_allocated_bytes = 0
        self.max_reserved_bytes = 0
        # by phase: the most that was allocated if kernels of unknown workspace took all they may
        self.possible_bytes: dict[str, int] = {}
        self.largest_workspace_bytes = 0  # that one kernel may have taken
        self.history: History | None = None  # of every event, if somebody wants it
        self._freed: list[Record] = []  # in the current phase
        self._stride = 1  # events per point of the timeline
        self._start_phase(0)

    def allocate(self, record: Record, requested_bytes: int, event: int, phase: str) -> None:
        record.block, record.nbytes = self.memory.malloc(requested_bytes)
        record.allocated_at = event
        if self.history is not None:
            self.history.add(record.block, requested_bytes, record, phase)
        self.live[id(record)] = record
        self._update_peaks(event, phase)

    def free(self, record: Record, event: int, phase: str) -> None:
        if self.live.pop(id(record), None) is None:
            return
        if self.history is not None:
            self.history.remove(record.block)
        self.memory.free(record.block)
        record.freed_at = event
        self._freed.append(record)
        self._add_to_timeline(event, phase)

    def allocate_temporaries(self, sizes: Iterable[int], event: int, phase: str) -> list[object]:
        """Memory that a kernel takes and gives back while it runs; the caller frees the blocks."""
        blocks: list[object] = []
        try:
            for size in sizes:
                block = self.memory.malloc(size)[0]
                blocks.append(block)
                if self.history is not None:
                    self.history.add(block, size, None, phase)
                self._update_peaks(event, phase)
        except BaseException:
            self.free_temporaries(blocks)
            raise
        return blocks

    def free_temporaries(self, blocks: Iterable[object]) -> None:
        for block in blocks:
            if self.history is not None:
                self.history.remove(block)
            self.memory.free(block)

    def note_possible_workspace(self, nbytes: int, phase: str) -> None:
        """A kernel that has just run may have held up to this much more; `possible_bytes` of the phase follows."""
        self.largest_workspace_bytes = max(self.largest_workspace_bytes, nbytes)
        possible = self.memory.allocated_bytes + nbytes
        if nbytes and possible > self.possible_bytes.get(phase, 0):
            self.possible_bytes[phase] = possible

    def end_phase(self, phase: str, event: int) -> Peak:
        """The peak of the phase that ends; what follows is counted for the next one."""
        peak_event = self._peak_event
        alive = [record for record in self.live.values() if record.allocated_at <= peak_event]
        for record in self._freed:
            freed_at = record.freed_at or 0
            if record.allocated_at <= peak_event < freed_at:
                alive.append(record)
        peak = Peak(
            phase=phase,
            place=self.place,
            event=peak_event,
            allocated_bytes=self._peak_bytes,
            reserved_bytes=self._peak_reserved_bytes,
            alive=tuple(alive),
        )
        self._start_phase(event)
        return peak

    def _start_phase(self, event: int) -> None:
        self._freed = []
        self._peak_event = event
        self._peak_bytes = self.memory.allocated_bytes
        self._peak_reserved_bytes = self.memory.reserved_bytes

    def _update_peaks(self, event: int, phase: str) -> None:
        memory = self.memory
        if memory.allocated_bytes > self._peak_bytes:
            self._peak_bytes, self._peak_event = memory.allocated_bytes, event
        if memory.reserved_bytes > self._peak_reserved_bytes:
            self._peak_reserved_bytes = memory.reserved_bytes
        self.max_allocated_bytes = max(self.max_allocated_bytes, memory.allocated_bytes)
        self.max_reserved_bytes = max(self.max_reserved_bytes, memory.reserved_bytes)
        self._add_to_timeline(event, phase)

    def _add_to_timeline(self, event: int, phase: str) -> None:
        """One point per interval of `_stride` events and per phase: the one with the most allocated."""
        memory = self.memory
        last = self.timeline[-1] if self.timeline else None
        if last is not None and event - last.event < self._stride and last.phase == phase:
            if memory.allocated_bytes <= last.allocated_bytes:
                return
            self.timeline.pop()
        self.timeline.append(
            Point(
                event=event,
                phase=phase,
                allocated_bytes=memory.allocated_bytes,
                reserved_bytes=memory.reserved_bytes,
            )
        )
        if len(self.timeline) > 2 * TIMELINE_POINTS:
            self._halve_timeline()

    def _halve_timeline(self) -> None:
        """Keep the higher point of each pair, so that no peak is lost."""
        pairs = zip(self.timeline[::2], self.timeline[1::2], strict=False)
        self.timeline = [max(pair, key=lambda point: point.allocated_bytes) for pair in pairs]
        self._stride *= 2
