"""A saved trace as a Timeline: its allocations played through the allocator, which gives blocks and reserved bytes."""

from __future__ import annotations

from vramcast.allocator import Allocator, AllocatorSettings, Block, OutOfMemory
from vramcast.errors import InputError
from vramcast.ledger import Origin
from vramcast.timelines.record import Label, Recorder, Timeline
from vramcast.traces.record import CardStream, Trace


def timeline_of_trace(trace: Trace, place: str = "") -> Timeline:
    """Of the fullest card, if none is named."""
    if not trace.cards:
        raise InputError("the trace holds no allocations on any card")
    place = place or max(trace.cards, key=lambda each: trace.ledger.peak(each).allocated_bytes)
    if place not in trace.cards:
        raise InputError(f"{place} is not in the trace: it has {', '.join(trace.cards)}")
    stream = trace.cards[place]
    recorder = _played(stream, trace, trace.capacity_bytes)
    is_unlimited = recorder is None
    if recorder is None:
        recorder = _played(stream, trace, None)
    assert recorder is not None
    return recorder.timeline(
        " ".join(trace.command),
        place,
        str(Origin.TRACED),
        capacity_bytes=trace.capacity_bytes,
        context_bytes=trace.context_bytes,
        is_unlimited=is_unlimited,
    )


def _played(stream: CardStream, trace: Trace, capacity: int | None) -> Recorder | None:
    """None where the card runs out."""
    allocator = Allocator(
        capacity,
        AllocatorSettings.parse(trace.allocator),
        context_bytes=trace.context_bytes,
        statistics=False,
    )
    labels = [Label(each.category, each.component, each.source, each.op) for each in stream.labels]
    recorder = Recorder()
    blocks: dict[int, Block] = {}
    for event in stream.events:
        if event < 0:
            block = blocks.pop(~event, None)
            if block is None:
                raise InputError("the trace frees what it never allocated")
            allocator.free(block)
            recorder.free(~event)
        else:
            number = stream.label[event]
            recorder.begin_phase(stream.labels[number].phase)
            try:
                block = allocator.malloc(stream.requested_bytes[event], stream.stream[event])
            except OutOfMemory:
                return None
            blocks[event] = block
            recorder.allocate(event, block.size, labels[number])
        recorder.reserve(allocator.reserved_bytes)
    return recorder
