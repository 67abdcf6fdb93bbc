"""A torch memory snapshot as a Timeline: allocated bytes at the recorded addresses, by who asked for them."""

from __future__ import annotations

from collections.abc import Callable

from vramcast.allocator.block import ALLOCATED
from vramcast.ledger import Origin
from vramcast.snapshot.history import History, Walk
from vramcast.snapshot.holders import Attribution
from vramcast.snapshot.layout import LiveBlock
from vramcast.snapshot.record import Snapshot
from vramcast.timelines.record import Label, Recorder, Timeline

BEFORE, RECORDED = "before the recording", "recorded"


def timeline_of_snapshot(snapshot: Snapshot, device: int, name: str) -> Timeline:
    """The recorded window of one device. What was held before it comes first, as one allocation for each block."""
    attribution, recorder = Attribution(snapshot), Recorder()
    labels: dict[object, Label] = {}

    def label_of(block: LiveBlock) -> Label:
        key = attribution.key(block)
        if key not in labels:
            labels[key] = Label(str(key.category), "", key.frame, "")
        return labels[key]

    for walk in History.of(snapshot, device).walk():
        if walk.index < 0:
            recorder.begin_phase(BEFORE)
            for block in walk.layout.blocks.values():
                if block.state == ALLOCATED:
                    recorder.allocate(id(block), block.size or 0, label_of(block))
            recorder.reserve(walk.reserved_bytes)
            recorder.begin_phase(RECORDED)
            continue
        _follow(walk, recorder, label_of)
    return recorder.timeline(name, f"cuda:{device}", str(Origin.MEASURED))


def _follow(walk: Walk, recorder: Recorder, label_of: Callable[[LiveBlock], Label]) -> None:
    block = walk.changed
    if block is not None and walk.change_bytes > 0:
        recorder.allocate(id(block), walk.change_bytes, label_of(block))
    elif block is not None:
        recorder.free(id(block))
    recorder.reserve(walk.reserved_bytes)
