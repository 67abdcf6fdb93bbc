"""Single rows of an Arrow table as Python values, without an Arrow object per value.

In: a decoded table. Out: dictionaries. A shuffled batch takes one row here and one there, where Arrow's `take` and
`slice` cost more than the row itself; text, numbers and lists of numbers are cut straight out of their buffers, and
only other types go through Arrow. Text that is not UTF-8 raises UnicodeDecodeError.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as types

Getter = Callable[[int], Any]
Places = Sequence[
    tuple[dict[str, Any], int]
]  # rows to be filled, and where in the table theirs are
Filler = Callable[[Places], None]
_NUMBERS = {
    pa.int8(): "b", pa.int16(): "h", pa.int32(): "i", pa.int64(): "q", pa.uint8(): "B", pa.uint16(): "H",
    pa.uint32(): "I", pa.uint64(): "Q", pa.float32(): "f", pa.float64(): "d",
}  # fmt: skip


class Rows:
    """A table to be read row by row, and the memory made for it if there is such."""

    __slots__ = ("_fillers", "memory", "nbytes", "num_rows")

    def __init__(self, table: pa.Table, memory: mmap.mmap | None = None) -> None:
        self.num_rows: int = table.num_rows
        self.nbytes: int = table.nbytes  # a store adds the objects around the data
        self.memory = memory
        self._fillers = [
            _filler(name, column)
            for name, column in zip(table.column_names, table.columns, strict=True)
        ]

    def fill(self, rows: Places) -> None:
        """Put the values of all columns into the given rows, column by column: a call for each value costs more."""
        for fill in self._fillers:
            fill(rows)


def is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _filler(name: str, column: pa.ChunkedArray) -> Filler:
    if column.num_chunks == 1 and column.null_count == 0 and is_text(column.type):
        return _text_filler(name, column.chunk(0))
    get = _getter(column)

    def fill(rows: Places) -> None:
        for row, index in rows:
            row[name] = get(index)

    return fill


def _getter(column: pa.ChunkedArray) -> Getter:
    get = _direct(column.chunk(0)) if column.num_chunks == 1 else None
    if get is None:
        return lambda index: column.slice(index, 1).to_pylist()[0]
    return get if column.null_count == 0 else _or_none(column.chunk(0), get)


def _direct(array: pa.Array) -> Getter | None:
    """From the buffers, nulls aside; None for types that are left to Arrow."""
    kind = array.type
    if is_text(kind):
        return _text(array)
    if kind in _NUMBERS:
        values, first = _numbers(array), array.offset
        return values.__getitem__ if first == 0 else lambda index: values[first + index]
    if types.is_list(kind) and kind.value_type in _NUMBERS and array.values.null_count == 0:
        return _list_of_numbers(array)
    return None


def _numbers(array: pa.Array) -> memoryview:
    return _view(array.buffers()[-1], _NUMBERS[array.type])


def _view(buffer: pa.Buffer | None, code: Any) -> memoryview:
    return memoryview(b"" if buffer is None else buffer).cast("B").cast(code)


def _text_filler(name: str, array: pa.Array) -> Filler:
    """What most columns are and most time goes into: written out."""
    offsets, data = _text_buffers(array)

    def fill(rows: Places) -> None:
        for row, index in rows:
            row[name] = str(data[offsets[index] : offsets[index + 1]], "utf-8")

    return fill


def _text(array: pa.Array) -> Getter:
    offsets, data = _text_buffers(array)
    return lambda index: str(data[offsets[index] : offsets[index + 1]], "utf-8")


def _text_buffers(array: pa.Array) -> tuple[memoryview, memoryview]:
    _, offset_buffer, data_buffer = array.buffers()
    offsets = _view(offset_buffer, "i" if types.is_string(array.type) else "q")
    return offsets[array.offset :], _view(data_buffer, "B")


def _list_of_numbers(array: pa.ListArray) -> Getter:
    offsets, values = _view(array.buffers()[1], "i"), _numbers(array.values)
    first, base = array.offset, array.values.offset

    def get(index: int) -> list[Any]:
        return values[base + offsets[first + index] : base + offsets[first + index + 1]].tolist()

    return get


def _or_none(array: pa.Array, get: Getter) -> Getter:
    bits, first = _view(array.buffers()[0], "B"), array.offset
    return lambda index: (
        get(index) if bits[(first + index) >> 3] >> ((first + index) & 7) & 1 else None
    )
