"""Our allocator against the naive one, for any program that hypothesis can think of."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from naive_allocator import UNLIMITED, NaiveAllocator, NoMemory, Piece

from vramcast.allocator import Allocator, AllocatorSettings, Block, OutOfMemory
from vramcast.allocator.block import FREE

MIB = 1 << 20
CONFIGURATIONS = {
    "": {},
    "expandable_segments:True": {"expandable": True},
    "max_split_size_mb:32": {"max_split": 32 * MIB},
    "large_segment_size_mb:12": {"large_segment": 12 * MIB},
    "expandable_segments:True,large_segment_size_mb:12": {
        "expandable": True,
        "large_segment": 12 * MIB,
    },
    "roundup_power2_divisions:4": {"divisions": 4},
    "max_split_size_mb:20,roundup_power2_divisions:2": {"max_split": 20 * MIB, "divisions": 2},
}
SIZES = st.one_of(
    st.integers(0, 4096),
    st.integers(0, 3 * MIB),
    st.integers(9 * MIB, 45 * MIB),
    st.sampled_from(
        [511, 512, 513, MIB - 1, MIB, MIB + 1, 10 * MIB - 1, 10 * MIB, 20 * MIB, 32 * MIB, 64 * MIB]
    ),
)


class SameDecisions(RuleBasedStateMachine):
    ours: Allocator
    naive: NaiveAllocator

    @initialize(
        text=st.sampled_from(sorted(CONFIGURATIONS)),
        capacity=st.sampled_from([None, 64 * MIB, 150 * MIB, 300 * MIB]),
    )
    def start(self, text: str, capacity: int | None) -> None:
        self.ours = Allocator(capacity, AllocatorSettings.parse(text))
        self.naive = NaiveAllocator(capacity or UNLIMITED, **CONFIGURATIONS[text])
        self.live: list[tuple[Block, Piece]] = []
        self.waiting: list[tuple[Block, Piece]] = []

    @rule(
        nbytes=SIZES,
        stream=st.sampled_from([0, 0, 0, 7]),
        private=st.sampled_from([False, False, False, True]),
    )
    def malloc(self, nbytes: int, stream: int, private: bool) -> None:
        pool = (1, 0) if private else (0, 0)
        try:
            piece = self.naive.malloc(nbytes, stream, pool)
        except NoMemory:
            try:
                self.ours.malloc(nbytes, stream, pool)
            except OutOfMemory:
                return self.forget_completed()
            raise AssertionError("ours found memory that is not there") from None
        block = self.ours.malloc(nbytes, stream, pool)
        assert (block.address, block.size, block.requested) == (piece.address, piece.size, nbytes)
        self.live.append((block, piece))
        return self.forget_completed()

    def forget_completed(self) -> None:
        """Short of memory, the allocator waits for all streams."""
        self.waiting = [pair for pair in self.waiting if pair[1].state == "waiting"]

    @precondition(lambda self: self.live)
    @rule(choice=st.integers(0, 1 << 30), other_stream=st.sampled_from([False, False, True]))
    def free(self, choice: int, other_stream: bool) -> None:
        block, piece = self.live.pop(choice % len(self.live))
        if other_stream:
            self.ours.record_stream(block, 99)
            self.waiting.append((block, piece))
        self.ours.free(block)
        self.naive.free(piece, wait=other_stream)

    @precondition(lambda self: self.waiting)
    @rule()
    def finish_stream(self) -> None:
        self.ours.complete_pending(99)
        for _, piece in self.waiting:
            self.naive.complete(piece)
        self.waiting.clear()

    @rule()
    def empty_cache(self) -> None:
        self.ours.empty_cache()
        self.naive.empty_cache()
        self.waiting.clear()

    @invariant()
    def figures_agree(self) -> None:
        self.ours.check()
        assert self.ours.reserved_bytes == self.naive.reserved
        assert self.ours.peak_reserved_bytes == self.naive.peak_reserved
        assert self.ours.allocated_bytes == self.naive.allocated()
        assert self.ours.peak_allocated_bytes == self.naive.peak_allocated
        ours = {(block.address, block.size) for pair in self.ours.segments.pools.values() for pool in pair
                for block in pool.free_blocks()}  # fmt: skip
        assert ours == {
            (piece.address, piece.size) for piece in self.naive.pieces if piece.state == "free"
        }

    def teardown(self) -> None:
        if hasattr(self, "ours"):
            for block, _ in self.live:
                self.ours.free(block)
            self.ours.complete_pending()
            assert (
                self.ours.allocated_bytes
                == self.ours.active_bytes
                == self.ours.requested_bytes
                == 0
            )
            self.ours.release_pool((1, 0))
            self.ours.empty_cache()
            assert self.ours.reserved_bytes == 0
            assert all(block.state == FREE for block, _ in self.live)


TestSameDecisions = SameDecisions.TestCase
TestSameDecisions.settings = settings(
    max_examples=70,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
)
