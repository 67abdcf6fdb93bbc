"""A rank's allocations and frees through the caching allocator, streams included.

Pools are per stream, so what a side stream frees the main stream cannot use: with FSDP2 all-gather outputs and reduced
gradients are made on streams of their own (torch `_fsdp_param_group.py`, FSDPCommContext). FSDP1 marks what one stream
makes and another uses with record_stream: such a block is free only when an event behind its last use has passed. The
host runs ahead of the GPU and waits for such an event only where the rate limiter makes it (`_limiter_utils.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from vramcast.engine.parallel.gathering import (
    ARRIVING,
    BUFFER,
    FETCHED,
    GATHERED,
    INPUT,
    JOINED,
    LABELS,
    REDUCED,
    SCATTERED,
    UNSHARDED,
)
from vramcast.engine.replay.run import Replayed, Run, Script
from vramcast.engine.stream.timeline import Stamped

MAIN, GATHER, REDUCE, ARRIVE = 0, 1, 2, 3
EVENTS = 100  # numbers from here on stand for events that blocks wait for
INFLIGHT = 2  # _FreeEventQueue._max_num_inflight_all_gathers
BROADCASTS = 2  # torch/csrc/distributed/c10d/comm.cpp broadcast_coalesced: max_in_flight


BEFORE_25 = "fsdp2 before torch 2.5"
STREAMS = {  # where a strategy makes what, if not on the main stream
    "fsdp1": {
        GATHERED: GATHER,
        REDUCED: REDUCE,
        SCATTERED: REDUCE,
        "gradient": REDUCE,
        ARRIVING: ARRIVE,
        INPUT: ARRIVE,
        FETCHED: ARRIVE,
    },
    "fsdp2": {INPUT: GATHER, BUFFER: GATHER, SCATTERED: REDUCE, "gradient": REDUCE},
    BEFORE_25: {
        INPUT: GATHER,
        BUFFER: GATHER,
        REDUCED: REDUCE,
        SCATTERED: REDUCE,
        "gradient": REDUCE,
    },
    "zero3": {GATHERED: GATHER, BUFFER: GATHER, REDUCED: REDUCE},
}
# What FSDP1 marks with record_stream: the gathered vector, which the main stream uses; its gradient, which the
# reduction uses, and that one's copy; a shard that was cast or comes from the host, which the all-gather reads.
MARKED = (GATHERED, JOINED, REDUCED, ARRIVING, INPUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapping:
    """A unit's parameters as they are moved to the GPU, and the shards that stay of them. FSDP1 joins them into a
    vector before it cuts that."""

    params: tuple[int, ...]
    shards: tuple[int, ...]
    joins: bool = True
    stays: bool = True  # else shards go to the host, each when it has been cut
    ranks: int = (
        1  # tensor-parallel ones: each parameter comes whole, of which `params` are cut first
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankScript(Script):
    """What a strategy adds to the steps of a job."""

    strategy: str = "none"
    workspaces: tuple[
        int, ...
    ] = ()  # of cuBLAS: forward's thread asks for one with the first block, autograd's behind
    last_section: int = 0  # the loss, which multiplies nothing
    wrapping: tuple[Wrapping, ...] = ()
    pieces: Mapping[Hashable, tuple[int, ...]] = field(
        default_factory=dict
    )  # tensors that one event stands for
    resident: tuple[int, ...] = ()  # companions
    tried: tuple[int, ...] = ()  # what FSDP1 makes and empties at once when it is first run
    broadcast: tuple[int, ...] = ()  # vectors in which DDP sends the model from rank 0
    buckets: tuple[int, ...] = ()  # DDP's, until the order of gradients is known
    rebuilt: tuple[int, ...] = ()  # and from the second step on


def replay_rank(
    script: RankScript, *, capacity_bytes: int | None, conf: str, most_bytes: int | None = None
) -> Replayed:
    return RankRun(script, capacity_bytes=capacity_bytes, conf=conf, most_bytes=most_bytes).whole()


class RankRun(Run):
    script: RankScript

    def __init__(
        self,
        script: RankScript,
        *,
        capacity_bytes: int | None,
        conf: str,
        most_bytes: int | None = None,
    ) -> None:
        super().__init__(script, capacity_bytes=capacity_bytes, conf=conf, most_bytes=most_bytes)
        self.inflight: deque[int] = (
            deque()
        )  # events behind freed vectors that the host has not waited for
        self.events = 0
        self.is_rebuilt = False
        self.streams = STREAMS.get(script.strategy, {})
        self.marked = MARKED if script.strategy == "fsdp1" else ()
        self.apart = frozenset((*LABELS, *self.streams))

    def take(self, key: Hashable, nbytes: int, stream: int = MAIN) -> None:
        if nbytes:
            if key in self.blocks:
                self.drop(key)
            self.requested += nbytes
            if self.requested > self.peak_requested:
                self.peak_requested = self.requested
            self.blocks[key] = (self.malloc(nbytes, stream), nbytes)

    def load(self) -> None:
        self.wrap()
        super().load()
        for index, nbytes in enumerate(self.script.broadcast):
            self.take(("broadcast", index), nbytes)
            self.drop(("broadcast", index + 1 - BROADCASTS))
        self.drop(("broadcast", len(self.script.broadcast) - 1))
        self.hold("bucket", self.script.buckets)
        self.hold("companion", self.script.resident)
        for nbytes in self.script.tried:
            self.take(("tried",), nbytes)
            self.drop(("tried",))

    def wrap(self) -> None:
        """A unit's parameters are moved to the GPU, what the rank keeps is copied, the rest goes: `_flat_param.py`
        shard, `_fsdp_param.py` _init_sharded_param."""
        for number, unit in enumerate(self.script.wrapping):
            self._move(unit)
            if unit.joins:
                self.take("vector", sum(unit.params))
                self._drop_moved(unit)
            for index, nbytes in enumerate(unit.shards):
                self.take(("shard", number, index), nbytes)
                if not unit.stays:
                    self.drop(("shard", number, index))
            self.drop("vector")
            self._drop_moved(unit)

    def _move(self, unit: Wrapping) -> None:
        for index, nbytes in enumerate(unit.params):
            self.take(("whole",), nbytes * unit.ranks if unit.ranks > 1 else 0)
            self.take(("moved", index), nbytes)
            self.drop(("whole",))

    def _drop_moved(self, unit: Wrapping) -> None:
        for index in range(len(unit.params)):
            self.drop(("moved", index))

    def born(self, item: Stamped) -> None:
        _, _, (_, name, nbytes, kind, _), key = item
        if kind == GATHERED:
            self._limit()
            pieces = self.script.pieces.get(name, ())
            if sum(pieces) == nbytes:  # else none, or a companion's unit of that number
                for index, piece in enumerate(pieces):
                    self.take((key, index), piece, self.streams.get(kind, MAIN))
                return
        self.take(key, int(nbytes), self.streams.get(kind, MAIN))

    def multiplies(self, item: Stamped) -> bool:
        """What is gathered or reduced is no product; a gradient that waits for its reduction is."""
        return (
            item.event.kind not in LABELS or item.event.kind == UNSHARDED
        ) and super().multiplies(item)

    def _limit(self) -> None:
        """_unshard: before a vector is gathered, the host waits for the oldest of the frees under way."""
        if len(self.inflight) >= INFLIGHT:
            self.allocator.complete_pending(EVENTS + self.inflight.popleft())

    def dies(self, item: Stamped) -> None:
        """A marked block waits for the event behind the next free of a vector; the vector's own free is that."""
        _, _, (_, name, _, kind, _), key = item
        if kind in self.marked:
            return self._let_go(item)
        if kind == GATHERED:
            for index in range(len(self.script.pieces.get(name, ()))):
                self.drop((key, index))
        self.drop(key)

    def _let_go(self, item: Stamped) -> None:
        if item.key in self.blocks:
            self.allocator.record_stream(self.blocks[item.key][0], EVENTS + self.events)
            self.drop(item.key)
        if item.event.kind == GATHERED:
            self.inflight.append(self.events)
            self.events += 1

    def end_step(self, *, gradients: bool) -> None:
        """Every stream has been waited for. DDP's buckets are made anew once, in the order gradients came in."""
        super().end_step(gradients=gradients)
        self.allocator.complete_pending()
        self.inflight.clear()
        if not self.is_rebuilt:
            self.is_rebuilt = True
            for index in range(len(self.script.buckets)):
                self.drop(("bucket", index))
            self.hold("bucket", self.script.rebuilt)
