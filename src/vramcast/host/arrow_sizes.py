"""What Arrow holds for a column of a row group, from its type and its footer.

In: a pyarrow type and the footer's figures of a leaf column. Out: bytes of Arrow's buffers, and whether they are exact.
An estimate where the writer left out the size of its text. Reads no data page; needs pyarrow for its types alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vramcast.host.footer import LeafChunk

VIEW_BYTES = 16  # Arrow's string_view, per value
OFFSET_BYTES, LARGE_OFFSET_BYTES = 4, 8  # into text and lists; of the large types
LENGTH_PREFIX_BYTES = 4  # before every text of a plain parquet page


def leaf_types(kind: Any) -> Iterator[Any]:
    """The Arrow types of a column's parquet leaves, in parquet's order."""
    import pyarrow.types as types

    # Extension types are read as what they are stored as.
    kind = getattr(kind, "storage_type", kind)
    if types.is_struct(kind):
        for index in range(kind.num_fields):
            yield from leaf_types(kind.field(index).type)
    elif types.is_map(kind):
        yield from leaf_types(kind.key_type)
        yield from leaf_types(kind.item_type)
    elif _is_list(kind):
        yield from leaf_types(kind.value_type)
    else:
        yield kind


def count_buffers(kind: Any) -> int:
    """Buffers without validity: one per leaf of numbers, two per leaf of text, one per list around them."""
    import pyarrow.types as types

    if types.is_struct(kind):
        return sum(count_buffers(kind.field(index).type) for index in range(kind.num_fields))
    if types.is_map(kind):
        return 1 + count_buffers(kind.key_type) + count_buffers(kind.item_type)
    if _is_list(kind):
        return 1 + count_buffers(kind.value_type)
    return 1 if types.is_primitive(kind) else 2


def _is_list(kind: Any) -> bool:
    import pyarrow.types as types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def leaf_bytes(kind: Any, chunk: LeafChunk) -> tuple[int, bool]:
    """Validity bitmap, offsets and data of one leaf, and whether the sum is exact."""
    import pyarrow.types as types

    count = chunk.num_values
    bitmap = (count + 7) // 8
    if types.is_null(kind):
        return 0, True
    if types.is_dictionary(kind):
        return bitmap + count * kind.index_type.bit_width // 8 + chunk.uncompressed_bytes, False
    # By name: older versions of pyarrow have no predicate for views.
    if str(kind) in ("string_view", "binary_view"):
        # Not exact: short values are stored in the view itself.
        return bitmap + VIEW_BYTES * count + chunk.uncompressed_bytes, False
    if types.is_string(kind) or types.is_binary(kind):
        return _text_bytes(chunk, OFFSET_BYTES)
    if types.is_large_string(kind) or types.is_large_binary(kind):
        return _text_bytes(chunk, LARGE_OFFSET_BYTES)
    return bitmap + (count * kind.bit_width + 7) // 8, True


def _text_bytes(chunk: LeafChunk, offset_bytes: int) -> tuple[int, bool]:
    """Text without nulls has no bitmap; numbers always have one."""
    count = chunk.num_values
    bitmap = 0 if chunk.null_count == 0 else (count + 7) // 8
    around = bitmap + offset_bytes * count
    if chunk.text_bytes is None:
        estimate = max(chunk.uncompressed_bytes - LENGTH_PREFIX_BYTES * count, 0)
        return around + estimate, False
    return around + chunk.text_bytes, True


def list_offset_bytes(kind: Any, num_rows: int) -> int:
    """Offsets of a column's outermost lists."""
    import pyarrow.types as types

    if types.is_list(kind) or types.is_map(kind):
        return OFFSET_BYTES * num_rows
    if types.is_large_list(kind):
        return LARGE_OFFSET_BYTES * num_rows
    return 0
