"""`torch.cuda.memory._snapshot()` of virtual cards: segments and blocks, as a dictionary of torch's form.

In comes the state of the allocator model. The history of allocations is not recorded: `device_traces` are empty lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from vramcast.allocator import Block
from vramcast.allocator.block import ALLOCATED, FREE
from vramcast.virtual.state import GpuState

_STATES = {FREE: "inactive", ALLOCATED: "active_allocated"}


def snapshot(gpu: GpuState) -> dict[str, Any]:
    return {
        "segments": [segment for index in range(gpu.count) for segment in _segments(gpu, index)],
        "device_traces": [[] for _ in range(gpu.count)],
        "allocator_settings": {},
        "external_annotations": [],
    }


def _segments(gpu: GpuState, index: int) -> Iterator[dict[str, Any]]:
    firsts = {id(first): first for first in map(_first, _blocks(gpu, index))}
    for first in sorted(firsts.values(), key=lambda block: block.address):
        yield _segment(index, [block for block in _chain(first) if block.mapped])


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


def _segment(index: int, blocks: list[Block]) -> dict[str, Any]:
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
                "frames": [],
            }
            for block in blocks
        ],
    }


def _bytes(blocks: Iterable[Block]) -> int:
    return sum(block.size for block in blocks)
