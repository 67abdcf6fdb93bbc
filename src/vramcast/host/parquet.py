"""What parquet files hold, from their footers alone.

In: a file, a folder (hive partitions included), a pattern or a list of these. Out: row groups with rows, encoded and
decoded bytes, and the same by column. Reads no data page. The decoded size is what Arrow will hold; where a writer left
out the size of its text columns it is estimated from the encoded pages and marked so.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from vramcast.errors import InputError, unknown
from vramcast.host.footer import GroupFooter, LeafChunk, read_footer
from vramcast.units import KiB, MiB, format_bytes, round_up

Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
# pyarrow's pool (mimalloc) takes memory from the system by this much and goes through all of it before it returns any.
POOL_SEGMENT_BYTES = 32 * MiB
READ_BUFFER_BYTES = 64 * KiB  # of a column chunk, as `vramcast.runtime` opens files; a longer page is read at once
PAGE_BYTES = MiB  # pages as pyarrow, Spark and DuckDB write them; a footer does not say
RECORD_BYTES = 320  # a RowGroup with its numbers and its place in two tuples, CPython on 64 bits
# Arrow's and Python's objects for one buffer of a decoded column: RSS of 900 held tables of a hundred rows less their
# `nbytes`, pyarrow 26 and Python 3.11. 856 for a column of numbers, which has one buffer, 1,871 for text with two.
BUFFER_OBJECT_BYTES = 900
PYTHON_OBJECT_BYTES = 560  # of these in Python's own heap, by tracemalloc: 544 for a column of numbers, 1,160 for text
NUMBER_BYTES, TEXT_OFFSET_BYTES, VIEW_BYTES = 8, 4, 16  # Arrow's int64, its place in text, its string_view, per value
SLICE_BYTES = 8 * MiB  # what mode `ultra` holds of a row group that is larger than this
CACHE_CHUNK_BYTES = MiB  # of the Arrow copy that mode `mmap` maps
OPEN_CHUNKS = 4096  # whose headers a reader keeps; the data stays in the page cache
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One parquet file as it was when its footer was read."""

    path: str
    size_bytes: int
    modified_ns: int
    partition: tuple[tuple[str, str | int | None], ...] = ()

    @property
    def partition_row_bytes(self) -> int:
        """What the folders' values take in every row: a number, or text and its offset."""
        return sum(
            TEXT_OFFSET_BYTES + len(v.encode()) if isinstance(v, str) else NUMBER_BYTES for _, v in self.partition
        )

    def changed(self) -> bool:
        stat = os.stat(self.path)
        return (stat.st_size, stat.st_mtime_ns) != (self.size_bytes, self.modified_ns)


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
    objects_bytes: int = 0  # of a decoded table, besides its data

    @property
    def held_bytes(self) -> int:
        """What a reader holds for the group: much more than its data where that is a few rows of many columns."""
        return self.decoded_bytes + self.objects_bytes

    def decoding_bytes(self, limit_bytes: int | None = None) -> int:
        """What the pool touches while the group, or a slice of `limit_bytes`, is decoded.

        Columns come one after another and those done stay. The one being made grows by doubling: a capacity of up to
        twice the content, beside the one it is copied from and the smaller ones left behind, which add up to as much.
        """
        decoded = min(self.decoded_bytes, self.decoded_bytes if limit_bytes is None else limit_bytes)
        return decoded + 4 * min(self.widest_bytes, decoded) + self.pages_bytes

    @property
    def ultra_keeps_pool(self) -> bool:
        """Mode `ultra` leaves the pool what it has where two decodings of a slice fit in one segment."""
        return 2 * self.decoding_bytes(SLICE_BYTES) <= POOL_SEGMENT_BYTES

    def slice_rows(self, slice_bytes: int) -> int:
        """Rows of a slice where the group is cut into equal ones of at most about `slice_bytes`."""
        count = max(1, -(-self.decoded_bytes // slice_bytes))
        return -(-self.num_rows // count)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSize:
    """One top-level column over all files."""

    name: str
    encoded_bytes: int
    decoded_bytes: int
    exact: bool  # False: nested, or the writer left the size of its text out and the encoded size stands in


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetFacts:
    """Everything the footers say about a set of files with one schema."""

    files: tuple[DataFile, ...]
    row_groups: tuple[RowGroup, ...]
    columns: tuple[ColumnSize, ...]
    schema_text: str
    opened_bytes: int  # pyarrow's objects of the longest footer: a reader keeps one file open at a time
    ends: tuple[int, ...] = field(repr=False)  # rows up to and including each row group

    @property
    def num_rows(self) -> int:
        return self.ends[-1] if self.ends else 0

    @property
    def decoded_bytes(self) -> int:
        return sum(group.decoded_bytes for group in self.row_groups)

    @property
    def held_bytes(self) -> int:
        """All row groups as a reader would hold them."""
        return sum(group.held_bytes for group in self.row_groups)

    @property
    def python_bytes(self) -> int:
        """Python's objects around all row groups: reading a row counts references on those of its row group."""
        return sum(group.objects_bytes for group in self.row_groups) * PYTHON_OBJECT_BYTES // BUFFER_OBJECT_BYTES

    @property
    def most_held_bytes(self) -> int:
        return max(group.held_bytes for group in self.row_groups)

    @property
    def encoded_bytes(self) -> int:
        return sum(group.encoded_bytes for group in self.row_groups)

    @property
    def largest_group(self) -> RowGroup:
        return max(self.row_groups, key=lambda group: group.decoded_bytes)

    @property
    def exact(self) -> bool:
        return all(column.exact for column in self.columns)

    @property
    def records_bytes(self) -> int:
        """This object itself, which every process of a job has."""
        return len(self.row_groups) * RECORD_BYTES

    @property
    def partition_bytes(self) -> int:
        """The part of the decoded bytes that is in no file: the values of its folders."""
        return sum(group.num_rows * self.files[group.file].partition_row_bytes for group in self.row_groups)

    @property
    def most_decoding_bytes(self) -> int:
        """What pyarrow's pool touches for the row group that takes most."""
        return max(group.decoding_bytes() for group in self.row_groups)

    @property
    def held_by_ultra_bytes(self) -> int:
        """Mode `ultra`: one row group or a slice of it; of smaller ones as many as make a slice."""
        return min(SLICE_BYTES, self.held_bytes)

    @property
    def open_chunks_bytes(self) -> int:
        """Mode `mmap`: the objects around the chunks of the cache that a reader has open."""
        return min(OPEN_CHUNKS, self._cache_chunks()) * self.row_groups[0].objects_bytes

    def _cache_chunks(self) -> int:
        """Small row groups go together where they fit in one, larger ones are cut."""
        count = held = 0
        for group in self.row_groups:
            if held and held + group.decoded_bytes > CACHE_CHUNK_BYTES:
                count, held = count + -(-held // CACHE_CHUNK_BYTES), 0
            held += group.decoded_bytes
        return count + -(-held // CACHE_CHUNK_BYTES)

    @property
    def decoding_by_ultra_bytes(self) -> tuple[int, int, int]:
        """Mode `ultra`: the least, the usual and the most. A kept pool has a decoding beside what the last one left."""
        largest = max(self.row_groups, key=lambda group: group.decoding_bytes(SLICE_BYTES))
        least = largest.decoding_bytes(SLICE_BYTES)
        return (least, 2 * least, POOL_SEGMENT_BYTES + least) if largest.ultra_keeps_pool else (least, least, least)

    @property
    def kept_pool_bytes(self) -> int:
        """What the pool comes to where it keeps its segments: a decoding that no longer fits opens another one."""
        return round_up(self.most_decoding_bytes, POOL_SEGMENT_BYTES) + self.most_decoding_bytes

    def keeps_pool(self, budget_bytes: int) -> bool:
        """Whether the pool may keep its segments between decodings: where a quarter of the budget is left for rows."""
        return 4 * (self.kept_pool_bytes + self.opened_bytes) <= 3 * budget_bytes

    def decoding_bytes(self, budget_bytes: int) -> int:
        """The pool's memory: with whole segments where it keeps them, else as much as is touched and returned."""
        return self.kept_pool_bytes if self.keeps_pool(budget_bytes) else self.most_decoding_bytes

    def usual_decoding_bytes(self, budget_bytes: int) -> int:
        """A kept pool: a decoding lies beside what the last one left, the two in one segment if they can."""
        least = self.most_decoding_bytes
        return min(2 * least, max(POOL_SEGMENT_BYTES, least)) if self.keeps_pool(budget_bytes) else least

    def scratch_bytes(self, budget_bytes: int) -> int:
        """What reading takes besides decoded tables: pyarrow's decoding buffers, and the footer as objects."""
        return self.decoding_bytes(budget_bytes) + self.opened_bytes

    def room_for_tables_bytes(self, budget_bytes: int) -> int:
        """What a budget leaves for decoded row groups: at least the largest, or nothing could be read."""
        return max(self.most_held_bytes, budget_bytes - self.scratch_bytes(budget_bytes))

    @property
    def least_budget_bytes(self) -> int:
        """The smallest budget that mode `row-groups` can keep to."""
        return self.most_held_bytes + self.scratch_bytes(0)

    def check_budget(self, budget_bytes: int) -> None:
        """Refuse early what could only be read by holding more than the budget."""
        largest = self.largest_group
        if largest.decoded_bytes > budget_bytes:
            raise self.too_large(self.row_groups.index(largest), largest.decoded_bytes, budget_bytes)

    def too_large(self, index: int, nbytes: int, budget_bytes: int) -> InputError:
        return InputError(
            f"{self.describe(index)}: {self.row_groups[index].num_rows:,} rows decode to {format_bytes(nbytes)}, more "
            f"than the budget of {format_bytes(budget_bytes)}. Rewrite the file once with "
            "vramcast.runtime.rewrite_row_groups(source, target), use mode 'mmap' or 'ultra', or raise the budget to "
            f"{format_bytes(max(self.least_budget_bytes, nbytes + self.scratch_bytes(0)))}."
        )

    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def describe(self, index: int) -> str:
        """`part-0.parquet, row group 3 of 20`, for errors."""
        group = self.row_groups[index]
        count = sum(1 for other in self.row_groups if other.file == group.file)
        return f"{self.files[group.file].path}, row group {group.group} of {count}"


def read_facts(source: Source, columns: Sequence[str] | None = None) -> ParquetFacts:
    """Read every footer, check that all files agree on the chosen columns, and add up."""
    files = find_files(source)
    first = _Footer(files[0].path)
    names = _chosen(first, columns)
    groups: list[RowGroup] = []
    sizes = {name: ColumnSize(name=name, encoded_bytes=0, decoded_bytes=0, exact=True) for name in names}
    opened = 0
    for index, file in enumerate(files):
        footer = _Footer(file.path) if index else first  # one at a time: a footer's records outweigh its row groups'
        _check_same_schema(first, footer, file, names)
        groups += footer.row_groups(index, names, file)
        sizes = {name: footer.added_to(size) for name, size in sizes.items()}
        opened = max(opened, footer.opened_bytes)
        footer.groups = ()
    groups = [group for group in groups if group.num_rows]
    if not groups:
        others = f" and {len(files) - 1} more" if len(files) > 1 else ""
        raise InputError(f"{files[0].path}{others}: no rows. An empty dataset cannot be trained on.")
    return ParquetFacts(
        files=files, row_groups=tuple(groups), columns=tuple(sizes.values()),
        schema_text="; ".join(f"{name}: {first.types[name]}" for name in names), opened_bytes=opened,
        ends=tuple(accumulate(group.num_rows for group in groups)),
    )  # fmt: skip


def find_files(source: Source) -> tuple[DataFile, ...]:
    """The parquet files a path, folder, pattern or list of these stands for, in sorted order within each."""
    given = [source] if isinstance(source, str | os.PathLike) else list(source)
    if not given:
        raise InputError("an empty list of parquet files. Name at least one file, folder or pattern.")
    found = [entry for item in given for entry in _expand(os.fspath(item))]
    return _with_typed_partitions(found)


def _expand(text: str) -> list[tuple[Path, dict[str, str]]]:
    path = Path(text)
    if path.is_file():
        return [(path, _partition(_trailing_pairs(path.absolute().parent.parts)))]
    if path.is_dir():
        inside = sorted(found for found in path.rglob("*.parquet") if not _hidden(found.relative_to(path)))
        if not inside:
            raise InputError(f"{path}: no *.parquet file in this folder or below it")
        return [(found, _partition(found.relative_to(path).parent.parts)) for found in inside]
    matches = sorted(glob.glob(text, recursive=True))
    if not matches:
        raise InputError(f"{text}: no such file or folder, and no file matches it as a pattern")
    other = next((match for match in matches if not os.path.isfile(match) and not os.path.isdir(match)), None)
    if other is not None:
        raise InputError(f"{other}: neither a file nor a folder. A dataset is a parquet file or a folder of them.")
    return [entry for match in matches for entry in _expand(match)]


def _hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def _trailing_pairs(parts: Sequence[str]) -> list[str]:
    """The `key=value` folders right above a file that was named on its own."""
    return list(takewhile(lambda part: "=" in part, reversed(parts)))[::-1]


def _partition(parts: Sequence[str]) -> dict[str, str]:
    pairs = (part.partition("=") for part in parts if "=" in part)
    return {unquote(key): unquote(value) for key, _, value in pairs if key}


def _with_typed_partitions(found: Sequence[tuple[Path, dict[str, str]]]) -> tuple[DataFile, ...]:
    """Partition values are whole numbers if all of them are, as Hive, Spark and pyarrow read them."""
    keys = set(found[0][1])
    for path, values in found:
        if set(values) != keys:
            raise InputError(f"{path}: partition keys {sorted(values)} where {found[0][0]} has {sorted(keys)}")
    numeric = {key for key in keys if all(_is_int(values[key]) for _, values in found)}
    return tuple(_data_file(path, values, numeric) for path, values in found)


def _is_int(text: str) -> bool:
    return text == HIVE_NULL or (text.removeprefix("-").isdecimal() and -(2**63) <= int(text) < 2**63)


def _data_file(path: Path, values: Mapping[str, str], numeric: set[str]) -> DataFile:
    def typed(key: str, text: str) -> str | int | None:
        return None if text == HIVE_NULL else int(text) if key in numeric else text

    stat = path.stat()
    return DataFile(
        path=str(path), size_bytes=stat.st_size, modified_ns=stat.st_mtime_ns,
        partition=tuple((key, typed(key, text)) for key, text in values.items()),
    )  # fmt: skip


class _Footer:
    """One file's footer, its leaves sorted under the columns of its Arrow schema."""

    def __init__(self, path: str) -> None:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError as error:
            raise InputError(
                f"{path}: reading parquet needs pyarrow ({error}). Install it: pip install 'vramcast[runtime]'"
            ) from None

        self.path = path
        footer = read_footer(Path(path))  # also says in plain words when the file is truncated
        self.opened_bytes, self.groups = footer.opened_bytes, footer.groups
        try:
            schema = pq.read_schema(pa.BufferReader(footer.schema_file))
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: not readable as parquet: {error}") from error
        self.types: dict[str, Any] = {item.name: item.type for item in schema}
        if len(self.types) < len(schema.names):
            twice = sorted(name for name in self.types if schema.names.count(name) > 1)
            raise InputError(
                f"{path}: {twice} occur more than once as a column. Rewrite the file with names of their own."
            )
        self.leaves: dict[str, list[tuple[int, Any]]] = {}
        leaf = 0
        for item in schema:
            types = list(_leaf_types(item.type))
            self.leaves[item.name] = [(leaf + offset, kind) for offset, kind in enumerate(types)]
            leaf += len(types)
        for index, group in enumerate(self.groups):
            if len(group.leaves) != leaf:
                raise InputError(f"{path}, row group {index}: {len(group.leaves)} columns where the schema has {leaf}")

    def row_groups(self, number: int, names: Sequence[str], file: DataFile) -> Iterator[RowGroup]:
        for index, group in enumerate(self.groups):
            sizes = [self.chunk_size(group, name) for name in names]
            constants = group.num_rows * file.partition_row_bytes
            yield RowGroup(
                file=number, group=index, num_rows=group.num_rows,
                encoded_bytes=sum(size[0] for size in sizes), decoded_bytes=sum(size[1] for size in sizes) + constants,
                widest_bytes=max(size[1] for size in sizes),
                pages_bytes=sum(self.pages_bytes(group, name) for name in names),
                objects_bytes=sum(BUFFER_OBJECT_BYTES * _buffers(self.types[name]) for name in names),
            )  # fmt: skip

    def added_to(self, size: ColumnSize) -> ColumnSize:
        """A column's size with this file's share."""
        chunks = [self.chunk_size(group, size.name) for group in self.groups]
        return ColumnSize(
            name=size.name, encoded_bytes=size.encoded_bytes + sum(chunk[0] for chunk in chunks),
            decoded_bytes=size.decoded_bytes + sum(chunk[1] for chunk in chunks),
            exact=size.exact and all(chunk[2] for chunk in chunks),
        )  # fmt: skip

    def pages_bytes(self, group: GroupFooter, name: str) -> int:
        """Per leaf the read buffer, the dictionary's page and the copy its decoder makes, and a page of data."""
        chunks = [group.leaves[leaf] for leaf, _ in self.leaves[name]]
        return sum(
            min(chunk.encoded_bytes, READ_BUFFER_BYTES) + 3 * min(chunk.uncompressed_bytes, PAGE_BYTES)
            for chunk in chunks
        )

    def chunk_size(self, group: GroupFooter, name: str) -> tuple[int, int, bool]:
        """Encoded bytes, decoded bytes and whether the latter is exact, for one column of one row group.

        A nested column is never exact: how many lists lie between its rows and its values, the footer does not say.
        """
        import pyarrow.types as types

        encoded = decoded = 0
        exact = not types.is_nested(self.types[name])
        for leaf, kind in self.leaves[name]:
            chunk = group.leaves[leaf]
            encoded += chunk.encoded_bytes
            nbytes, known = _arrow_bytes(kind, chunk)
            decoded, exact = decoded + nbytes, exact and known
        return encoded, decoded + _list_offset_bytes(self.types[name], group.num_rows), exact


def _leaf_types(kind: Any) -> Iterator[Any]:
    """The Arrow types of a column's parquet leaves, in parquet's order."""
    import pyarrow.types as types

    kind = getattr(kind, "storage_type", kind)  # extension types are read as what they are stored as
    if types.is_struct(kind):
        for index in range(kind.num_fields):
            yield from _leaf_types(kind.field(index).type)
    elif types.is_map(kind):
        yield from _leaf_types(kind.key_type)
        yield from _leaf_types(kind.item_type)
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        yield from _leaf_types(kind.value_type)
    else:
        yield kind


def _buffers(kind: Any) -> int:
    """Buffers of a column, validity aside: one per leaf of numbers, two per leaf of text, one per list around them."""
    import pyarrow.types as types

    if types.is_struct(kind):
        return sum(_buffers(kind.field(index).type) for index in range(kind.num_fields))
    if types.is_map(kind):
        return 1 + _buffers(kind.key_type) + _buffers(kind.item_type)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return 1 + _buffers(kind.value_type)
    return 1 if types.is_primitive(kind) else 2


def _arrow_bytes(kind: Any, chunk: LeafChunk) -> tuple[int, bool]:
    """Arrow's buffers for one leaf: validity bitmap, offsets, data."""
    import pyarrow.types as types

    count = chunk.num_values
    bitmap = (count + 7) // 8
    if types.is_null(kind):
        return 0, True
    if types.is_dictionary(kind):
        return bitmap + count * kind.index_type.bit_width // 8 + chunk.uncompressed_bytes, False
    if str(kind) in ("string_view", "binary_view"):  # older versions of pyarrow have no predicate for them
        return bitmap + VIEW_BYTES * count + chunk.uncompressed_bytes, False  # short values lie in the view itself
    if types.is_string(kind) or types.is_binary(kind):
        offsets = 4 * count
    elif types.is_large_string(kind) or types.is_large_binary(kind):
        offsets = 8 * count
    else:
        return bitmap + (count * kind.bit_width + 7) // 8, True
    nulls = 0 if chunk.null_count == 0 else bitmap  # text without nulls comes without a bitmap, numbers never do
    if chunk.text_bytes is None:
        return nulls + offsets + max(chunk.uncompressed_bytes - 4 * count, 0), False
    return nulls + offsets + chunk.text_bytes, True


def _list_offset_bytes(kind: Any, num_rows: int) -> int:
    import pyarrow.types as types

    if types.is_list(kind) or types.is_map(kind):
        return 4 * num_rows
    return 8 * num_rows if types.is_large_list(kind) else 0


def _chosen(footer: _Footer, columns: Sequence[str] | None) -> tuple[str, ...]:
    known = tuple(footer.types)
    if columns is None:
        return known
    if isinstance(columns, str) or not columns:
        raise InputError(f"columns={columns!r}: give a list of column names, for example {list(known[:2])}")
    for name in columns:
        if name not in footer.types:
            raise unknown("column", name, known, f"They are the columns of {footer.path}.")
    return tuple(columns)


def _check_same_schema(first: _Footer, footer: _Footer, file: DataFile, names: Sequence[str]) -> None:
    for name in names:
        if name not in footer.types:
            raise InputError(f"{footer.path}: column {name!r} is missing; {first.path} has it as {first.types[name]}")
        if footer.types[name] != first.types[name]:
            raise InputError(
                f"{footer.path}: column {name!r} is {footer.types[name]}, but {first.types[name]} in {first.path}. "
                "Rewrite one of them, or choose columns= that agree."
            )
    clash = {key for key, _ in file.partition}.intersection(names)
    if clash:
        raise InputError(f"{file.path}: {sorted(clash)} occur both as a partition folder and as a column")
