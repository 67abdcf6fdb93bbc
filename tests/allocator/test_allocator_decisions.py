"""Single decisions of the allocator, with sizes worked out by hand from torch's rules."""

from __future__ import annotations

import pytest

from vramcast.allocator import Allocator, AllocatorSettings
from vramcast.errors import InputError, InvariantError

KIB, MIB = 1 << 10, 1 << 20


def allocator(text: str = "", capacity: int | None = None) -> Allocator:
    return Allocator(capacity, AllocatorSettings.parse(text))


@pytest.mark.parametrize(
    ("requested", "block", "segment"),
    [
        (0, 512, 2 * MIB),
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 1, 10 * MIB, 10 * MIB),  # rounds to 10 MiB, which has a segment of its own
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
        (11 * MIB - 512, 11 * MIB - 512, 12 * MIB),  # 1 MiB + 512 remain: split
        (11 * MIB, 12 * MIB, 12 * MIB),  # exactly 1 MiB remains: not split
        (19 * MIB, 20 * MIB, 20 * MIB),
        (100 * MIB, 100 * MIB, 100 * MIB),
    ],
)
def test_a_first_request_takes_this_block_and_this_segment(
    requested: int, block: int, segment: int
) -> None:
    ours = allocator()
    given = ours.malloc(requested)
    assert (given.size, given.requested, ours.reserved_bytes) == (block, requested, segment)
    assert ours.allocated_bytes == block


def test_the_smallest_fitting_block_wins_and_among_equals_the_lowest_address() -> None:
    ours = allocator()
    blocks = [ours.malloc(size * MIB) for size in (40, 30, 60, 30)]
    addresses = [block.address for block in blocks]
    for block in blocks:
        ours.free(block)
    assert ours.malloc(25 * MIB).address == addresses[1]
    assert ours.malloc(25 * MIB).address == addresses[3]
    assert ours.malloc(31 * MIB).address == addresses[0]


def test_blocks_of_another_stream_or_pool_are_not_reused() -> None:
    ours = allocator()
    block = ours.malloc(20 * MIB, stream=0)
    ours.free(block)
    assert ours.malloc(20 * MIB, stream=5).address != block.address
    assert ours.malloc(20 * MIB, pool=(1, 0)).address != block.address
    assert ours.malloc(20 * MIB, stream=0).address == block.address


def test_freed_neighbours_merge_into_one_block() -> None:
    ours = allocator()
    first, second, third = (ours.malloc(4 * MIB) for _ in range(3))
    start = first.address
    assert second.address == start + 4 * MIB
    for block in (first, third, second):
        ours.free(block)
    assert ours.malloc(9 * MIB).address == start
    assert ours.reserved_bytes == 20 * MIB


def test_a_block_used_by_another_stream_waits_for_it() -> None:
    ours = allocator()
    block = ours.malloc(20 * MIB)
    ours.record_stream(block, 3)
    ours.free(block)
    assert (ours.allocated_bytes, ours.active_bytes) == (0, 20 * MIB)
    assert ours.malloc(20 * MIB).address != block.address
    ours.complete_pending(stream=4)
    assert ours.active_bytes == 40 * MIB
    ours.complete_pending(stream=3)
    assert ours.active_bytes == 20 * MIB
    assert ours.malloc(20 * MIB).address == block.address


def test_with_max_split_large_blocks_stay_whole_and_serve_only_close_requests() -> None:
    ours = allocator("max_split_size_mb:100")
    block = ours.malloc(200 * MIB)
    big = block.address
    ours.free(block)
    assert ours.malloc(50 * MIB).address != big, (
        "an oversize block is not split for a small request"
    )
    assert ours.malloc(180 * MIB).address != big, "20 MiB more than asked for is too much"
    close = ours.malloc(180 * MIB + 512)
    assert (close.address, close.size) == (big, 200 * MIB)
    assert ours.memory_stats()["oversize_allocations.current"] == 2
    limit = ours.malloc(100 * MIB)
    at = limit.address
    ours.free(limit)
    assert ours.malloc(60 * MIB).address != at, "a block of exactly the limit is oversize"


def test_with_max_split_only_enough_oversize_blocks_are_given_back() -> None:
    ours = allocator("max_split_size_mb:20", capacity=200 * MIB)
    sizes = (30, 40, 50, 60)
    for block in [ours.malloc(size * MIB) for size in sizes]:
        ours.free(block)
    ours.malloc(100 * MIB)  # 20 MiB free: the largest go first, 60 and 50, and that is enough
    assert ours.reserved_bytes == (30 + 40 + 100) * MIB
    assert ours.num_alloc_retries == 0


