"""Which rows each rank reads, in which order, and how to go on after an interruption.

In: a dataset's row groups, batch size, seed, rank and world size. Out: batches of row numbers for DataLoader's
`batch_sampler`. The order follows from these and the window alone, not from the number of workers. Every row comes
exactly once per epoch over all ranks. Does not read data.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from vramcast.errors import InputError, unknown
from vramcast.host.parquet_facts import SLICE_BYTES, ParquetFacts, RowGroup

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHUFFLES = ("groups", "full", "none")
_GROUP_ORDER, _ROW_ORDER = (
    2**63,
    2**63 + 1,
)  # streams of random words; windows use their number and their lane
_LANE_STREAMS = 2**32
LANES = (4, 2)  # offered where each lane keeps so many row groups to shuffle
LANE_GROUPS = {"row-groups": 8, "ultra": 2}


class HasFacts(Protocol):
    """A dataset as the sampler sees it."""

    facts: ParquetFacts
    mode: str
    budget_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segment:
    """Consecutive rows of one row group, by dataset row number."""

    start: int
    stop: int
    held_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """How many rows each batch has, without a list as long as the epoch: all are full but the last ones."""

    count: int
    full: int
    last: tuple[int, ...]

    def of(self, number: int) -> int:
        from_end = self.count - number
        return self.last[-from_end] if from_end <= len(self.last) else self.full

    def total(self, lane: int, lanes: int, stop: int) -> int:
        """Rows of a lane's batches before batch number `stop`."""
        first = self.count - len(self.last)
        rest = (self.of(number) for number in range(first, stop) if number % lanes == lane)
        return self.full * len(range(lane, min(stop, first), lanes)) + sum(rest)


