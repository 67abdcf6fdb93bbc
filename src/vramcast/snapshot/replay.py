"""The recorded requests once more, through our own allocator: does it make the choices torch made?

It starts from the reconstructed state and is asked for every choice. Only two things come from the recording: the
addresses of new segments, because the driver chose them, and when memory is given back, because programs ask for that.
Where a choice differs, the replay goes on from torch's, so that one difference does not make the next ones differ too.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from vramcast.allocator import (
    DEFAULT_POOL,
    Allocator,
    AllocatorSettings,
    Block,
    PoolId,
    SimulatedDriver,
)
from vramcast.allocator.restore import restore
from vramcast.allocator.steer import (
    adopt_segment,
    malloc_at,
    map_range,
    preview,
    release_at,
    unmap_at,
)
from vramcast.snapshot.history import History
from vramcast.snapshot.layout import Layout, Span
from vramcast.snapshot.player import Player, play_from_empty
from vramcast.snapshot.record import (
    ALLOC,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    Row,
)
from vramcast.snapshot.rewind import expandable_bases

_MADE_UP_ADDRESSES = 1 << 62  # where no recording has been


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """How the replay went. `same_address` of `allocations` got the address that torch gave them."""

    allocations: int
    same_address: int
    segments: int  # taken from the driver, or mapped
    same_segments: int  # of those, at the moment and of the size that torch took them
    releases: int
    same_releases: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    end_state_matches: bool
    first_difference: (
        int | None
    )  # the event of the first allocation that would have got another address


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """The same requests from an empty allocator with other settings."""

    settings_text: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int


def replay(history: History) -> Replay:
    """From the state at the start of the recording, through all its events, under the recorded settings."""
    driver = RecordedDriver(history.start)
    allocator = Allocator(settings=history.rules.settings, driver=driver)
    live = restore(allocator, history.start.held(), expandable_bases(history.start, history.trace))
    checker = Checker(allocator, driver, history, live)
    for row in history.trace:
        checker.step(row)
    allocator.check()
    return Replay(
        allocations=checker.allocations,
        same_address=checker.same_address,
        segments=driver.asked,
        same_segments=driver.matched,
        releases=checker.releases,
        same_releases=checker.same_releases,
        peak_allocated_bytes=allocator.peak_allocated_bytes,
        peak_reserved_bytes=allocator.peak_reserved_bytes,
        end_state_matches=_same_state(checker, history),
        first_difference=checker.first_difference,
    )


def replay_with(history: History, settings: AllocatorSettings, settings_text: str) -> Alternative:
    """What other settings would have reserved for the same requests."""
    allocator = play_from_empty(history, settings)
    return Alternative(
        settings_text=settings_text,
        peak_allocated_bytes=allocator.peak_allocated_bytes,
        peak_reserved_bytes=allocator.peak_reserved_bytes,
    )


class Checker(Player):
    """Asks our allocator for each choice, compares, and follows the recording."""

    def __init__(
        self, allocator: Allocator, driver: RecordedDriver, history: History, live: dict[int, Block]
    ) -> None:
        super().__init__(allocator, history.trace, live, history.end)
        self._driver = driver
        self._index = -1
        self.allocations = self.same_address = self.releases = self.same_releases = 0
        self.first_difference: int | None = None

    def step(self, row: Row) -> None:
        action, _, _, _, address, nbytes, _ = row
        self._index += 1
        if action in (SEGMENT_ALLOC, SEGMENT_MAP):
            self._driver.recorded.append((address, nbytes))
            return
        if action != ALLOC and self._driver.recorded:
            self._take_recorded(
                self.stream(row), self.pool(row)
            )  # torch took memory and then failed all the same
        if action == SEGMENT_FREE:
            self.releases += 1
            self.same_releases += release_at(self.allocator, address, nbytes, self.stream(row))
        elif action == SEGMENT_UNMAP:
            self.releases += 1
            self.same_releases += unmap_at(self.allocator, address, nbytes, self.stream(row))
        else:
            self.play(row)

    def malloc(self, address: int, nbytes: int, stream: int, pool: PoolId) -> Block:
        self.allocations += 1
        choice = preview(self.allocator, nbytes, stream, pool)
        if choice == address or (choice is None and self._would_match(address, nbytes)):
            self.same_address += 1
            return self.allocator.malloc(nbytes, stream, pool)
        if self.first_difference is None:
            self.first_difference = self._index
        return self._follow(address, nbytes, stream, pool)

    def _would_match(self, address: int, nbytes: int) -> bool:
        """Our allocator wants a new segment: did torch take one, of that size, for this request?"""
        if not self._driver.recorded or self._driver.recorded[0][0] != address:
            return False
        store = self.allocator.segments
        expandable = self.allocator.settings.expandable_segments
        return expandable or self._driver.recorded[0][1] == store.segment_size(
            self.allocator.rounded(nbytes)
        )

    def _follow(self, address: int, nbytes: int, stream: int, pool: PoolId) -> Block:
        """Put the request where torch put it, or where we would, if that place is not free here."""
        if self._driver.recorded and not self.allocator.settings.expandable_segments:
            start, size = self._driver.recorded.popleft()
            if size >= self.allocator.rounded(nbytes) and self._driver.hold(start, size):
                return adopt_segment(self.allocator, start, size, stream, pool, nbytes)
        self._take_recorded(stream, pool)
        block = malloc_at(self.allocator, address, nbytes, stream, pool)
        return block if block is not None else self.allocator.malloc(nbytes, stream, pool)

    def _take_recorded(self, stream: int, pool: PoolId) -> None:
        while self._driver.recorded:
            address, nbytes = self._driver.recorded[0]
            if not map_range(self.allocator, address, nbytes, stream, pool):
                self._driver.recorded.popleft()


class RecordedDriver:
    """Hands out the segments of the recording, in its order. Asked for one that is not there, it makes one up."""

    def __init__(self, layout: Layout) -> None:
        self.recorded: deque[tuple[int, int]] = deque()
        self.asked = self.matched = 0
        self._held = layout.copy()
        self._made_up = SimulatedDriver(None, first_address=_MADE_UP_ADDRESSES)

    def malloc(self, nbytes: int) -> int | None:
        self.asked += 1
        if self.recorded and self.recorded[0][1] == nbytes and self.hold(*self.recorded[0]):
            self.matched += 1
            return self.recorded.popleft()[0]
        return self._made_up.malloc(nbytes)

    def hold(self, address: int, nbytes: int) -> bool:
        """Note that a range is in use; False if some of it was: a recording can contradict itself."""
        return self._held.add_span(
            Span(
                start=address,
                end=address + nbytes,
                stream=0,
                is_small=False,
                is_expandable=False,
                pool=DEFAULT_POOL,
            )
        )

    def free(self, address: int, nbytes: int) -> None:
        self._held.remove_span(address, address + nbytes)

    def reserve_addresses(self, page_bytes: int) -> tuple[int, int]:
        base, space = self._made_up.reserve_addresses(page_bytes)
        if self.recorded and self.hold(self.recorded[0][0], 1):
            base = self.recorded[0][0]
        return base, space

    def map(self, address: int, nbytes: int) -> bool:
        self.asked += 1
        if self.recorded and self.recorded[0] == (address, nbytes):
            self.matched += 1
            self.recorded.popleft()
        return True

    def unmap(self, address: int, nbytes: int) -> None:
        pass

    def memory_info(self) -> tuple[int, int]:
        return self._made_up.memory_info()


def _same_state(checker: Checker, history: History) -> bool:
    ours = {
        block.address: (block.size, block.requested, block.state) for block in checker.live.values()
    }
    end = {
        address: (block.size, block.requested, block.state)
        for address, block in history.end.blocks.items()
    }
    return ours == end and checker.allocator.reserved_bytes == history.end.reserved_bytes()