def test_with_max_split_one_fitting_block_is_given_back_alone() -> None:
    ours = allocator("max_split_size_mb:20", capacity=100 * MIB)
    for block in [ours.malloc(50 * MIB), ours.malloc(30 * MIB)]:
        ours.free(block)
    ours.malloc(25 * MIB + 512)  # 30 MiB fits within 20 MiB of rounding
    assert ours.reserved_bytes == 80 * MIB
    ours.malloc(
        24 * MIB
    )  # nothing of this stream fits within 20 MiB, so the 50 MiB block goes back to make room
    assert ours.reserved_bytes == (30 + 24) * MIB


def test_short_of_memory_whole_cached_segments_go_back_and_the_request_is_retried() -> None:
    ours = allocator(capacity=100 * MIB)
    kept, cached = ours.malloc(4 * MIB), ours.malloc(60 * MIB)
    ours.free(cached)
    ours.malloc(70 * MIB)
    assert ours.reserved_bytes == 90 * MIB
    assert ours.num_alloc_retries == 1
    assert kept.size == 4 * MIB


def test_garbage_collection_gives_back_the_oldest_blocks_above_the_threshold() -> None:
    settings = AllocatorSettings.parse(
        "garbage_collection_threshold:0.5,per_process_memory_fraction:0.8"
    )
    ours = Allocator(1000 * MIB, settings)
    ours.free(ours.malloc(300 * MIB, stream=1))
    for _ in range(5):
        ours.free(ours.malloc(20 * MIB))
    ours.malloc(150 * MIB)
    assert ours.reserved_bytes == 470 * MIB, (
        "the driver was asked at 320 MiB, below half of the allowed 800 MiB"
    )
    ours.malloc(100 * MIB)
    assert ours.reserved_bytes == (20 + 150 + 100) * MIB, (
        "the block that waited longest went back, the young one stayed"
    )


def test_without_a_memory_fraction_garbage_collection_never_runs() -> None:
    ours = Allocator(1000 * MIB, AllocatorSettings.parse("garbage_collection_threshold:0.1"))
    ours.free(ours.malloc(300 * MIB))
    ours.malloc(400 * MIB)
    assert ours.reserved_bytes == 700 * MIB


@pytest.mark.parametrize(
    ("nbytes", "divisions", "rounded"),
    [(1200 * MIB, 4, 1280 * MIB), (1024 * MIB, 4, 1024 * MIB), (1025 * MIB, 4, 1280 * MIB), (5 * MIB, 2, 6 * MIB),
     (2000, 4, 2048), (2049, 4, 2560), (1100, 4, 1536)],
)  # fmt: skip
def test_rounding_to_divisions_of_a_power_of_two(nbytes: int, divisions: int, rounded: int) -> None:
    assert allocator(f"roundup_power2_divisions:{divisions}").rounded(nbytes) == rounded


def test_divisions_by_interval_apply_to_their_sizes_only() -> None:
    ours = allocator("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]")
    assert ours.rounded(300 * MIB) == 300 * MIB
    assert ours.rounded(600 * MIB) == 768 * MIB
    assert ours.rounded(1100 * MIB) == 1280 * MIB
    assert ours.rounded(2100 * MIB) == 2304 * MIB


def test_an_expandable_segment_grows_in_pages_and_shrinks_to_what_is_used() -> None:
    ours = allocator("expandable_segments:True")
    first = ours.malloc(30 * MIB)
    start = first.address
    assert ours.reserved_bytes == 40 * MIB
    assert ours.malloc(15 * MIB).address == start + 30 * MIB, (
        "the rest of the second page, and a third one"
    )
    assert ours.reserved_bytes == 60 * MIB
    ours.malloc(1000)
    assert ours.reserved_bytes == 62 * MIB, "the small pool has pages of 2 MiB"
    ours.free(first)
    ours.empty_cache()
    assert ours.reserved_bytes == 42 * MIB, "page 1 goes back, page 2 is partly used"
    assert ours.malloc(25 * MIB).address == start, "the lowest addresses are filled first"
    assert ours.reserved_bytes == 62 * MIB


def test_private_pools_keep_their_memory_until_they_are_released() -> None:
    ours = allocator()
    ours.free(ours.malloc(30 * MIB, pool=(1, 0)))
    ours.empty_cache()
    assert ours.reserved_bytes == 30 * MIB
    ours.release_pool((1, 0))
    ours.empty_cache()
    assert ours.reserved_bytes == 0


def test_a_block_cannot_be_freed_twice() -> None:
    ours = allocator()
    block = ours.malloc(100)
    ours.free(block)
    with pytest.raises(InvariantError, match="not allocated"):
        ours.free(block)


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(InputError, match="-1"):
        allocator().malloc(-1)
