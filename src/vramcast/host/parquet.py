"""Read what parquet files hold, from their footers alone.

In: files as `vramcast.host.data_files` finds them, and the columns to read. Out: ParquetFacts: row groups with rows,
encoded and decoded bytes, and the same by column. Reads no data page. The decoded size is what Arrow will hold; if a
writer left out the size of its text columns it is estimated from the encoded pages and marked so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from vramcast.errors import InputError, unknown
from vramcast.host.arrow_sizes import count_buffers, leaf_bytes, leaf_types, list_offset_bytes
from vramcast.host.data_files import DataFile, Source, find_files
from vramcast.host.footer import Footer, GroupFooter, read_footer
from vramcast.host.parquet_facts import (
    BUFFER_OBJECT_BYTES,
    ColumnSize,
    ParquetFacts,
    RowGroup,
)
from vramcast.units import KiB, MiB

# Of a column chunk, as `vramcast.runtime` opens files; a longer page is read at once.
READ_BUFFER_BYTES = 64 * KiB
PAGE_BYTES = MiB  # pages as pyarrow, Spark and DuckDB write them; a footer does not say


def read_facts(source: Source, columns: Sequence[str] | None = None) -> ParquetFacts:
    """Read every footer, check that all files agree on the chosen columns, and add up."""
    files = find_files(source)
    first = _TypedFooter(files[0].path)
    names = _choose_columns(first, columns)
    groups: list[RowGroup] = []
    sizes = [
        ColumnSize(name=name, encoded_bytes=0, decoded_bytes=0, exact=True)
        for name in dict.fromkeys(names)
    ]
    opened = 0
    for index, file in enumerate(files):
        # One at a time: a footer's records outweigh its row groups'.
        footer = _TypedFooter(file.path) if index else first
        _check_same_schema(first, footer, file, names)
        groups += footer.row_groups(index, names, file)
        sizes = [footer.add_to(size) for size in sizes]
        opened = max(opened, footer.opened_bytes)
        footer.groups = ()
    groups = [group for group in groups if group.num_rows]
    if not groups:
        raise _no_rows(files)
    return ParquetFacts(
        files=files,
        row_groups=tuple(groups),
        columns=tuple(sizes),
        schema_text="; ".join(f"{name}: {first.types[name]}" for name in names),
        opened_bytes=opened,
        ends=tuple(accumulate(group.num_rows for group in groups)),
    )


def _no_rows(files: Sequence[DataFile]) -> InputError:
    others = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return InputError(f"{files[0].path}{others}: no rows. An empty dataset cannot be trained on.")


class _TypedFooter:
    """One file's footer, with its leaf columns grouped under the columns of its Arrow schema."""

    def __init__(self, path: str) -> None:
        pyarrow = _import_pyarrow(path)
        self.path = path
        footer = read_footer(Path(path))  # also says in plain words when the file is truncated
        self.opened_bytes, self.groups = footer.opened_bytes, footer.groups
        schema = _read_schema(pyarrow, path, footer)
        self.types: dict[str, Any] = {item.name: item.type for item in schema}
        self._check_unique(schema.names)
        self.leaves: dict[str, list[tuple[int, Any]]] = {}
        num_leaves = 0
        for item in schema:
            types = list(leaf_types(item.type))
            self.leaves[item.name] = list(enumerate(types, start=num_leaves))
            num_leaves += len(types)
        self._check_num_leaves(num_leaves)

    def _check_unique(self, names: Sequence[str]) -> None:
        if len(self.types) < len(names):
            twice = sorted(name for name in self.types if names.count(name) > 1)
            raise InputError(
                f"{self.path}: {twice} occur more than once as a column. Rewrite the file with names of their own."
            )

    def _check_num_leaves(self, expected: int) -> None:
        for index, group in enumerate(self.groups):
            if len(group.leaves) != expected:
                raise InputError(
                    f"{self.path}, row group {index}: {len(group.leaves)} columns where the schema has {expected}"
                )

    def row_groups(self, number: int, names: Sequence[str], file: DataFile) -> Iterator[RowGroup]:
        buffers = sum(count_buffers(self.types[name]) for name in names)
        for index, group in enumerate(self.groups):
            sizes = [self.chunk_size(group, name) for name in names]
            partition_bytes = group.num_rows * file.partition_row_bytes
            yield RowGroup(
                file=number,
                group=index,
                num_rows=group.num_rows,
                encoded_bytes=sum(size.encoded_bytes for size in sizes),
                decoded_bytes=sum(size.decoded_bytes for size in sizes) + partition_bytes,
                widest_bytes=max(size.decoded_bytes for size in sizes),
                pages_bytes=sum(self.pages_bytes(group, name) for name in names),
                objects_bytes=BUFFER_OBJECT_BYTES * buffers,
            )

    def add_to(self, size: ColumnSize) -> ColumnSize:
        """A column's size with this file's share."""
        chunks = [self.chunk_size(group, size.name) for group in self.groups]
        return ColumnSize(
            name=size.name,
            encoded_bytes=size.encoded_bytes + sum(chunk.encoded_bytes for chunk in chunks),
            decoded_bytes=size.decoded_bytes + sum(chunk.decoded_bytes for chunk in chunks),
            exact=size.exact and all(chunk.exact for chunk in chunks),
        )

    def pages_bytes(self, group: GroupFooter, name: str) -> int:
        """Per leaf the read buffer, the dictionary's page and the copy its decoder makes, and a page of data."""
        total = 0
        for leaf, _ in self.leaves[name]:
            chunk = group.leaves[leaf]
            total += min(chunk.encoded_bytes, READ_BUFFER_BYTES)
            total += 3 * min(chunk.uncompressed_bytes, PAGE_BYTES)
        return total

    def chunk_size(self, group: GroupFooter, name: str) -> ColumnSize:
        """One column of one row group.

        A nested column is never exact: the footer does not say how many lists there are between its rows and values.
        """
        import pyarrow.types as types

        kind = self.types[name]
        encoded, decoded = 0, list_offset_bytes(kind, group.num_rows)
        exact = not types.is_nested(kind)
        for leaf, leaf_kind in self.leaves[name]:
            chunk = group.leaves[leaf]
            nbytes, is_exact = leaf_bytes(leaf_kind, chunk)
            encoded += chunk.encoded_bytes
            decoded += nbytes
            exact = exact and is_exact
        return ColumnSize(name=name, encoded_bytes=encoded, decoded_bytes=decoded, exact=exact)