class RowGroupSampler:
    """Batches of row numbers, shuffled so that a row group is decoded once and then used up.

    `groups` shuffles the row groups, takes as many as fit in `window_bytes`, and shuffles the rows of such a window
    together. `full` shuffles all rows (for `table` and `mmap`, where random access is free). `none` keeps file order.
    Ranks take consecutive parts of the shuffled row groups, so each decodes its own share of the files, and all have
    the same number of batches; where that is impossible it is refused unless `allow_uneven`.

    A row group larger than what mode `ultra` holds is taken slice by slice, the rows of a slice shuffled: parquet
    cannot seek inside a row group, and a row from anywhere in it would decode all before it.

    A window is divided into `lanes`, and batches come from the lanes in turn. DataLoader hands batches to its workers
    in turn as well, so workers that divide the number of lanes decode different row groups. The order depends on the
    lanes, not on the workers; by default there are 4, or 2, where a lane still mixes 8 row groups
    (2 in mode `ultra`).
    """

    def __init__(
        self,
        dataset: HasFacts,
        *,
        batch_size: int,
        shuffle: str = "groups",
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        window_bytes: int | None = None,
        lanes: int | None = None,
        drop_last: bool = False,
        allow_uneven: bool = False,
    ) -> None:
        if shuffle not in SHUFFLES:
            raise unknown("shuffle", shuffle, SHUFFLES)
        if batch_size < 1:
            raise InputError(f"batch_size={batch_size}: a batch has at least one row")
        if lanes is not None and (lanes < 1 or (shuffle != "groups" and lanes > 1)):
            raise InputError(
                f"lanes={lanes} with shuffle={shuffle!r}: at least 1, and more than 1 only for 'groups'"
            )
        self.facts = dataset.facts
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.rank, self.world_size = _place(rank, world_size)
        self._cuts_groups = (
            dataset.mode == "ultra" and self.facts.largest_group.decoded_bytes > SLICE_BYTES
        )
        self.window_bytes = _default_window(dataset) if window_bytes is None else window_bytes
        self.lanes = self._default_lanes(dataset.mode) if lanes is None else lanes
        self.drop_last = drop_last
        self.allow_uneven = allow_uneven
        self.epoch = 0
        self._drawn = 0
        self._resume_at = 0
        self._check_enough_rows()

    def __len__(self) -> int:
        """Batches per epoch: the same on every rank, so that no collective waits for a rank that has finished."""
        if self.drop_last:
            return self._rows_of(self.world_size - 1) // self.batch_size
        equal = -(-self._rows_of(0) // self.batch_size)
        return min(equal, self._rows_of(self.rank)) if self.allow_uneven else equal

    def __iter__(self) -> Iterator[list[int]]:
        # The place to resume is taken at the first draw: DataLoader makes iterators that it never draws from.
        start, self._resume_at = self._resume_at, 0
        self._drawn = start
        yield from self._batches(start)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch's order. A resumed epoch may be named again; another one starts at its beginning."""
        if epoch != self.epoch:
            self.epoch, self._resume_at, self._drawn = epoch, 0, 0

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Where this epoch stands. `batches`: how many were trained on; else how many were drawn from the sampler.

        With prefetching workers the sampler runs ahead of the training loop, so a loop over a plain DataLoader passes
        `batches`; torchdata's StatefulDataLoader does this accounting itself.
        """
        return {
            "epoch": self.epoch,
            "batches": self._drawn if batches is None else batches,
            "order": self._order(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        order = self._order()
        differing = [
            f"{key} {state['order'].get(key)!r} then, {value!r} now"
            for key, value in order.items()
            if state["order"].get(key) != value
        ]
        if differing:
            raise InputError(f"this state belongs to another order of rows: {'; '.join(differing)}")
        if not 0 <= state["batches"] <= len(self):
            raise InputError(
                f"state says {state['batches']} batches are done, an epoch has {len(self)}"
            )
        self.epoch, self._resume_at = state["epoch"], state["batches"]
        self._drawn = self._resume_at

    def _order(self) -> dict[str, Any]:
        """Everything the order follows from. The window is part of it: another budget gives another order."""
        rows = ",".join(str(group.num_rows) for group in self.facts.row_groups)
        return {
            "seed": self.seed,
            "shuffle": self.shuffle,
            "batch_size": self.batch_size,
            "rank": self.rank,
            "world_size": self.world_size,
            "window_bytes": self.window_bytes,
            "lanes": self.lanes,
            "drop_last": self.drop_last,
            "num_rows": self.facts.num_rows,
            "row_groups": hashlib.sha256(rows.encode()).hexdigest()[:16],
            **({"slice_bytes": SLICE_BYTES} if self._cuts_groups else {}),
            **(
                {"cuts": "at row groups"} if self.lanes > 1 else {}
            ),  # states from before they were are refused
        }

    def _check_enough_rows(self) -> None:
        if self._rows_of(self.world_size - 1) < len(self) and not self.allow_uneven:
            raise InputError(
                f"{self.facts.num_rows} rows cannot give {self.world_size} ranks the same number of batches of "
                f"{self.batch_size}: some rank would wait for ever. Use drop_last=True, another batch_size, fewer "
                "ranks, or allow_uneven=True where no rank waits for another."
            )

    def _rows_of(self, rank: int) -> int:
        """Ranks differ by at most one row; the first ones have it."""
        rows, extra = divmod(self.facts.num_rows, self.world_size)
        return rows + (rank < extra)

    def _span(self) -> tuple[int, int]:
        start = sum(self._rows_of(rank) for rank in range(self.rank))
        return start, start + self._rows_of(self.rank)

    def _sizes(self) -> _Sizes:
        """Full batches, except that a rank one row short of needing another shares out its last."""
        rows, count = self._rows_of(self.rank), len(self)
        if self.drop_last:
            return _Sizes(count=count, full=self.batch_size, last=())
        first = max(count - 2, 0)
        ends = [min(self.batch_size * (number + 1), rows) for number in range(first, count)]
        if count > 1 and ends[0] == rows:
            ends[0] = rows - self.batch_size // 2
        starts = [self.batch_size * first, *ends]
        last = tuple(end - start for start, end in zip(starts, ends, strict=False))
        return _Sizes(count=count, full=self.batch_size, last=last)

    def _batches(self, start: int) -> Iterator[list[int]]:
        """Batch after batch, each from the next lane."""
        sizes = self._sizes()
        lanes = [self._rows_of_lane(lane, sizes, start) for lane in range(self.lanes)]
        held: list[NDArray[np.int64]] = [np.empty(0, dtype=np.int64)] * self.lanes
        for number in range(start, sizes.count):
            lane, size = number % self.lanes, sizes.of(number)
            while len(held[lane]) < size:
                held[lane] = np.concatenate([held[lane], next(lanes[lane])])
            batch, held[lane] = held[lane][:size], held[lane][size:]
            self._drawn = number + 1
            yield batch.tolist()

    def _rows_of_lane(self, lane: int, sizes: _Sizes, start: int) -> Iterator[NDArray[np.int64]]:
        """A lane's rows, window by window, after those of its batches before `start`."""
        skip = sizes.total(lane, self.lanes, start)
        if self.shuffle == "full":
            first, stop = self._span()
            yield self._permutation(self.facts.num_rows, 0, _ROW_ORDER)[first + skip : stop]
            return
        windows = list(self._windows())
        for number, (window, cuts) in enumerate(
            zip(windows, self._lane_cuts(windows, sizes), strict=True)
        ):
            count = cuts[lane + 1] - cuts[lane]
            if count > skip:  # else not even shuffled
                rows = np.concatenate(
                    [np.arange(part.start, part.stop, dtype=np.int64) for part in window]
                )
                rows = rows[cuts[lane] : cuts[lane + 1]]
                if self.shuffle != "none":
                    rows = rows[self._permutation(count, self.rank, number + lane * _LANE_STREAMS)]
                yield rows[skip:]
            skip = max(skip - count, 0)

    def _lane_cuts(self, windows: list[list[_Segment]], sizes: _Sizes) -> Iterator[list[int]]:
        """Where each window's rows are cut into lanes: in proportion to what each lane's batches still need.

        All lanes leave a window together, to within a batch, so that what one process holds is one window, whatever
        its lanes. A cut less than a batch beside a row group's edge is made there: else two workers decode it.
        """
        left = [sizes.total(lane, self.lanes, sizes.count) for lane in range(self.lanes)]
        left[-1] += self._rows_of(self.rank) - sum(left)  # what `drop_last` leaves out
        for window in windows:
            num_rows, total = sum(part.stop - part.start for part in window), sum(left)
            cuts = [num_rows * before // total for before in (0, *accumulate(left))]
            if num_rows < total:  # the last window has to come out even
                cuts = self._at_edges(cuts, window, left)
            left = [
                rows - (stop - start)
                for rows, start, stop in zip(left, cuts, cuts[1:], strict=False)
            ]
            yield cuts

    def _at_edges(self, cuts: list[int], window: list[_Segment], left: list[int]) -> list[int]:
        """The cuts moved to edges of row groups that are near, where no lane then gets more than it needs."""
        edges = [0, *accumulate(part.stop - part.start for part in window)]
        nearest = [min(edges, key=lambda edge: abs(edge - cut)) for cut in cuts]
        moved = [
            edge if abs(edge - cut) < self.batch_size else cut
            for edge, cut in zip(nearest, cuts, strict=True)
        ]
        counts = [stop - start for start, stop in pairwise(moved)]
        return (
            moved
            if all(0 <= count <= rows for count, rows in zip(counts, left, strict=True))
            else cuts
        )

    def _windows(self) -> Iterator[list[_Segment]]:
        """Segments gathered until the next would exceed the window."""
        window: list[_Segment] = []
        held_bytes = 0
        for segment in self._segments():
            if window and held_bytes + segment.held_bytes > self.window_bytes:
                yield window
                window, held_bytes = [], 0
            window.append(segment)
            held_bytes += segment.held_bytes
        if window:
            yield window

    def _segments(self) -> Iterator[_Segment]:
        """The rank's part of the row groups in this epoch's order; only a group at a boundary is cut in two."""
        start, stop = self._span()
        position = 0
        for index in self._group_order():
            group, end = self.facts.row_groups[index], self.facts.ends[index]
            first, last = max(start - position, 0), min(stop - position, group.num_rows)
            if first < last:
                yield from self._slices(group, end - group.num_rows, first, last)
            position += group.num_rows

    def _slices(self, group: RowGroup, base: int, first: int, last: int) -> Iterator[_Segment]:
        """A row group whole; one that mode `ultra` reads in slices as these, in the order they are decoded in."""
        if not self._cuts_groups or self.shuffle == "full":
            yield _Segment(start=base + first, stop=base + last, held_bytes=group.held_bytes)
            return
        size = group.slice_rows(SLICE_BYTES)
        for start in range(first // size * size, last, size):
            yield _Segment(
                start=base + max(start, first),
                stop=base + min(start + size, last),
                held_bytes=group.held_bytes * size // group.num_rows,
            )

    def _default_lanes(self, mode: str) -> int:
        """One where rows are at hand without decoding, or where too few row groups are held to be divided."""
        if mode not in LANE_GROUPS or self.shuffle != "groups":
            return 1
        groups = self.window_bytes // max(self.facts.max_held_bytes, 1)
        return next((lanes for lanes in LANES if groups >= lanes * LANE_GROUPS[mode]), 1)

    def _group_order(self) -> list[int]:
        count = len(self.facts.row_groups)
        return (
            list(range(count))
            if self.shuffle == "none"
            else self._permutation(count, 0, _GROUP_ORDER).tolist()
        )

    def _permutation(self, count: int, rank: int, stream: int) -> NDArray[np.int64]:
        """By sorting raw random words: numpy promises those for all versions, which it does not for `permutation`."""
        bits = np.random.PCG64(np.random.SeedSequence([self.seed, self.epoch, rank, stream]))
        return np.argsort(bits.random_raw(count), kind="stable")


def _place(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """As given, else as torch.distributed says where it runs, else alone."""
    if (rank is None) != (world_size is None):
        raise InputError(f"rank={rank}, world_size={world_size}: give both or neither")
    if rank is None or world_size is None:
        rank, world_size = _distributed_place()
    if not 0 <= rank < world_size:
        raise InputError(f"rank={rank} is not one of {world_size} ranks")
    return rank, world_size


def _distributed_place() -> tuple[int, int]:
    # Not imported for its own sake: where torch was not loaded, nobody can have started a process group.
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def _default_window(dataset: HasFacts) -> int:
    """As many row groups as the dataset holds at once, less one for the batch that reaches into the next window."""
    facts = dataset.facts
    room = (
        SLICE_BYTES if dataset.mode == "ultra" else facts.table_budget_bytes(dataset.budget_bytes)
    )
    return max(room - facts.max_held_bytes, 0)
