"""Memory over the recorded window, sampled for drawing: at each step the fullest moment, split by holder.

Steps are equal shares of the events, not of the time: allocations come in bursts, and a burst is what one wants to see.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vramcast.allocator.block import ALLOCATED
from vramcast.snapshot.history import Walk
from vramcast.snapshot.holders import Attribution, HolderKey
from vramcast.snapshot.layout import LiveBlock

MOST_SAMPLES = 400
MOST_LAYERS = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A holder's share at every sample."""

    label: str
    category: str
    allocated_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Samples in order; the layers add up to `allocated_bytes` at each of them."""

    events: tuple[int, ...]
    times_us: tuple[int, ...]  # since the first event
    allocated_bytes: tuple[int, ...]
    reserved_bytes: tuple[int, ...]
    layers: tuple[Layer, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """A moment and who held what."""

    event: int
    time_us: int
    allocated_bytes: int
    reserved_bytes: int
    by_holder: dict[HolderKey, int]


def bucket_events(events: int) -> int:
    """How many events one sample stands for."""
    return max(1, -(-events // MOST_SAMPLES))


class Shares:
    """Allocated bytes by holder, kept up to date along a walk."""

    def __init__(self, attribution: Attribution) -> None:
        self._attribution = attribution
        self._by_holder: dict[HolderKey, int] = {}

    def follow(self, walk: Walk) -> None:
        if walk.index < 0:
            for block in walk.layout.blocks.values():
                if block.state == ALLOCATED:
                    self._add(block, block.size or 0)
        elif walk.changed is not None:
            self._add(walk.changed, walk.change_bytes)

    def _add(self, block: LiveBlock, nbytes: int) -> None:
        key = self._attribution.key(block)
        self._by_holder[key] = self._by_holder.get(key, 0) + nbytes

    def sample(self, walk: Walk) -> Sample:
        return Sample(
            walk.index,
            walk.time_us,
            walk.allocated_bytes,
            walk.reserved_bytes,
            dict(self._by_holder),
        )


def timeline(samples: Sequence[Sample]) -> Timeline:
    """The holders that ever had most get a layer each; the others share one."""
    start_us = samples[0].time_us
    return Timeline(
        events=tuple(sample.event for sample in samples),
        times_us=tuple(sample.time_us - start_us for sample in samples),
        allocated_bytes=tuple(sample.allocated_bytes for sample in samples),
        reserved_bytes=tuple(sample.reserved_bytes for sample in samples),
        layers=tuple(_layers(samples, _largest_holders(samples))),
    )


def _largest_holders(samples: Sequence[Sample]) -> list[HolderKey]:
    """Those that ever had most, largest first."""
    most: dict[HolderKey, int] = {}
    for sample in samples:
        for key, nbytes in sample.by_holder.items():
            most[key] = max(most.get(key, 0), nbytes)
    return sorted(most, key=lambda key: -most[key])[:MOST_LAYERS]


def _layers(samples: Sequence[Sample], shown: list[HolderKey]) -> Iterator[Layer]:
    """A layer for each holder, and one for what is left where anything is."""
    for key in shown:
        held = [sample.by_holder.get(key, 0) for sample in samples]
        yield _layer(key.frame, str(key.category), held)
    rest = [
        sample.allocated_bytes - sum(sample.by_holder.get(key, 0) for key in shown)
        for sample in samples
    ]
    if any(rest):
        yield _layer("all others", "", rest)


def _layer(label: str, category: str, nbytes: list[int]) -> Layer:
    return Layer(label=label, category=category, allocated_bytes=tuple(nbytes))
