"""Where the rows of a dataset are while it is read: four stores with one face.

In: the facts of the parquet files. Out: Arrow tables by chunk number, and where each chunk ends. A store belongs to one
process: it is opened after a fork or in a spawned worker, never shared, save for `TableStore`, which is read only.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import warnings
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from vramcast.errors import InputError
from vramcast.host.parquet import READ_BUFFER_BYTES
from vramcast.host.parquet_facts import POOL_SEGMENT_BYTES, SLICE_BYTES, ParquetFacts, RowGroup
from vramcast.runtime.data.rows import Rows, is_text
from vramcast.units import KiB, format_bytes, round_up

SMALL_TABLE_BYTES = (
    256 * KiB
)  # not worth a mapping of its own: a process may have 65,530 of them (vm.max_map_count)
_MADV_NOHUGEPAGE = 15  # mman.h


class Store(Protocol):
    """Chunks of rows in the order of the dataset."""

    ends: tuple[int, ...]
    survives_fork: bool

    def load(self, chunk: int, wanted: int = 1) -> Rows:
        """The rows of a chunk, of which `wanted` will be read now: the next call may reuse their memory."""

    def describe(self, chunk: int) -> str:
        """Where a chunk comes from, for errors."""


class GroupReader:
    """Decodes one row group at a time; keeps at most one file open."""

    def __init__(self, facts: ParquetFacts, *, reads_text: bool = False) -> None:
        self.facts = facts
        self.reads_text = (
            reads_text  # every text is turned into a `str` later, which finds what is not UTF-8
        )
        self.names = facts.column_names()
        self._partition_types = _partition_types(facts)
        self._open_file: int | None = None
        self._parquet: pq.ParquetFile | None = None
        _use_small_pages()

    def read(self, index: int) -> pa.Table:
        group = self.facts.row_groups[index]
        try:
            # One thread: a worker must not start a thread pool of its own, and what is held stays one group.
            table = self._file(group.file).read_row_group(
                group.group, columns=list(self.names), use_threads=False
            )
            _validate(table, self.reads_text)
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(index, error) from error
        if table.num_rows != group.num_rows:
            raise self._damaged(
                index, f"{table.num_rows} rows where the footer promises {group.num_rows}"
            )
        return self._complete(table, index)

    def slices(self, index: int, rows: int) -> Iterator[pa.Table]:
        """The row group in pieces of `rows`, decoding pages as it goes."""
        group = self.facts.row_groups[index]
        batches = self._file(group.file).iter_batches(
            batch_size=rows, row_groups=[group.group], columns=list(self.names), use_threads=False
        )
        try:
            for batch in batches:
                table = pa.Table.from_batches([batch])
                _validate(table, self.reads_text)
                yield self._complete(table, index)
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(index, error) from error

    def _file(self, number: int) -> pq.ParquetFile:
        if self._open_file != number or self._parquet is None:
            facts = self.facts.files[number]
            try:
                if facts.changed():
                    raise InputError(
                        f"{facts.path}: changed since its footer was read. Open the dataset again."
                    )
                # A page buffer instead of whole column chunks keeps what is read beside what is decoded small.
                self._parquet = pq.ParquetFile(
                    facts.path,
                    pre_buffer=False,
                    buffer_size=READ_BUFFER_BYTES,
                    page_checksum_verification=True,
                )
            except (pa.ArrowException, OSError) as error:
                raise InputError(f"{facts.path}: cannot be opened any more: {error}") from error
            self._open_file = number
        return self._parquet

    def _complete(self, table: pa.Table, index: int) -> pa.Table:
        """Put columns in the asked order (pyarrow uses the file's) and add the partition's constants."""
        table = table.select(list(self.names))
        for key, value in self.facts.files[self.facts.row_groups[index].file].partition:
            table = table.append_column(
                key, _constant(value, self._partition_types[key], table.num_rows)
            )
        return table

    def _damaged(self, index: int, why: object) -> InputError:
        return damaged(self.facts, index, why)


class TableStore:
    """Everything decoded once and kept: the fastest and the largest."""

    survives_fork = True

    def __init__(self, facts: ParquetFacts) -> None:
        self.ends = facts.ends
        self._facts = facts
        # In a thread of its own, which glibc gives a heap of its own: the holes that the closed footers leave stay
        # there. In the parent's heap every forked worker would make pages of its own in them, by 0 to 6 MiB by chance.
        with ThreadPoolExecutor(1) as thread:
            self._rows = thread.submit(_all_rows, facts).result()
        pa.default_memory_pool().release_unused()  # what decoding left behind
        _trim_heap()

    def load(self, chunk: int, wanted: int = 1) -> Rows:
        return self._rows[chunk]

    def describe(self, chunk: int) -> str:
        return self._facts.describe(chunk)


def _all_rows(facts: ParquetFacts) -> list[Rows]:
    reader = GroupReader(facts)
    return [compacted(reader.read(index)) for index in range(len(facts.row_groups))]


class Held:
    """Decoded chunks up to a number of bytes, and which of them make room for the next."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._rows: OrderedDict[int, Rows] = (
            OrderedDict()
        )  # in the order in which they will make room
        self._unread: dict[int, int] = {}

    def get(self, chunk: int) -> Rows | None:
        return self._rows.get(chunk)

    def add(self, chunk: int, rows: Rows) -> Rows:
        self._rows[chunk] = rows
        self._unread[chunk] = rows.num_rows
        self.held_bytes += rows.nbytes
        return rows

    def note_read(self, chunk: int, count: int) -> None:
        """An epoch reads every row once: a chunk that has been read up is the first to make room."""
        self._unread[chunk] -= count
        self._rows.move_to_end(chunk, last=self._unread[chunk] > 0)

    def make_room(self, nbytes: int) -> list[mmap.mmap]:
        """Drop what stands in the way. The memory of the dropped is for the next to be written into."""
        spare: list[mmap.mmap] = []
        while self._rows and self.held_bytes + nbytes > self.limit_bytes:
            chunk, dropped = self._rows.popitem(last=False)
            del self._unread[chunk]
            self.held_bytes -= dropped.nbytes
            spare += [] if dropped.memory is None else [dropped.memory]
        return spare


