"""`torch.cuda.memory._snapshot()` of virtual cards: segments and blocks, as a dictionary of torch's form.

In come the state of the allocator model and, where it was recorded, the history of allocations with their frames.
torch's memory_viz and `vramcast snapshot` read what comes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from vramcast.allocator import Block
from vramcast.allocator.block import ALLOCATED, FREE
from vramcast.virtual.accounting.history import Frame
from vramcast.virtual.state import GpuState

_STATES = {FREE: "inactive", ALLOCATED: "active_allocated"}


def snapshot(gpu: GpuState) -> dict[str, Any]:
    return {
        "segments": [segment for index in range(gpu.count) for segment in _segments(gpu, index)],
        "device_traces": [list(_events(gpu, index)) for index in range(gpu.count)],
        "allocator_settings": {},
        "external_annotations": [],
    }


def _events(gpu: GpuState, index: int) -> Iterator[dict[str, Any]]:
    """One after the other, a microsecond apart: time does not pass on a virtual card."""
    history = gpu.meters[gpu.places[index]].history
    if history is None:
        return
    for moment, event in enumerate(history.events):
        made = history.allocations[event if event >= 0 else ~event]
        shown = {
            "addr": made.address,
            "size": made.requested_bytes,
            "stream": made.stream,
            "time_us": moment,
            "frames": _shown(made.frames),
        }
        if event >= 0:
            yield {"action": "alloc", **shown}
        else:
            yield {"action": "free_requested", **shown}
            yield {"action": "free_completed", **shown}


def _shown(frames: tuple[Frame, ...]) -> list[dict[str, Any]]:
    return [
        {"filename": code.co_filename, "line": line, "name": code.co_name} for code, line in frames
    ]


def _frames_of(gpu: GpuState, index: int, block: Block) -> list[dict[str, Any]]:
    history = gpu.meters[gpu.places[index]].history
    return [] if history is None else _shown(history.frames_of(block))


def _segments(gpu: GpuState, index: int) -> Iterator[dict[str, Any]]:
    firsts = {id(first): first for first in map(_first, _blocks(gpu, index))}
    for first in sorted(firsts.values(), key=lambda block: block.address):
        yield _segment(gpu, index, [block for block in _chain(first) if block.mapped])


def _blocks(gpu: GpuState, index: int) -> Iterator[Block]:
    for record in gpu.meters[gpu.places[index]].live.values():
        if record.block is not None:
            yield record.block
    for pair in gpu.memories[index].allocator.segments.pools.values():
        for pool in pair:
            yield from pool.free_blocks()


def _first(block: Block) -> Block:
    while block.prev is not None:
        block = block.prev
    return block


def _chain(block: Block | None) -> Iterator[Block]:
    while block is not None:
        yield block
        block = block.next


def _segment(gpu: GpuState, index: int, blocks: list[Block]) -> dict[str, Any]:
    first = blocks[0]
    return {
        "device": index,
        "address": first.address,
        "total_size": _bytes(blocks),
        "stream": first.stream,
        "allocated_size": _bytes(block for block in blocks if block.state == ALLOCATED),
        "active_size": _bytes(block for block in blocks if block.state != FREE),
        "requested_size": sum(block.requested for block in blocks if block.state == ALLOCATED),
        "segment_type": "small" if first.pool.is_small else "large",
        "segment_pool_id": first.pool.id,
        "is_expandable": first.expandable is not None,
        "frames": [],
        "blocks": [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.requested,
                "state": _STATES.get(block.state, "active_pending_free"),
                "frames": _frames_of(gpu, index, block),
            }
            for block in blocks
        ],
    }


def _bytes(blocks: Iterable[Block]) -> int:
    return sum(block.size for block in blocks)
