"""A card's allocations played through the allocator model again, with other sizes or on another card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vramcast.allocator import Allocator, AllocatorSettings, Block, OutOfMemory
from vramcast.traces.record import CardStream


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    allocated_bytes: int  # at the peak
    reserved_bytes: int
    peak_event: int  # of the allocations
    ran_out: bool
    phases: dict[str, int]  # the most that was allocated in each


def replay(
    stream: CardStream,
    requested_bytes: Sequence[int],
    *,
    capacity_bytes: int | None = None,
    context_bytes: int = 0,
    conf: str = "",
) -> Replayed:
    """Without a capacity the card is endless."""
    allocator = Allocator(
        capacity_bytes, AllocatorSettings.parse(conf), context_bytes=context_bytes, statistics=False
    )
    blocks: dict[int, Block] = {}
    peak = reserved = peak_event = 0
    phases: dict[str, int] = {}
    ran_out = False
    for moment, event in enumerate(stream.events):
        if event < 0:
            allocator.free(blocks.pop(~event))
            continue
        try:
            blocks[event] = allocator.malloc(requested_bytes[event], stream.stream[event])
        except OutOfMemory:
            ran_out = True
            break
        allocated = allocator.allocated_bytes
        phase = stream.labels[stream.label[event]].phase
        if allocated > phases.get(phase, 0):
            phases[phase] = allocated
        if allocated > peak:
            peak, peak_event = allocated, moment
        reserved = max(reserved, allocator.reserved_bytes)
    return Replayed(
        allocated_bytes=peak,
        reserved_bytes=reserved,
        peak_event=peak_event,
        ran_out=ran_out,
        phases=phases,
    )


def alive_at(stream: CardStream, moment: int) -> list[int]:
    """The allocations that are alive after the event at `moment`."""
    alive: dict[int, None] = {}
    for event in stream.events[: moment + 1]:
        if event >= 0:
            alive[event] = None
        else:
            alive.pop(~event, None)
    return list(alive)
