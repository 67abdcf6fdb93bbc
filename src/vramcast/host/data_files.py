"""Find the parquet files that a user names.

In: a path, a folder (hive partitions included), a pattern or a list of these. Out: one DataFile per file, with its
size, modification time and the `key=value` folders above it. Opens none, so it does not know whether they are parquet.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from urllib.parse import unquote

from vramcast.errors import InputError

Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
# Arrow, per value: an int64, and the offset of a text.
NUMBER_BYTES, TEXT_OFFSET_BYTES = 8, 4

FoundFile = tuple[Path, dict[str, str]]  # with the texts of its partition folders


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
        return sum(_value_bytes(value) for _, value in self.partition)

    def changed(self) -> bool:
        stat = os.stat(self.path)
        return (stat.st_size, stat.st_mtime_ns) != (self.size_bytes, self.modified_ns)


def _value_bytes(value: str | int | None) -> int:
    if isinstance(value, str):
        return TEXT_OFFSET_BYTES + len(value.encode())
    return NUMBER_BYTES


def find_files(source: Source) -> tuple[DataFile, ...]:
    """The files in the order of the list, sorted within each folder or pattern."""
    given = [source] if isinstance(source, str | os.PathLike) else list(source)
    if not given:
        raise InputError(
            "an empty list of parquet files. Name at least one file, folder or pattern."
        )
    found: list[FoundFile] = []
    for item in given:
        found += _expand(os.fspath(item))
    return _with_typed_partitions(found)


def _expand(text: str) -> list[FoundFile]:
    path = Path(text)
    if path.is_file():
        return [(path, _partition(_trailing_pairs(path.absolute().parent.parts)))]
    if path.is_dir():
        return _files_below(path)
    return _matching_files(text)


def _files_below(folder: Path) -> list[FoundFile]:
    visible = [
        path for path in folder.rglob("*.parquet") if not _is_hidden(path.relative_to(folder))
    ]
    if not visible:
        raise InputError(f"{folder}: no *.parquet file in this folder or below it")
    return [(path, _partition(path.relative_to(folder).parent.parts)) for path in sorted(visible)]


def _matching_files(pattern: str) -> list[FoundFile]:
    matches = sorted(glob.glob(pattern, recursive=True))
    if not matches:
        raise InputError(f"{pattern}: no such file or folder, and no file matches it as a pattern")
    for match in matches:
        if not os.path.isfile(match) and not os.path.isdir(match):
            raise InputError(
                f"{match}: neither a file nor a folder. A dataset is a parquet file or a folder of them."
            )
    found: list[FoundFile] = []
    for match in matches:
        found += _expand(match)
    return found


def _is_hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def _trailing_pairs(parts: Sequence[str]) -> list[str]:
    """The `key=value` folders right above a file that was named on its own."""
    return list(takewhile(lambda part: "=" in part, reversed(parts)))[::-1]


def _partition(parts: Sequence[str]) -> dict[str, str]:
    pairs = (part.partition("=") for part in parts if "=" in part)
    return {unquote(key): unquote(value) for key, _, value in pairs if key}


def _with_typed_partitions(found: Sequence[FoundFile]) -> tuple[DataFile, ...]:
    """Partition values are whole numbers if all of them are, as Hive, Spark and pyarrow read them."""
    first_path, first_values = found[0]
    keys = set(first_values)
    for path, values in found:
        if set(values) != keys:
            raise InputError(
                f"{path}: partition keys {sorted(values)} where {first_path} has {sorted(keys)}"
            )
    numeric = {key for key in keys if all(_is_int(values[key]) for _, values in found)}
    return tuple(_data_file(path, values, numeric) for path, values in found)


def _is_int(text: str) -> bool:
    if text == HIVE_NULL:
        return True
    return text.removeprefix("-").isdecimal() and -(2**63) <= int(text) < 2**63


def _data_file(path: Path, values: Mapping[str, str], numeric: set[str]) -> DataFile:
    stat = path.stat()
    return DataFile(
        path=str(path),
        size_bytes=stat.st_size,
        modified_ns=stat.st_mtime_ns,
        partition=tuple((key, _typed(text, key in numeric)) for key, text in values.items()),
    )


def _typed(text: str, is_number: bool) -> str | int | None:
    if text == HIVE_NULL:
        return None
    return int(text) if is_number else text