class GroupStore:
    """The row groups used last, up to a budget that also covers what decoding them takes."""

    survives_fork = False

    def __init__(self, facts: ParquetFacts, budget_bytes: int) -> None:
        self.ends = facts.ends
        self.budget_bytes = budget_bytes
        self.held = Held(facts.table_budget_bytes(budget_bytes))
        self._facts = facts
        self._reader = GroupReader(facts, reads_text=True)
        self._keeps_pool = facts.keeps_pool(budget_bytes)

    def load(self, chunk: int, wanted: int = 1) -> Rows:
        rows = self.held.get(chunk) or self._decode(chunk)
        self.held.note_read(chunk, wanted)
        return rows

    def describe(self, chunk: int) -> str:
        return self._facts.describe(chunk)

    def _decode(self, chunk: int) -> Rows:
        spare = self.held.make_room(
            self._facts.row_groups[chunk].held_bytes
        )  # first, so that the sum never exceeds
        rows = compacted(self._reader.read(chunk), spare)
        self._give_back(chunk)
        if rows.nbytes > self.budget_bytes:
            raise self._facts.too_large(chunk, rows.nbytes, self.budget_bytes)
        rows.nbytes += self._facts.row_groups[chunk].objects_bytes
        self.held.make_room(rows.nbytes)
        return self.held.add(chunk, rows)

    def _give_back(self, chunk: int) -> None:
        """Return what decoding left in pyarrow's pool, unless that is one segment, which the next decoding reuses.

        Returning it after every small row group would cost half the decoding again.
        """
        if (
            not self._keeps_pool
            or self._facts.row_groups[chunk].decoding_bytes() > POOL_SEGMENT_BYTES
        ):
            pa.default_memory_pool().release_unused()


class SliceStore:
    """One row group, or one slice of a large one; of small ones as many as make a slice."""

    survives_fork = False

    def __init__(
        self, facts: ParquetFacts, slice_bytes: int = SLICE_BYTES, *, reads_text: bool = False
    ) -> None:
        self._reader = GroupReader(facts, reads_text=reads_text)
        self._plan = [
            piece
            for index in range(len(facts.row_groups))
            for piece in _pieces(facts, index, slice_bytes)
        ]
        self.ends = tuple(accumulate(rows for _, _, rows in self._plan))
        self.held = Held(slice_bytes)
        self._stream: tuple[int, Iterator[pa.Table]] | None = (
            None  # the next chunk a running decode will give
        )

    def load(self, chunk: int, wanted: int = 1) -> Rows:
        rows = self.held.get(chunk)
        if rows is None:
            group, _, num_rows = self._plan[chunk]
            facts = self._reader.facts.row_groups[group]
            spare = self.held.make_room(
                facts.decoded_bytes * num_rows // facts.num_rows + facts.objects_bytes
            )
            rows = compacted(self.table(chunk), spare)
            rows.nbytes += facts.objects_bytes
            self.held.make_room(rows.nbytes)
            self.held.add(chunk, rows)
            self._give_back(facts)
        self.held.note_read(chunk, wanted)
        return rows

    def describe(self, chunk: int) -> str:
        return self._reader.facts.describe(self._plan[chunk][0])

    def _give_back(self, group: RowGroup) -> None:
        """Empty the pool after a large decoding. After a small one the next reuses it: to have the kernel clear its
        pages anew costs more than the decoding, and what a worker holds would be another figure at every batch.
        """
        if not group.ultra_keeps_pool:
            pa.default_memory_pool().release_unused()

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
        raise InputError(
            f"{self._reader.facts.describe(group)}: ended before slice {piece} of {rows} rows"
        )


def damaged(facts: ParquetFacts, index: int, why: object) -> InputError:
    return InputError(f"{facts.describe(index)}: cannot be decoded: {why}")


def _validate(table: pa.Table, reads_text: bool) -> None:
    """Offsets in range and text UTF-8: damage that decoding lets through."""
    for column in table.columns:
        column.validate(full=not (reads_text and is_text(column.type)))


