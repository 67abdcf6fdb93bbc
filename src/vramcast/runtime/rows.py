"""Single rows of an Arrow table as Python values, without an Arrow object per value.

In: a decoded, validated table. Out: dictionaries. A shuffled batch takes one row here and one there, where Arrow's
`take` and `slice` cost more than the row itself; text, by far the most common column, is cut straight out of
its buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pyarrow as pa
import pyarrow.types as types


class Rows:
    """A table to be read row by row."""

    __slots__ = ("_getters", "nbytes", "num_rows")

    def __init__(self, table: pa.Table) -> None:
        self.num_rows: int = table.num_rows
        self.nbytes: int = table.nbytes
        self._getters = [
            (name, _getter(column)) for name, column in zip(table.column_names, table.columns, strict=True)
        ]

    def row(self, offset: int) -> dict[str, Any]:
        return {name: get(offset) for name, get in self._getters}


def _getter(column: pa.ChunkedArray) -> Callable[[int], Any]:
    if column.num_chunks == 1 and column.null_count == 0 and (offset_format := _text_offsets(column.type)):
        return _text_getter(column.chunk(0), offset_format)
    return lambda index: column.slice(index, 1).to_pylist()[0]


def _text_offsets(kind: pa.DataType) -> Literal["i", "q"] | None:
    """The format code of a text column's offsets."""
    return "i" if types.is_string(kind) else "q" if types.is_large_string(kind) else None


def _text_getter(array: pa.Array, offset_format: Literal["i", "q"]) -> Callable[[int], str]:
    _, offset_buffer, data_buffer = array.buffers()
    offsets = memoryview(offset_buffer).cast(offset_format)
    data = memoryview(data_buffer) if data_buffer is not None else memoryview(b"")
    first = array.offset
    if first:
        return lambda index: str(data[offsets[first + index] : offsets[first + index + 1]], "utf-8")
    return lambda index: str(data[offsets[index] : offsets[index + 1]], "utf-8")
