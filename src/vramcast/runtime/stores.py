"""Where the rows of a dataset are while it is read: four stores with one face.

In: the facts of the parquet files. Out: Arrow tables by chunk number, and where each chunk ends. A store belongs to one
process: it is opened after a fork or in a spawned worker, never shared, save for `TableStore`, which is read only.
"""

from __future__ import annotations

import mmap
import sys
from collections import OrderedDict
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from vramcast.errors import InputError
from vramcast.host.parquet import POOL_SEGMENT_BYTES, READ_BUFFER_BYTES, SLICE_BYTES, ParquetFacts
from vramcast.runtime.rows import Rows
from vramcast.units import KiB, format_bytes

SMALL_TABLE_BYTES = 256 * KiB  # not worth a mapping of its own: a process may have 65,530 of them (vm.max_map_count)


class Store(Protocol):
    """Chunks of rows in the order of the dataset."""

    ends: tuple[int, ...]
    survives_fork: bool

    def load(self, chunk: int, wanted: int = 1) -> Rows:
        """The rows of a chunk, of which `wanted` will be read now."""


class GroupReader:
    """Decodes one row group at a time; keeps at most one file open."""

    def __init__(self, facts: ParquetFacts) -> None:
        self.facts = facts
        self.names = facts.column_names()
        self._partition_types = _partition_types(facts)
        self._open_file: int | None = None
        self._parquet: pq.ParquetFile | None = None

    def read(self, index: int) -> pa.Table:
        group = self.facts.row_groups[index]
        try:
            # One thread: a worker must not start a thread pool of its own, and what is held stays one group.
            table = self._file(group.file).read_row_group(group.group, columns=list(self.names), use_threads=False)
            table.validate(full=True)  # offsets in range and text UTF-8: damage that decoding lets through
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(index, error) from error
        if table.num_rows != group.num_rows:
            raise self._damaged(index, f"{table.num_rows} rows where the footer promises {group.num_rows}")
        return self._complete(table, index)

    def slices(self, index: int, rows: int) -> Iterator[pa.Table]:
        """The row group in pieces of `rows`, decoding pages as it goes."""
        group = self.facts.row_groups[index]
        batches = self._file(group.file).iter_batches(
            batch_size=rows, row_groups=[group.group], columns=list(self.names), use_threads=False
        )
        try:
            for batch in batches:
                batch.validate(full=True)
                yield self._complete(pa.Table.from_batches([batch]), index)
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(index, error) from error

    def _file(self, number: int) -> pq.ParquetFile:
        if self._open_file != number or self._parquet is None:
            facts = self.facts.files[number]
            try:
                if facts.changed():
                    raise InputError(f"{facts.path}: changed since its footer was read. Open the dataset again.")
                # A page buffer instead of whole column chunks keeps what is read beside what is decoded small.
                self._parquet = pq.ParquetFile(
                    facts.path, pre_buffer=False, buffer_size=READ_BUFFER_BYTES, page_checksum_verification=True
                )
            except (pa.ArrowException, OSError) as error:
                raise InputError(f"{facts.path}: cannot be opened any more: {error}") from error
            self._open_file = number
        return self._parquet

    def _complete(self, table: pa.Table, index: int) -> pa.Table:
        """Put columns in the asked order (pyarrow uses the file's) and add the partition's constants."""
        table = table.select(list(self.names))
        for key, value in self.facts.files[self.facts.row_groups[index].file].partition:
            scalar = pa.scalar(value, type=self._partition_types[key])
            table = table.append_column(key, pa.repeat(scalar, table.num_rows))
        return table

    def _damaged(self, index: int, why: object) -> InputError:
        return InputError(f"{self.facts.describe(index)}: cannot be decoded: {why}")


class TableStore:
    """Everything decoded once and kept: the fastest and the largest."""

    survives_fork = True

    def __init__(self, facts: ParquetFacts) -> None:
        self.ends = facts.ends
        reader = GroupReader(facts)
        self._rows = [Rows(compacted(reader.read(index))) for index in range(len(facts.row_groups))]
        pa.default_memory_pool().release_unused()  # what decoding left behind

    def load(self, chunk: int, wanted: int = 1) -> Rows:
        return self._rows[chunk]


class GroupStore:
    """The row groups used last, up to a budget that also covers what decoding them takes."""

    survives_fork = False

    def __init__(self, facts: ParquetFacts, budget_bytes: int) -> None:
        self.ends = facts.ends
        self.budget_bytes = budget_bytes
        self.tables_bytes = facts.room_for_tables_bytes(budget_bytes)
        self.held_bytes = 0
        self._facts = facts
        self._reader = GroupReader(facts)
        self._held: OrderedDict[int, Rows] = OrderedDict()  # in the order in which they will make room
        self._unread: dict[int, int] = {}
        check_groups_fit(facts, budget_bytes)

    def load(self, chunk: int, wanted: int = 1) -> Rows:
        rows = self._held.get(chunk) or self._decode(chunk)
        self._unread[chunk] -= wanted
        # An epoch reads every row once: a row group that has been read up is the first to make room.
        self._held.move_to_end(chunk, last=self._unread[chunk] > 0)
        return rows

    def _decode(self, chunk: int) -> Rows:
        self._make_room(self._facts.row_groups[chunk].decoded_bytes)  # before decoding, so the sum never exceeds it
        rows = Rows(compacted(self._reader.read(chunk)))
        give_back(self._facts, chunk)
        if rows.nbytes > self.budget_bytes:
            raise _too_large(self._facts, chunk, rows.nbytes, self.budget_bytes)
        self._make_room(rows.nbytes)
        self._held[chunk] = rows
        self._unread[chunk] = rows.num_rows
        self.held_bytes += rows.nbytes
        return rows

    def _make_room(self, nbytes: int) -> None:
        while self._held and self.held_bytes + nbytes > self.tables_bytes:
            chunk, dropped = self._held.popitem(last=False)
            del self._unread[chunk]
            self.held_bytes -= dropped.nbytes


