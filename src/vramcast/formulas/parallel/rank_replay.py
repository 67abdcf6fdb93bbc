"""A rank's births and deaths through the caching allocator, streams included.

Pools are per stream, so what a side stream frees the main stream cannot use: with FSDP2 all-gather outputs and reduced
gradients are made on streams of their own (torch `_fsdp_param_group.py`, FSDPCommContext). FSDP1 marks what one stream
makes and another uses with record_stream: such a block is free only when an event behind its last use has passed. The
host runs ahead of the GPU and waits for such an event only where the rate limiter makes it (`_limiter_utils.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from vramcast.allocator import Allocator, AllocatorSettings, Block, OutOfMemory
from vramcast.formulas.parallel.windows import ARRIVING, BUFFER, GATHERED, JOINED, REDUCED
from vramcast.formulas.replay import Replayed
from vramcast.formulas.timeline import Stamped

MAIN, GATHER, REDUCE, ARRIVE = 0, 1, 2, 3
EVENTS = 100  # numbers from here on stand for events that blocks wait for
INFLIGHT = 2  # _FreeEventQueue._max_num_inflight_all_gathers


STREAMS = {  # where a strategy makes what, if not on the main stream
    "fsdp1": {GATHERED: GATHER, REDUCED: REDUCE, "gradient": REDUCE, ARRIVING: ARRIVE},
    "fsdp2": {BUFFER: GATHER, "gradient": REDUCE},
    "zero3": {GATHERED: GATHER, BUFFER: GATHER, REDUCED: REDUCE},
}
# What FSDP1 marks with record_stream: the gathered vector, which the main stream uses; its gradient, which the
# reduction uses, and that one's copy; a shard from the host, which the all-gather reads.
MARKED = (GATHERED, JOINED, REDUCED, ARRIVING)


def stream_of(item: Stamped, strategy: str) -> int:
    return STREAMS.get(strategy, {}).get(item.event.kind, MAIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapping:
    """FSDP1 makes a vector of parameters: their bytes, and what stays of it."""

    params: tuple[int, ...]
    stays: int


class RankRun:
    def __init__(self, *, capacity_bytes: int | None, conf: str, strategy: str) -> None:
        self.allocator = Allocator(capacity_bytes=capacity_bytes, settings=AllocatorSettings.parse(conf))
        self.strategy = strategy
        self.blocks: dict[Hashable, tuple[Block, int]] = {}
        self.requested = self.peak_requested = 0
        self.inflight: deque[int] = deque()  # events behind freed vectors that the host has not waited for
        self.events = 0

    def take(self, key: Hashable, nbytes: int, stream: int = MAIN) -> None:
        if nbytes:
            self.drop(key)
            self.blocks[key] = (self.allocator.malloc(nbytes, stream), nbytes)
            self.requested += nbytes
            self.peak_requested = max(self.peak_requested, self.requested)

    def drop(self, key: Hashable, event: int | None = None) -> None:
        """Free it; with an `event` the block can be used again once that has passed."""
        if key in self.blocks:
            block, nbytes = self.blocks.pop(key)
            if event is not None:
                self.allocator.record_stream(block, EVENTS + event)
            self.allocator.free(block)
            self.requested -= nbytes

    def hold(self, name: str, sizes: Iterable[int]) -> None:
        for index, nbytes in enumerate(sizes):
            self.take((name, index), nbytes)

    def wrap(self, wrapping: Iterable[Wrapping]) -> None:
        """_init_param_handle_from_module: a unit's parameters are moved to the GPU and joined into a vector; the rank's
        part of it is cloned (`_flat_param.py` shard), the rest goes."""
        for number, unit in enumerate(wrapping):
            self.hold("moved", unit.params)
            self.take("vector", sum(unit.params))
            for index in range(len(unit.params)):
                self.drop(("moved", index))
            self.take(("shard", number), unit.stays)
            self.drop("vector")

    def play(self, stream: list[Stamped]) -> None:
        for item in stream:
            if item.event.sign > 0:
                self._limit(item)
                self.take(item.key, int(item.event.nbytes), stream_of(item, self.strategy))
            else:
                self._let_go(item)

    def _limit(self, item: Stamped) -> None:
        """_unshard: before a vector is gathered, the host waits for the oldest of the frees under way."""
        if item.event.kind == GATHERED and len(self.inflight) >= INFLIGHT:
            self.allocator.complete_pending(EVENTS + self.inflight.popleft())

    def _let_go(self, item: Stamped) -> None:
        """A marked block waits for the event behind the next free of a vector; the vector's own free is that."""
        if self.strategy != "fsdp1" or item.event.kind not in MARKED:
            return self.drop(item.key)
        self.drop(item.key, self.events)
        if item.event.kind == GATHERED:
            self.inflight.append(self.events)
            self.events += 1

    def end_step(self, stream: list[Stamped]) -> None:
        """zero_grad and the end of the iteration: nothing of the step is left, and every stream has been waited for."""
        for key in {item.key for item in stream}:
            self.drop(key)
        self.allocator.complete_pending()
        self.inflight.clear()

    def result(self, *, out_of_memory: bool) -> Replayed:
        return Replayed(
            peak_requested_bytes=self.peak_requested, peak_allocated_bytes=self.allocator.peak_allocated_bytes,
            peak_reserved_bytes=self.allocator.peak_reserved_bytes, out_of_memory=out_of_memory,
        )  # fmt: skip


def replay_rank(
    *, lying: Iterable[int], first: list[Stamped], states: Iterable[int], temporaries: tuple[int, ...],
    capacity_bytes: int | None, conf: str, strategy: str, wrapping: Iterable[Wrapping] = (),
) -> Replayed:  # fmt: skip
    """Load, a step, the states it leaves, a second step."""
    run = RankRun(capacity_bytes=capacity_bytes, conf=conf, strategy=strategy)
    try:
        run.wrap(wrapping)
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