def _import_pyarrow(path: str) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(
            f"{path}: reading parquet needs pyarrow ({error}). Install it: pip install 'vramcast[runtime]'"
        ) from None
    return pyarrow


def _read_schema(pyarrow: Any, path: str, footer: Footer) -> Any:
    try:
        return pyarrow.parquet.read_schema(pyarrow.BufferReader(footer.schema_file))
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not readable as parquet: {error}") from error


def _choose_columns(footer: _TypedFooter, columns: Sequence[str] | None) -> tuple[str, ...]:
    known = tuple(footer.types)
    if columns is None:
        return known
    if isinstance(columns, str) or not columns:
        raise InputError(
            f"columns={columns!r}: give a list of column names, for example {list(known[:2])}"
        )
    for name in columns:
        if name not in footer.types:
            raise unknown("column", name, known, f"They are the columns of {footer.path}.")
    return tuple(columns)


def _check_same_schema(
    first: _TypedFooter, footer: _TypedFooter, file: DataFile, names: Sequence[str]
) -> None:
    for name in names:
        if name not in footer.types:
            raise InputError(
                f"{footer.path}: column {name!r} is missing; {first.path} has it as {first.types[name]}"
            )
        if footer.types[name] != first.types[name]:
            raise InputError(
                f"{footer.path}: column {name!r} is {footer.types[name]}, but {first.types[name]} in {first.path}. "
                "Rewrite one of them, or choose columns= that agree."
            )
    clash = {key for key, _ in file.partition}.intersection(names)
    if clash:
        raise InputError(
            f"{file.path}: {sorted(clash)} occur both as a partition folder and as a column"
        )
