"""Read a parquet footer without pyarrow: rows and column sizes of every row group.

In: a file. Out: records. Two reasons not to ask pyarrow: it does not hand out `SizeStatistics`, the decoded size of
text columns, and its accessors end the whole process (C++ terminate) on a damaged footer where this raises. Knows the
compact thrift protocol and the field numbers of parquet.thrift it needs; reads no data page.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vramcast.errors import InputError

Keep = dict[int, "Keep"]  # the fields to keep, by number, and inside them theirs; all others are stepped over

MAGIC = b"PAR1"
# Field numbers of parquet.thrift: FileMetaData, RowGroup, ColumnChunk, ColumnMetaData, Statistics, SizeStatistics
FILE_ROWS, ROW_GROUPS = 3, 4
COLUMNS, GROUP_ROWS = 1, 3
META_DATA = 3
NUM_VALUES, UNCOMPRESSED, COMPRESSED, STATISTICS, SIZE_STATISTICS = 5, 6, 7, 12, 16
NULL_COUNT = 3
UNENCODED_BYTES = 1
_COLUMN: Keep = {
    NUM_VALUES: {}, UNCOMPRESSED: {}, COMPRESSED: {}, STATISTICS: {NULL_COUNT: {}},
    SIZE_STATISTICS: {UNENCODED_BYTES: {}},
}  # fmt: skip
_KEEP: Keep = {FILE_ROWS: {}, ROW_GROUPS: {GROUP_ROWS: {}, COLUMNS: {META_DATA: _COLUMN}}}
_TRUE, _FALSE = 1, 2
_MAX_DEPTH = 64


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

    nbytes: int
    groups: tuple[GroupFooter, ...]


def read_footer(path: Path) -> Footer:
    data = _footer(path)
    try:
        fields = _Thrift(data).struct(_KEEP, 0)
        groups = tuple(_group(group) for group in fields.get(ROW_GROUPS, ()))
        total = fields[FILE_ROWS]
    except (IndexError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"{path}: the parquet footer is damaged") from error
    if total != sum(group.num_rows for group in groups):
        raise InputError(f"{path}: the parquet footer is damaged: its row groups do not add up to {total} rows")
    return Footer(nbytes=len(data), groups=groups)


def _group(fields: dict[int, Any]) -> GroupFooter:
    return GroupFooter(num_rows=_size(fields[GROUP_ROWS]), leaves=tuple(_leaf(c[META_DATA]) for c in fields[COLUMNS]))


def _leaf(fields: dict[int, Any]) -> LeafChunk:
    nulls = fields.get(STATISTICS, {}).get(NULL_COUNT)
    text = fields.get(SIZE_STATISTICS, {}).get(UNENCODED_BYTES)
    return LeafChunk(
        num_values=_size(fields[NUM_VALUES]), encoded_bytes=_size(fields[COMPRESSED]),
        uncompressed_bytes=_size(fields[UNCOMPRESSED]), null_count=None if nulls is None else _size(nulls),
        text_bytes=None if text is None else _size(text),
    )  # fmt: skip


def _size(value: int) -> int:
    if value < 0:
        raise ValueError(f"{value} where a size belongs")
    return value


def _footer(path: Path) -> bytes:
    with open(path, "rb") as file:
        end = file.seek(0, 2)
        if end < 12:
            raise InputError(f"{path}: {end} bytes are too few for a parquet file; it is empty or truncated")
        file.seek(end - 8)
        length, magic = struct.unpack("<I4s", file.read(8))
        if magic != MAGIC or length > end - 12:
            raise InputError(f"{path}: no parquet footer at the end; the file is truncated or not parquet")
        file.seek(end - 8 - length)
        return file.read(length)


class _Thrift:
    """The compact protocol, as far as parquet uses it; text and floats are stepped over."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.scalars: dict[int, Callable[[], int | None]] = {
            3: self._byte, 4: self._zigzag, 5: self._zigzag, 6: self._zigzag, 7: lambda: self._skip(8),
            8: lambda: self._skip(self._varint()),
        }  # fmt: skip

    def struct(self, keep: Keep, depth: int) -> dict[int, Any]:
        if depth > _MAX_DEPTH:
            raise IndexError("nested too deeply")
        fields: dict[int, Any] = {}
        field = 0
        while head := self._byte():
            delta, kind = head >> 4, head & 15
            field = field + delta if delta else self._zigzag()
            value = None if kind in (_TRUE, _FALSE) else self._read(kind, keep.get(field, {}), depth + 1)
            if field in keep:
                fields[field] = value
        return fields

    def _read(self, kind: int, keep: Keep, depth: int) -> Any:
        if kind in self.scalars:
            return self.scalars[kind]()
        if kind == 12:
            return self.struct(keep, depth)
        if kind in (9, 10):
            return self._list(keep, depth)
        raise IndexError(f"thrift type {kind}")

    def _list(self, keep: Keep, depth: int) -> list[Any]:
        head = self._byte()
        size, kind = head >> 4, head & 15
        if size == 15:
            size = self._varint()
        if size > len(self.data):
            raise IndexError("list longer than the footer")
        if kind in (_TRUE, _FALSE):
            self._skip(size)
            return []
        values = (self._read(kind, keep, depth + 1) for _ in range(size))
        return list(values)

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

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _skip(self, size: int) -> None:
        self.at += size