def _partition_types(facts: ParquetFacts) -> dict[str, pa.DataType]:
    """One type per key over all files: a null in one folder must not change it."""
    pairs = [pair for file in facts.files for pair in file.partition]
    text = {key for key, value in pairs if isinstance(value, str)}
    return {key: pa.string() if key in text else pa.int64() for key, _ in pairs}


def _constant(value: str | int | None, kind: pa.DataType, rows: int) -> pa.Array:
    """The value in every row. `pa.scalar` would import pandas where there is one: 30 MiB in every process."""
    if value is None:
        return pa.nulls(rows, kind)
    if isinstance(value, int):
        return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(array("q", [value]) * rows)])
    text = value.encode()
    offsets = array("i", [row * len(text) for row in range(rows + 1)])
    return pa.Array.from_buffers(
        kind, rows, [None, pa.py_buffer(offsets), pa.py_buffer(text * rows)]
    )


def _pieces(facts: ParquetFacts, index: int, slice_bytes: int) -> Iterator[tuple[int, int, int]]:
    """(row group, piece, rows) for a row group cut into slices of about `slice_bytes`."""
    group = facts.row_groups[index]
    size = group.slice_rows(slice_bytes)
    for piece, start in enumerate(range(0, group.num_rows, size)):
        yield index, piece, min(size, group.num_rows - start)


def check_groups_fit(facts: ParquetFacts, budget_bytes: int) -> None:
    """Refuse a budget below one row group; warn of one that does not cover what decoding takes besides."""
    facts.check_budget(budget_bytes)
    if budget_bytes < facts.min_budget_bytes:
        warnings.warn(
            f"{facts.files[0].path}: a budget of {format_bytes(budget_bytes)} holds the largest row group, "
            f"{format_bytes(facts.largest_group.decoded_bytes)}, but not what decoding takes beside it, "
            f"{format_bytes(facts.scratch_bytes(budget_bytes))}. Raise budget_bytes to "
            f"{format_bytes(facts.min_budget_bytes)}, or rewrite the file with smaller row groups "
            "(vramcast.runtime.rewrite_row_groups).",
            stacklevel=3,
        )


def compacted(table: pa.Table, spare: Sequence[mmap.mmap] = ()) -> Rows:
    """The table's rows in one mapping of just its size: one of the spare ones if it fits, else a new one.

    Decoding leaves buffers up to twice as large as their content in a pool that keeps what is freed, and `nbytes`
    counts neither. Memory mapped for one table is what it says and goes back to the system when the table is dropped.
    """
    if table.nbytes < SMALL_TABLE_BYTES:
        return Rows(table)
    size = pa.MockOutputStream()
    _write_stream(size, table)
    memory = _spare_memory(spare, size.size()) or _own_memory(size.size())
    buffer = pa.py_buffer(memory)
    _write_stream(pa.FixedSizeBufferWriter(buffer), table)
    return Rows(pa.ipc.open_stream(buffer).read_all(), memory)


def _spare_memory(spare: Sequence[mmap.mmap], nbytes: int) -> mmap.mmap | None:
    """Pages that are there already: to have the kernel clear others costs as much as half the decoding."""
    fitting = [memory for memory in spare if nbytes <= len(memory) <= nbytes + nbytes // 8]
    if not fitting or not hasattr(mmap, "MADV_DONTNEED"):
        return None
    memory, end = fitting[0], round_up(nbytes, mmap.PAGESIZE)
    if end < len(memory):
        memory.madvise(mmap.MADV_DONTNEED, end)
    return memory


def _trim_heap() -> None:
    """Return the holes that a closed file's footer left in glibc's heap: every forked worker would copy them."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


def _use_small_pages() -> None:
    """Take back mimalloc's request for huge pages: every size of block that decoding touches would hold 2 MiB.

    Measured for row groups of 0.4 to 4 MB: 18 to 34 MiB in the pool with them, 5 to 29 MiB without, in no more time.
    """
    if sys.platform == "linux" and pa.default_memory_pool().backend_name == "mimalloc":
        span = _mapping_around(pa.allocate_buffer(1).address)
        if span is not None:
            start, end = span
            ctypes.CDLL(None).madvise(
                ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_NOHUGEPAGE
            )


def _mapping_around(address: int) -> tuple[int, int] | None:
    """The mapping of this process that holds an address; None where /proc does not say."""
    try:
        with open("/proc/self/maps") as lines:
            for line in lines:
                start, end = (int(text, 16) for text in line.split(maxsplit=1)[0].split("-"))
                if start <= address < end:
                    return start, end
    except OSError:
        pass  # a saving, not a need
    return None


def _own_memory(nbytes: int) -> mmap.mmap:
    """Anonymous memory of this process; on Linux all pages at once, which is cheaper than a fault for each."""
    if sys.platform == "linux":
        return mmap.mmap(
            -1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        )
    return mmap.mmap(-1, nbytes)


def _write_stream(sink: Any, table: pa.Table) -> None:
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
