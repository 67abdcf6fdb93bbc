"""The recorded requests once more, through our own allocator: does it make the choices torch made?

`replay` starts from the reconstructed state and decides everything itself; only the addresses of new segments come from
the recording, because the driver chose them, and memory is given back when the recording says so, because programs ask
for that. `replay_with` runs the same requests under other settings.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass

from vramcast.allocator import Allocator, AllocatorSettings, Block, SimulatedDriver
from vramcast.allocator.block import ALLOCATED, PENDING
from vramcast.allocator.restore import restore
from vramcast.snapshot.history import History
from vramcast.snapshot.layout import Layout
from vramcast.snapshot.record import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    NO_POOL,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    Row,
    Trace,
)


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
    first_difference: int | None  # the event of the first allocation that got another address


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """The same requests from an empty allocator with `settings`."""

    settings_text: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int


def replay(history: History) -> Replay:
    """From the state at the start of the recording, through all its events, under the recorded settings."""
    driver = RecordedDriver()
    allocator = Allocator(settings=history.rules.settings, driver=driver)
    player = Player(allocator, history.trace, restore(allocator, history.start.held()), history.end)
    for row in history.trace:
        if row[0] in (SEGMENT_ALLOC, SEGMENT_MAP):
            driver.recorded.append((row[4], row[5]))
        elif row[0] in (SEGMENT_FREE, SEGMENT_UNMAP):
            player.release(row)
        else:
            player.play(row)
    allocator.check()
    return Replay(
        allocations=player.allocations,
        same_address=player.same_address,
        segments=driver.asked,
        same_segments=driver.matched,
        releases=player.releases,
        same_releases=player.same_releases,
        peak_allocated_bytes=allocator.peak_allocated_bytes,
        peak_reserved_bytes=allocator.peak_reserved_bytes,
        end_state_matches=_same_state(player.live, allocator, history.end),
        first_difference=player.first_difference,
    )


def replay_with(history: History, settings: AllocatorSettings, settings_text: str) -> Alternative:
    """From empty: what lived at the start is requested first, by address, since its order was not recorded. Where torch
    gave memory back, the whole cache is given back."""
    allocator = Allocator(settings=settings)
    player = Player(allocator, history.trace, {}, history.end)
    for segment in history.start.held():
        for block in segment.blocks:
            player.live[block.address] = allocator.malloc(block.requested, segment.stream, segment.pool)
            if block.state == PENDING:
                allocator.request_free(player.live[block.address])
    allocator.reset_peak()
    releasing = False
    for row in history.trace:
        if row[0] in (SEGMENT_FREE, SEGMENT_UNMAP):
            if not releasing:
                allocator.segments.release_cached()
            releasing = True
        else:
            releasing = False
            player.play(row)
    allocator.check()
    return Alternative(
        settings_text=settings_text,
        peak_allocated_bytes=allocator.peak_allocated_bytes,
        peak_reserved_bytes=allocator.peak_reserved_bytes,
    )


class Player:
    """Feeds recorded events to an allocator and knows which of its blocks belongs to which recorded address."""

    def __init__(self, allocator: Allocator, trace: Trace, live: dict[int, Block], end: Layout) -> None:
        self._allocator = allocator
        self._trace = trace
        self._end = end
        self._frees_at_once = not (trace.records(FREE_COMPLETED) and trace.records(FREE_REQUESTED))
        self.live = live
        self._index = -1
        self.allocations = self.same_address = self.releases = self.same_releases = 0
        self.first_difference: int | None = None

    def play(self, row: Row) -> None:
        action, _, _, _, address, _, _ = row
        self._index += 1
        if action == ALLOC:
            self._alloc(row)
        elif action == FREE_REQUESTED:
            self._request_free(address)
            if self._frees_at_once:
                self._complete_free(address)
        elif action == FREE_COMPLETED:
            self._complete_free(address)

    def _alloc(self, row: Row) -> None:
        _, _, pool, stream, address, nbytes, _ = row
        self._complete_free(address)  # a recording can lack a free
        pool_id = self._trace.pools[pool] if pool != NO_POOL else self._end.pool_at(address)
        block = self._allocator.malloc(nbytes, self._trace.streams[stream], pool_id)
        self.live[address] = block
        self.allocations += 1
        if block.address == address:
            self.same_address += 1
        elif self.first_difference is None:
            self.first_difference = self._index

    def _request_free(self, address: int) -> None:
        block = self.live.get(address)
        if block is not None and block.state == ALLOCATED:
            self._allocator.request_free(block)

    def _complete_free(self, address: int) -> None:
        block = self.live.pop(address, None)
        if block is not None:
            if block.state == ALLOCATED:
                self._allocator.request_free(block)
            self._allocator.complete_free(block)

    def release(self, row: Row) -> None:
        """Give back what the recording says was given back, if our allocator holds it free too."""
        action, _, _, stream, address, nbytes, _ = row
        self._index += 1
        self.releases += 1
        store = self._allocator.segments
        for pool in (pool for pair in store.pools.values() for pool in pair):
            keys = pool.free.get(self._trace.streams[stream], [])
            if action == SEGMENT_FREE:
                index = bisect_left(keys, (nbytes, address))
                found = keys[index][2] if index < len(keys) and keys[index][:2] == (nbytes, address) else None
                if found is not None and not found.is_split():
                    store.release_segment(found)
                    self.same_releases += 1
                    return
            else:
                covering = [b for _, _, b in keys if b.address <= address and address + nbytes <= b.address + b.size]
                if covering and covering[0].expandable is not None:
                    reserved_before = self._allocator.reserved_bytes
                    store.unmap(covering[0])
                    self.same_releases += reserved_before - self._allocator.reserved_bytes == nbytes
                    return


def _same_state(live: dict[int, Block], allocator: Allocator, end: Layout) -> bool:
    ours = {block.address: (block.size, block.requested, block.state) for block in live.values()}
    recorded = {address: (block.size, block.requested, block.state) for address, block in end.blocks.items()}
    return ours == recorded and allocator.reserved_bytes == end.reserved_bytes()


class RecordedDriver:
    """Hands out the segments of the recording, in its order. Asked for one that is not there, it makes one up."""

    def __init__(self) -> None:
        self.recorded: deque[tuple[int, int]] = deque()
        self.asked = self.matched = 0
        self._made_up = SimulatedDriver(None)

    def malloc(self, nbytes: int) -> int | None:
        self.asked += 1
        if self.recorded and self.recorded[0][1] == nbytes:
            self.matched += 1
            return self.recorded.popleft()[0]
        return self._made_up.malloc(nbytes)

    def free(self, address: int, nbytes: int) -> None:
        pass

    def reserve_addresses(self, page_bytes: int) -> tuple[int, int]:
        base, space = self._made_up.reserve_addresses(page_bytes)
        return (self.recorded[0][0] if self.recorded else base), space

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
