"""A rank's births and deaths through the caching allocator, streams included.

Pools are per stream, so what a side stream frees the main stream cannot use: with FSDP2 all-gather outputs and reduced
gradients are made on streams of their own (torch `_fsdp_param_group.py`, FSDPCommContext).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from vramcast.allocator import Allocator, AllocatorSettings, OutOfMemory
from vramcast.formulas.parallel.windows import BUFFER, GATHERED, REDUCED
from vramcast.formulas.replay import Replayed
from vramcast.formulas.timeline import Stamped

MAIN, GATHER, REDUCE = 0, 1, 2


def stream_of(item: Stamped, strategy: str) -> int:
    if strategy == "fsdp2":
        if item.event.kind == BUFFER:
            return GATHER
        if item.event.kind == "gradient":
            return REDUCE
    if strategy in ("fsdp1", "zero3") and item.event.kind in (GATHERED, BUFFER, REDUCED):
        return REDUCE if item.event.kind == REDUCED else GATHER
    return MAIN


class RankRun:
    def __init__(self, *, capacity_bytes: int | None, conf: str, strategy: str) -> None:
        self.allocator = Allocator(capacity_bytes=capacity_bytes, settings=AllocatorSettings.parse(conf))
        self.strategy = strategy
        self.blocks: dict[Hashable, tuple[object, int]] = {}
        self.requested = self.peak_requested = 0

    def take(self, key: Hashable, nbytes: int, stream: int = MAIN) -> None:
        if nbytes:
            self.drop(key)
            self.blocks[key] = (self.allocator.malloc(nbytes, stream), nbytes)
            self.requested += nbytes
            self.peak_requested = max(self.peak_requested, self.requested)

    def drop(self, key: Hashable) -> None:
        if key in self.blocks:
            block, nbytes = self.blocks.pop(key)
            self.allocator.free(block)  # type: ignore[arg-type]
            self.requested -= nbytes

    def hold(self, name: str, sizes: Iterable[int]) -> None:
        for index, nbytes in enumerate(sizes):
            self.take((name, index), nbytes)

    def play(self, stream: list[Stamped]) -> None:
        for item in stream:
            if item.event.sign > 0:
                self.take(item.key, int(item.event.nbytes), stream_of(item, self.strategy))
            else:
                self.drop(item.key)

    def end_step(self, stream: list[Stamped]) -> None:
        """zero_grad and the end of the iteration: nothing of the step is left."""
        for key in {item.key for item in stream}:
            self.drop(key)

    def result(self, *, out_of_memory: bool) -> Replayed:
        return Replayed(
            peak_requested_bytes=self.peak_requested, peak_allocated_bytes=self.allocator.peak_allocated_bytes,
            peak_reserved_bytes=self.allocator.peak_reserved_bytes, out_of_memory=out_of_memory,
        )  # fmt: skip


def replay_rank(
    *, lying: Iterable[int], first: list[Stamped], states: Iterable[int], temporaries: tuple[int, ...],
    capacity_bytes: int | None, conf: str, strategy: str,
) -> Replayed:  # fmt: skip
    """Load, a step, the states it leaves, a second step."""
    run = RankRun(capacity_bytes=capacity_bytes, conf=conf, strategy=strategy)
    try:
        run.hold("lying", lying)
        run.play(first)
        run.hold("states", states)
        run.hold("temporary", temporaries)
        for index in range(len(temporaries)):
            run.drop(("temporary", index))
        run.end_step(first)
        run.play(first)
        run.hold("temporary", temporaries)
    except OutOfMemory:
        return run.result(out_of_memory=True)
    return run.result(out_of_memory=False)
