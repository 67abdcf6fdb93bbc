"""What reading a set of parquet files takes: the records, and the sizes that follow from them.

In: row groups and columns with encoded and decoded bytes (`vramcast.host.parquet` reads them from footers). Out: what a
reader holds in each mode of `vramcast.runtime.LowMemDataset`, what pyarrow's pool takes while it decodes, and the
smallest budget that suffices. Reads nothing; does not know what a user's own code keeps of the rows.

Worked example, mode `row-groups`. One row group decodes to 10 MiB, its widest column to 4 MiB, pages and read buffers
take 2 MiB. While it is decoded the pool touches 10 + 4 × 4 + 2 = 28 MiB. A pool that keeps its segments of 32 MiB comes
to 32 + 28 = 60 MiB; with a budget of 256 MiB, three quarters of which are 192, it may keep them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vramcast.errors import InputError
from vramcast.host.data_files import DataFile
from vramcast.units import MiB, format_bytes, round_up

# pyarrow's pool (mimalloc) takes memory from the system by this much and goes through all of it before it returns any.
POOL_SEGMENT_BYTES = 32 * MiB
# A RowGroup with its numbers and its place in two tuples, CPython on 64 bits.
RECORD_BYTES = 320
# Arrow's and Python's objects for one buffer of a decoded column: RSS of 900 held tables of a hundred rows less their
# `nbytes`, pyarrow 26 and Python 3.11. 856 for a column of numbers, which has one buffer, 1,871 for text with two.
BUFFER_OBJECT_BYTES = 900
# Of these in Python's own heap, by tracemalloc: 544 for a column of numbers, 1,160 for text.
PYTHON_OBJECT_BYTES = 560
SLICE_BYTES = 8 * MiB  # what mode `ultra` holds of a row group that is larger than this
CACHE_CHUNK_BYTES = MiB  # of the Arrow copy that mode `mmap` maps
OPEN_CHUNKS = 4096  # whose headers a reader keeps; the data stays in the page cache


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """The unit in which parquet can be read: where it is and how large the chosen columns are."""

    file: int
    group: int
    num_rows: int
    encoded_bytes: int
    decoded_bytes: int
    widest_bytes: int = 0  # the largest column, decoded
    pages_bytes: int = 0  # read buffers and pages of all columns while they are decoded
    objects_bytes: int = 0  # of a decoded table, in addition to its data

    @property
    def held_bytes(self) -> int:
        """What a reader holds for the group: much more than its data if that is a few rows of many columns."""
        return self.decoded_bytes + self.objects_bytes

    def decoding_bytes(self, limit_bytes: int | None = None) -> int:
        """What the pool touches while the group, or a slice of `limit_bytes`, is decoded.

        Columns come one after another and those done stay. The one being made grows by doubling: a capacity of up to
        twice the content, the one it is copied from, and the smaller ones before, which add up to as much again.
        """
        decoded = self.decoded_bytes
        if limit_bytes is not None:
            decoded = min(decoded, limit_bytes)
        return decoded + 4 * min(self.widest_bytes, decoded) + self.pages_bytes

    @property
    def ultra_keeps_pool(self) -> bool:
        """Mode `ultra` leaves the pool what it has if two decodings of a slice fit in one segment."""
        return 2 * self.decoding_bytes(SLICE_BYTES) <= POOL_SEGMENT_BYTES

    def slice_rows(self, slice_bytes: int) -> int:
        """Rows of a slice if the group is cut into equal ones of at most about `slice_bytes`."""
        count = max(1, -(-self.decoded_bytes // slice_bytes))
        return -(-self.num_rows // count)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSize:
    """One top-level column, of one row group or over all files."""

    name: str
    encoded_bytes: int
    decoded_bytes: int
    # False: nested, or the writer left out the size of its text and the encoded size is used instead.
    exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetFacts:
    """Everything the footers say about a set of files with one schema."""

    files: tuple[DataFile, ...]
    row_groups: tuple[RowGroup, ...]
    columns: tuple[ColumnSize, ...]
    schema_text: str
    # pyarrow's objects of the longest footer: a reader keeps one file open at a time.
    opened_bytes: int
    ends: tuple[int, ...] = field(repr=False)  # rows up to and including each row group

    @property
    def num_rows(self) -> int:
        return self.ends[-1] if self.ends else 0

    @property
    def encoded_bytes(self) -> int:
        return sum(group.encoded_bytes for group in self.row_groups)

    @property
    def decoded_bytes(self) -> int:
        return sum(group.decoded_bytes for group in self.row_groups)

    @property
    def partition_bytes(self) -> int:
        """The part of the decoded bytes that is in no file: the values of its folders."""
        return sum(
            group.num_rows * self.files[group.file].partition_row_bytes for group in self.row_groups
        )

    @property
    def exact(self) -> bool:
        return all(column.exact for column in self.columns)

    @property
    def records_bytes(self) -> int:
        """This object itself, which every process of a job has."""
        return len(self.row_groups) * RECORD_BYTES

    @property
    def held_bytes(self) -> int:
        """All row groups as a reader would hold them."""
        return sum(group.held_bytes for group in self.row_groups)

    @property
    def max_held_bytes(self) -> int:
        return max(group.held_bytes for group in self.row_groups)

    @property
    def python_objects_bytes(self) -> int:
        """Python's objects around all row groups: reading a row counts references on those of its row group."""
        objects = sum(group.objects_bytes for group in self.row_groups)
        return objects * PYTHON_OBJECT_BYTES // BUFFER_OBJECT_BYTES

    @property
    def largest_group(self) -> RowGroup:
        return max(self.row_groups, key=lambda group: group.decoded_bytes)

    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def describe(self, index: int) -> str:
        """`part-0.parquet, row group 3 of 20`, for errors."""
        group = self.row_groups[index]
        count = sum(1 for other in self.row_groups if other.file == group.file)
        return f"{self.files[group.file].path}, row group {group.group} of {count}"

    # Mode `row-groups`: decoded row groups within a budget.

    @property
    def max_decoding_bytes(self) -> int:
        """What pyarrow's pool touches for the row group that takes most."""
        return max(group.decoding_bytes() for group in self.row_groups)

    @property
    def kept_pool_bytes(self) -> int:
        """What the pool comes to if it keeps its segments: a decoding that no longer fits opens another one."""
        return round_up(self.max_decoding_bytes, POOL_SEGMENT_BYTES) + self.max_decoding_bytes

    def keeps_pool(self, budget_bytes: int) -> bool:
        """Whether the pool may keep its segments between decodings: if a quarter of the budget is left for rows."""
        return 4 * (self.kept_pool_bytes + self.opened_bytes) <= 3 * budget_bytes

    def decoding_bytes(self, budget_bytes: int) -> int:
        """The pool's memory: whole segments if it keeps them, else as much as is touched and returned."""
        return self.kept_pool_bytes if self.keeps_pool(budget_bytes) else self.max_decoding_bytes

    def typical_decoding_bytes(self, budget_bytes: int) -> int:
        """A kept pool has a decoding in addition to what the last one left, both in one segment if they fit."""
        one = self.max_decoding_bytes
        if not self.keeps_pool(budget_bytes):
            return one
        return min(2 * one, max(POOL_SEGMENT_BYTES, one))

    def scratch_bytes(self, budget_bytes: int) -> int:
        """What reading takes besides decoded tables: pyarrow's decoding buffers, and the footer as objects."""
        return self.decoding_bytes(budget_bytes) + self.opened_bytes

    def table_budget_bytes(self, budget_bytes: int) -> int:
        """What a budget leaves for decoded row groups: at least the largest, or nothing could be read."""
        return max(self.max_held_bytes, budget_bytes - self.scratch_bytes(budget_bytes))

    @property
    def min_budget_bytes(self) -> int:
        """The smallest budget that mode `row-groups` can keep to."""
        return self.max_held_bytes + self.scratch_bytes(0)

    def check_budget(self, budget_bytes: int) -> None:
        """Refuse early what could only be read by holding more than the budget."""
        largest = self.largest_group
        if largest.decoded_bytes > budget_bytes:
            index = self.row_groups.index(largest)
            raise self.too_large(index, largest.decoded_bytes, budget_bytes)

    def too_large(self, index: int, nbytes: int, budget_bytes: int) -> InputError:
        return InputError(
            f"{self.describe(index)}: {self.row_groups[index].num_rows:,} rows decode to {format_bytes(nbytes)}, more "
            f"than the budget of {format_bytes(budget_bytes)}. Rewrite the file once with "
            "vramcast.runtime.rewrite_row_groups(source, target), use mode 'mmap' or 'ultra', or raise the budget to "
            f"{format_bytes(max(self.min_budget_bytes, nbytes + self.scratch_bytes(0)))}."
        )

    # Mode `ultra`: one slice at a time.

    @property
    def ultra_held_bytes(self) -> int:
        """One row group or a slice of it; of smaller ones as many as make a slice."""
        return min(SLICE_BYTES, self.held_bytes)

    @property
    def ultra_decoding_bytes(self) -> tuple[int, int, int]:
        """The least, the usual and the most. A kept pool has a decoding in addition to what the last one left."""
        largest = max(self.row_groups, key=lambda group: group.decoding_bytes(SLICE_BYTES))
        one = largest.decoding_bytes(SLICE_BYTES)
        if largest.ultra_keeps_pool:
            return one, 2 * one, POOL_SEGMENT_BYTES + one
        return one, one, one

    # Mode `mmap`: an Arrow copy on disk, mapped.

    @property
    def open_chunks_bytes(self) -> int:
        """The objects around the chunks of the cache that a reader has open."""
        return min(OPEN_CHUNKS, self._cache_chunks()) * self.row_groups[0].objects_bytes

    def _cache_chunks(self) -> int:
        """Small row groups are put together if they fit in one chunk, larger ones are cut."""
        count = pending = 0
        for group in self.row_groups:
            if pending and pending + group.decoded_bytes > CACHE_CHUNK_BYTES:
                count += -(-pending // CACHE_CHUNK_BYTES)
                pending = 0
            pending += group.decoded_bytes
        return count + -(-pending // CACHE_CHUNK_BYTES)
