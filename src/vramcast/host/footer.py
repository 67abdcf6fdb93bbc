"""Read a parquet footer without pyarrow: rows and column sizes of every row group.

In: a file. Out: records. Three reasons not to ask pyarrow: it does not expose `SizeStatistics`, the decoded size of
text columns; its accessors end the whole process (C++ terminate) on a damaged footer where this raises; and its objects
for a long footer leave the heap full of holes, of which every worker forked later makes its own copy. Knows the
compact thrift protocol and the field numbers of parquet.thrift it needs; reads no data page.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vramcast.errors import InputError
from vramcast.files import open_file
from vramcast.units import MiB, format_bytes, round_up

MAGIC = b"PAR1"
MAX_FOOTER_BYTES = 64 * MiB
# Field numbers of parquet.thrift: FileMetaData, RowGroup, ColumnChunk, ColumnMetaData, Statistics, SizeStatistics
FILE_ROWS, ROW_GROUPS = 3, 4
COLUMNS, GROUP_ROWS = 1, 3
META_DATA = 3
NUM_VALUES, UNCOMPRESSED, COMPRESSED, STATISTICS, SIZE_STATISTICS = 5, 6, 7, 12, 16
NULL_COUNT = 3
UNENCODED_BYTES = 1
# Type numbers of the compact thrift protocol
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _TEXT, _LIST, _SET, _STRUCT = (*range(1, 11), 12)
_NO_STRUCTS = b"\x0c"  # an empty list of structs
_MAX_DEPTH = 64

# What pyarrow allocates for a footer it has opened: a C++ object per row group and per column chunk, and one allocation
# for every list in them and for text that does not fit in the string itself. Sizes of the objects: growth of glibc's
# mallinfo2 over ParquetFile() with pyarrow 26, files of 2 and 40 columns, 50 and 200 row groups, less lists and text.
GROUP_OBJECT_BYTES = 104
CHUNK_OBJECT_BYTES = 680
# Of a list, by thrift type; a string is 32, PageEncodingStats 24.
ELEMENT_BYTES = {_BYTE: 1, _I16: 2, _I32: 4, _I64: 8, _DOUBLE: 8, _TEXT: 32, _STRUCT: 24}
INLINE_TEXT_BYTES = 15  # libstdc++ keeps shorter text in the string


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafChunk:
    """One leaf column of one row group. What the writer left out is None."""

    num_values: int
    encoded_bytes: int
    uncompressed_bytes: int
    null_count: int | None
    text_bytes: int | None  # text and binary after decoding; writers since parquet-format 2.10


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFooter:
    """One row group."""

    num_rows: int
    leaves: tuple[LeafChunk, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Footer:
    """What one file says about itself."""

    groups: tuple[GroupFooter, ...]
    opened_bytes: int  # of the objects pyarrow makes of it for as long as the file is open
    # A parquet file without row groups: the schema as pyarrow reads it.
    schema_file: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Keep:
    """The fields of a struct to keep, by number; all others are stepped over. `make` turns them into a record."""

    fields: dict[int, _Keep] = field(default_factory=dict)
    make: Callable[[dict[int, Any]], Any] | None = None


def read_footer(path: Path) -> Footer:
    data = _read_footer_bytes(path)
    thrift = _Thrift(data)
    try:
        fields = thrift.struct(_FILE, 0)
        groups: tuple[GroupFooter, ...] = tuple(fields.get(ROW_GROUPS, ()))
        total = fields[FILE_ROWS]
        rows = sum(group.num_rows for group in groups)
        chunks = sum(len(group.leaves) for group in groups)
    except (IndexError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"{path}: the parquet footer is damaged") from error
    if total != rows:
        raise InputError(
            f"{path}: the parquet footer is damaged: its row groups do not add up to {total} rows"
        )
    objects = len(groups) * GROUP_OBJECT_BYTES + chunks * CHUNK_OBJECT_BYTES
    return Footer(
        groups=groups,
        opened_bytes=objects + thrift.allocated_bytes,
        schema_file=_without_row_groups(data, thrift.spans.get(ROW_GROUPS)),
    )


def _without_row_groups(data: bytes, row_groups: tuple[int, int] | None) -> bytes:
    """A whole parquet file of the footer alone, its list of row groups emptied."""
    if row_groups is not None:
        data = data[: row_groups[0]] + _NO_STRUCTS + data[row_groups[1] :]
    return MAGIC + data + struct.pack("<I4s", len(data), MAGIC)


def _group(fields: dict[int, Any]) -> GroupFooter:
    leaves: tuple[LeafChunk, ...] = tuple(fields[COLUMNS])
    if not all(isinstance(leaf, LeafChunk) for leaf in leaves):
        raise ValueError("a row group of something else than column chunks")
    return GroupFooter(num_rows=_size(fields[GROUP_ROWS]), leaves=leaves)


def _chunk(fields: dict[int, Any]) -> LeafChunk:
    leaf = fields[META_DATA]
    if not isinstance(leaf, LeafChunk):
        raise ValueError("a column chunk without its metadata")
    return leaf


def _leaf(fields: dict[int, Any]) -> LeafChunk:
    nulls = fields.get(STATISTICS, {}).get(NULL_COUNT)
    text = fields.get(SIZE_STATISTICS, {}).get(UNENCODED_BYTES)
    return LeafChunk(
        num_values=_size(fields[NUM_VALUES]),
        encoded_bytes=_size(fields[COMPRESSED]),
        uncompressed_bytes=_size(fields[UNCOMPRESSED]),
        null_count=None if nulls is None else _size(nulls),
        text_bytes=None if text is None else _size(text),
    )


def _size(value: int) -> int:
    if value < 0:
        raise ValueError(f"{value} where a size belongs")
    return value


_META = _Keep(
    fields={
        NUM_VALUES: _Keep(),
        UNCOMPRESSED: _Keep(),
        COMPRESSED: _Keep(),
        STATISTICS: _Keep(fields={NULL_COUNT: _Keep()}),
        SIZE_STATISTICS: _Keep(fields={UNENCODED_BYTES: _Keep()}),
    },
    make=_leaf,
)
_COLUMN = _Keep(fields={META_DATA: _META}, make=_chunk)
_GROUP = _Keep(fields={GROUP_ROWS: _Keep(), COLUMNS: _COLUMN}, make=_group)
_FILE = _Keep(fields={FILE_ROWS: _Keep(), ROW_GROUPS: _GROUP})
_NOTHING = _Keep()


def _read_footer_bytes(path: Path) -> bytes:
    with open_file(path) as file:
        end = file.seek(0, 2)
        if end < 12:
            raise InputError(
                f"{path}: {end} bytes are too few for a parquet file; it is empty or truncated"
            )
        file.seek(end - 8)
        length, magic = struct.unpack("<I4s", file.read(8))
        if magic != MAGIC or length > end - 12:
            raise InputError(
                f"{path}: no parquet footer at the end; the file is truncated or not parquet"
            )
        if length > MAX_FOOTER_BYTES:
            raise InputError(
                f"{path}: a footer of {format_bytes(length)} where at most {format_bytes(MAX_FOOTER_BYTES)} are read. "
                "Rewrite the file with fewer, larger row groups."
            )
        file.seek(end - 8 - length)
        return file.read(length)


class _Thrift:
    """The compact protocol, as far as parquet uses it; text and floats are stepped over."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.spans: dict[int, tuple[int, int]] = {}  # offsets of the fields of the outermost struct
        self.allocated_bytes = 0  # by the lists and long texts of structs inside, in a C++ reader

    def struct(self, keep: _Keep, depth: int) -> Any:
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            delta, kind = head >> 4, head & 15
            number = number + delta if delta else self._zigzag()
            start = self.at
            value = None
            if kind not in (_TRUE, _FALSE):
                value = self._read(kind, keep.fields.get(number, _NOTHING), depth + 1)
            if depth == 0:
                self.spans[number] = (start, self.at)
            if number in keep.fields:
                fields[number] = value
        return fields if keep.make is None else keep.make(fields)

    def _read(self, kind: int, keep: _Keep, depth: int) -> Any:
        if kind in _SCALARS:
            return _SCALARS[kind](self)
        if depth > _MAX_DEPTH:
            raise IndexError("nested too deeply")
        if kind == _STRUCT:
            return self.struct(keep, depth)
        if kind in (_LIST, _SET):
            return self._list(keep, depth)
        raise IndexError(f"thrift type {kind}")

    def _list(self, keep: _Keep, depth: int) -> list[Any]:
        head = self._byte()
        size, kind = head >> 4, head & 15
        if size == 15:
            size = self._varint()
        if size > len(self.data):
            raise IndexError("list longer than the footer")
        if kind in (_TRUE, _FALSE):
            self._skip(size)
            return []
        # Records that are kept (row groups, chunks) are counted as objects in read_footer.
        if size and keep.make is None:
            self.allocated_bytes += _malloc_bytes(size * ELEMENT_BYTES.get(kind, 0))
        return [self._read(kind, keep, depth + 1) for _ in range(size)]

    def _text(self) -> None:
        size = self._varint()
        if size > INLINE_TEXT_BYTES:
            self.allocated_bytes += _malloc_bytes(size + 1)
        self._skip(size)

    def _byte(self) -> int:
        value = self.data[self.at]
        self.at += 1
        return value

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise IndexError("a number of more than 64 bits")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _double(self) -> None:
        self._skip(8)

    def _skip(self, size: int) -> None:
        self.at += size
        if self.at > len(self.data):
            raise IndexError("longer than the footer")


_SCALARS: dict[int, Callable[[_Thrift], int | None]] = {
    _BYTE: _Thrift._byte,
    _I16: _Thrift._zigzag,
    _I32: _Thrift._zigzag,
    _I64: _Thrift._zigzag,
    _DOUBLE: _Thrift._double,
    _TEXT: _Thrift._text,
}


def _malloc_bytes(nbytes: int) -> int:
    """glibc's: a header of 8 bytes, in steps of 16, 32 at least."""
    return max(32, round_up(nbytes + 8, 16))
