"""An allocator without statistics hands out the same blocks, and counts allocated and reserved bytes alike."""

from __future__ import annotations

import random

import pytest

from vramcast.allocator import Allocator, AllocatorSettings, Block, OutOfMemory
from vramcast.allocator.quick import fast_calls
from vramcast.units import GiB, KiB, MiB

SETTINGS = (
    "", "expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:4",
    "garbage_collection_threshold:0.6,per_process_memory_fraction:0.8",
)  # fmt: skip


@pytest.mark.parametrize("conf", SETTINGS)
def test_the_same_addresses_and_peaks(conf: str) -> None:
    counted = _run(conf, statistics=True)
    assert counted == _run(conf, statistics=False)
    assert counted == _run(conf, statistics=False, quickly=True)


def _run(conf: str, *, statistics: bool, quickly: bool = False) -> list[tuple[int, ...]]:
    rng = random.Random(conf)
    allocator = Allocator(2 * GiB, AllocatorSettings.parse(conf), statistics=statistics)
    malloc, free = fast_calls(allocator) if quickly else (allocator.malloc, allocator.free)
    live: list[Block] = []
    seen = []
    for step in range(3000):
        if live and (len(live) > 60 or rng.random() < 0.45):
            block = live.pop(rng.randrange(len(live)))
            if rng.random() < 0.1:
                allocator.record_stream(block, 1)
            free(block)
            if step % 50 == 0:
                allocator.complete_pending()
            continue
        nbytes = rng.choice((1, 600, 64 * KiB, MiB, 3 * MiB, 12 * MiB, 90 * MiB)) + rng.randrange(
            5000
        )
        try:
            live.append(malloc(nbytes, stream=rng.choice((0, 0, 0, 2))))
        except OutOfMemory as error:
            seen.append((error.moment.allocated_bytes, error.moment.reserved_bytes))
            continue
        seen.append((live[-1].address, allocator.allocated_bytes, allocator.reserved_bytes,
                     allocator.peak_allocated_bytes, allocator.peak_reserved_bytes))  # fmt: skip
    return seen