class SliceStore:
    """One row group, or one slice of a large one, and nothing else."""

    survives_fork = False

    def __init__(self, facts: ParquetFacts, slice_bytes: int = SLICE_BYTES) -> None:
        self._reader = GroupReader(facts)
        self._plan = [piece for index in range(len(facts.row_groups)) for piece in _pieces(facts, index, slice_bytes)]
        self.ends = tuple(accumulate(rows for _, _, rows in self._plan))
        self._held: tuple[int, Rows] | None = None
        self._stream: tuple[int, Iterator[pa.Table]] | None = None  # the next chunk a running decode will give

    def load(self, chunk: int, wanted: int = 1) -> Rows:
        if self._held is None or self._held[0] != chunk:
            self._held = None  # dropped first: never two at once
            self._held = (chunk, Rows(compacted(self.table(chunk))))
            # Always, for half the decoding again: this mode is for those who have memory for one row group and no more.
            pa.default_memory_pool().release_unused()
        return self._held[1]

    def table(self, chunk: int) -> pa.Table:
        group, piece, rows = self._plan[chunk]
        whole = piece == 0 and (chunk + 1 == len(self._plan) or self._plan[chunk + 1][0] != group)
        if whole:
            self._stream = None
            return self._reader.read(group)
        return self._advance(chunk, group, piece, rows)

    def _advance(self, chunk: int, group: int, piece: int, rows: int) -> pa.Table:
        """Parquet cannot seek inside a row group, so a slice is reached by decoding the ones before it."""
        first = chunk - piece
        if self._stream is None or not first <= self._stream[0] <= chunk:
            self._stream = (first, self._reader.slices(group, self._plan[first][2]))
        position, tables = self._stream
        for table in tables:
            position += 1
            self._stream = (position, tables)
            if position > chunk:
                if table.num_rows != rows:
                    break
                return table
        raise InputError(f"{self._reader.facts.describe(group)}: ended before slice {piece} of {rows} rows")


def _partition_types(facts: ParquetFacts) -> dict[str, pa.DataType]:
    """One type per key over all files: a null in one folder must not change it."""
    pairs = [pair for file in facts.files for pair in file.partition]
    text = {key for key, value in pairs if isinstance(value, str)}
    return {key: pa.string() if key in text else pa.int64() for key, _ in pairs}


def _pieces(facts: ParquetFacts, index: int, slice_bytes: int) -> Iterator[tuple[int, int, int]]:
    """(row group, piece, rows) for a row group cut into slices of about `slice_bytes`."""
    group = facts.row_groups[index]
    count = max(1, -(-group.decoded_bytes // slice_bytes))
    size = -(-group.num_rows // count)
    for piece, start in enumerate(range(0, group.num_rows, size)):
        yield index, piece, min(size, group.num_rows - start)


def give_back(facts: ParquetFacts, index: int) -> None:
    """Return what decoding a large row group left in pyarrow's pool.

    A small one leaves at most one segment, which the next reuses: returning it too would cost half the decoding again.
    """
    if facts.row_groups[index].decoding_bytes() > POOL_SEGMENT_BYTES:
        pa.default_memory_pool().release_unused()


def check_groups_fit(facts: ParquetFacts, budget_bytes: int) -> None:
    """Refuse early what could only be read by breaking the budget."""
    largest = facts.row_groups.index(facts.largest_group)
    if facts.largest_group.decoded_bytes > budget_bytes:
        raise _too_large(facts, largest, facts.largest_group.decoded_bytes, budget_bytes)


def _too_large(facts: ParquetFacts, index: int, nbytes: int, budget_bytes: int) -> InputError:
    rows = facts.row_groups[index].num_rows
    return InputError(
        f"{facts.describe(index)}: {rows:,} rows decode to {format_bytes(nbytes)}, more than the budget of "
        f"{format_bytes(budget_bytes)}. Rewrite the file once with vramcast.runtime.rewrite_row_groups(source, "
        "target), use mode='mmap' or 'ultra', or raise budget_bytes."
    )


def compacted(table: pa.Table) -> pa.Table:
    """The same table in one mapping of just its size.

    Decoding leaves buffers up to twice as large as their content in a pool that keeps what is freed, and `nbytes`
    counts neither. Memory mapped for one table is what it says and goes back to the system when the table is dropped.
    """
    if table.nbytes < SMALL_TABLE_BYTES:
        return table
    size = pa.MockOutputStream()
    _write_stream(size, table)
    buffer = pa.py_buffer(_own_memory(size.size()))
    _write_stream(pa.FixedSizeBufferWriter(buffer), table)
    return pa.ipc.open_stream(buffer).read_all()


def _own_memory(nbytes: int) -> mmap.mmap:
    """Anonymous memory of this process; on Linux all pages at once, which is cheaper than a fault for each."""
    if sys.platform == "linux":
        return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
    return mmap.mmap(-1, nbytes)


def _write_stream(sink: Any, table: pa.Table) -> None:
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
