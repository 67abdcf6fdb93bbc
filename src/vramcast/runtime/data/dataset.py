"""A parquet dataset that holds no more memory than it says.

In: parquet files in any of the forms `vramcast.host.parquet` finds. Out: rows by index, as dictionaries or as whatever
`transform` makes of them. Works with torch's DataLoader and without torch. Does not shuffle and does not shard: that is
`RowGroupSampler`'s.
"""

from __future__ import annotations

import gc
import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import index as as_index
from pathlib import Path
from typing import Any, Generic, TypeVar

from vramcast.errors import InputError, InvariantError, unknown
from vramcast.host.data_files import Source
from vramcast.host.parquet import read_facts
from vramcast.host.parquet_facts import ParquetFacts
from vramcast.runtime.data.stores import GroupStore, SliceStore, Store, TableStore, check_groups_fit
from vramcast.units import MiB

MODES = ("table", "row-groups", "mmap", "ultra")
Item = TypeVar("Item")


class LowMemDataset(Generic[Item]):
    """Rows of parquet files by index.

    mode            held in memory, per process
    `table`         everything, decoded; forked workers share it
    `row-groups`    the row groups used last, up to `budget_bytes`
    `mmap`          pages of an Arrow copy on disk (`cache_dir`), shared by all processes, up to `budget_bytes`
    `ultra`         one row group, or a slice of a large one
    """

    def __init__(
        self,
        source: Source,
        *,
        columns: Sequence[str] | None = None,
        mode: str = "row-groups",
        budget_bytes: int = 256 * MiB,
        cache_dir: str | os.PathLike[str] | None = None,
        transform: Callable[[dict[str, Any]], Item] | None = None,
    ) -> None:
        if mode not in MODES:
            raise unknown("dataset mode", mode, MODES)
        if budget_bytes <= 0:
            raise InputError(f"budget_bytes={budget_bytes}: a budget is a positive number of bytes")
        self.facts: ParquetFacts = read_facts(source, columns)
        self.mode = mode
        self.budget_bytes = budget_bytes
        self.transform = transform
        self._cache_dir = None if cache_dir is None else Path(cache_dir)
        self._store: Store | None = None
        self._pid = os.getpid()
        if mode == "row-groups":
            check_groups_fit(self.facts, budget_bytes)
        if mode == "mmap":
            import vramcast.runtime.data.arrow_cache  # noqa: F401  (before a fork: else every worker has a copy of its own)
        if mode == "table":
            self._opened()  # now, so that forked workers share it instead of loading one each

    def __len__(self) -> int:
        return self.facts.num_rows

    def __getitem__(self, index: int) -> Item | dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Item | dict[str, Any]]:
        """Many rows at once, in the given order; a chunk is decoded once however many of them it holds."""
        store = self._opened()
        ends = store.ends
        rows: list[Any] = []
        chunks: dict[int, list[tuple[dict[str, Any], int]]] = {}
        for number in _row_numbers(indices, len(self)):
            row: dict[str, Any] = {}
            rows.append(row)
            chunk = bisect_right(ends, number)
            chunks.setdefault(chunk, []).append((row, number - (ends[chunk - 1] if chunk else 0)))
        for chunk, in_chunk in chunks.items():
            try:
                store.load(chunk, len(in_chunk)).fill(in_chunk)
            except UnicodeDecodeError as error:
                raise InputError(f"{store.describe(chunk)}: cannot be decoded: {error}") from error
        return rows if self.transform is None else [self.transform(row) for row in rows]

    def _opened(self) -> Store:
        """The store of this process: files opened before a fork are not used after it."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            # A full collection writes into every object there is: a forked worker would get its own copy of all pages
            # that hold any, 36 MiB with torch imported, 88 MiB with transformers. It leaves frozen ones alone.
            gc.freeze()
            if self._store is not None and not self._store.survives_fork:
                self._store = None
        if self._store is None:
            self._store = self._open()
        return self._store

    def _open(self) -> Store:
        if self.mode == "table":
            return TableStore(self.facts)
        if self.mode == "row-groups":
            return GroupStore(self.facts, self.budget_bytes)
        if self.mode == "ultra":
            return SliceStore(self.facts, reads_text=True)
        if self.mode == "mmap":
            from vramcast.runtime.data.arrow_cache import MappedStore, default_folder

            return MappedStore(self.facts, self._cache_dir or default_folder(), self.budget_bytes)
        raise InvariantError(f"mode {self.mode!r} was checked at construction")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_store": None}


def _row_numbers(indices: Sequence[int], count: int) -> list[int]:
    numbers = list(map(as_index, indices))
    if not numbers or (min(numbers) >= 0 and max(numbers) < count):
        return numbers
    return [_row_number(number, count) for number in numbers]


def _row_number(number: int, count: int) -> int:
    if not -count <= number < count:
        raise IndexError(f"row {number} of a dataset with {count} rows")
    return number if number >= 0 else number + count
