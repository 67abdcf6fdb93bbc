"""Identities that hold after every event of any stream, and what a million events cost."""

from __future__ import annotations

import random
import tracemalloc
from itertools import pairwise

import pytest

from vramcast.allocator import Allocator, AllocatorSettings, Block, OutOfMemory
from vramcast.allocator.block import ALLOCATED, FREE

KIB, MIB = 1 << 10, 1 << 20
SETTINGS = ["", "expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:8"]


@pytest.mark.parametrize("text", SETTINGS)
@pytest.mark.parametrize("seed", range(12))
def test_bytes_add_up_and_nothing_overlaps_after_every_event(text: str, seed: int) -> None:
    rng = random.Random(seed)
    ours = Allocator(rng.choice([None, 500 * MIB]), AllocatorSettings.parse(text))
    live: list[Block] = []
    for _ in range(250):
        if live and rng.random() < 0.45:
            ours.free(live.pop(rng.randrange(len(live))))
        else:
            size = rng.choice([0, 1, 511, 513, MIB, 3 * MIB, 30 * MIB]) + rng.randrange(64 * KIB)
            try:
                live.append(ours.malloc(size, stream=rng.choice([0, 0, 3])))
            except OutOfMemory:
                assert ours.reserved_bytes <= 500 * MIB
        check_everything(ours, live)
    for block in live:
        ours.free(block)
    assert ours.allocated_bytes == ours.requested_bytes == 0
    ours.empty_cache()
    assert ours.reserved_bytes == 0


def check_everything(ours: Allocator, live: list[Block]) -> None:
    """The counters against the blocks themselves."""
    ours.check()
    free = [
        block
        for pair in ours.segments.pools.values()
        for pool in pair
        for block in pool.free_blocks()
    ]
    assert all(block.state == FREE for block in free)
    assert all(block.state == ALLOCATED for block in live)
    assert sum(block.size for block in live) == ours.allocated_bytes
    assert sum(block.requested for block in live) == ours.requested_bytes
    assert (
        sum(block.size for block in live) + sum(block.size for block in free) == ours.reserved_bytes
    )
    split = [block for block in free if block.is_split() and block.expandable is None]
    stats = ours.memory_stats()
    assert stats["inactive_split_bytes.all.current"] == sum(block.size for block in split)
    assert stats["inactive_split.all.current"] == len(split)
    ranges = sorted((block.address, block.address + block.size) for block in [*live, *free])
    assert all(before[1] <= after[0] for before, after in pairwise(ranges))


def plan(events: int, live_target: int, seed: int) -> list[int]:
    """Positive: a request; negative: free the live block of that number."""
    rng = random.Random(seed)
    sizes = [
        rng.choice([512, 4096, 65536, MIB, 3 * MIB, 8 * MIB, 40 * MIB]) + rng.randrange(100_000)
        for _ in range(2000)
    ]
    steps, live = [], 0
    for _ in range(events):
        if live and (live > live_target or rng.random() < 0.48):
            steps.append(-1 - rng.randrange(live))
            live -= 1
        else:
            steps.append(rng.choice(sizes))
            live += 1
    return steps


def run(ours: Allocator, steps: list[int]) -> list[Block]:
    live: list[Block] = []
    for step in steps:
        if step >= 0:
            live.append(ours.malloc(step))
        else:
            index = -1 - step
            live[index], live[-1] = live[-1], live[index]
            ours.free(live.pop())
    return live


@pytest.mark.slow
@pytest.mark.parametrize("text", ["", "expandable_segments:True"])
def test_a_million_events_leave_the_books_in_order(text: str) -> None:
    """How long they take is measured in benchmarks/bench_allocator.py."""
    ours = Allocator(settings=AllocatorSettings.parse(text))
    live = run(ours, plan(1_000_000, live_target=1000, seed=1))
    ours.check()
    for block in live:
        ours.free(block)
    assert ours.allocated_bytes == 0


def test_memory_grows_with_blocks_and_not_with_events() -> None:
    def bytes_per_block(events: int) -> float:
        steps = plan(events, live_target=300, seed=2) + [4096] * 300
        tracemalloc.start()
        ours = Allocator()
        live = run(ours, steps)
        held_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        pools = [pool for pair in ours.segments.pools.values() for pool in pair]
        return held_bytes / (len(live) + sum(len(pool.free_blocks()) for pool in pools))

    few, many = bytes_per_block(2_000), bytes_per_block(20_000)
    assert many < 1.2 * few
    assert many < 400
