"""A one-time copy of parquet files as Arrow IPC on disk, to be memory-mapped by every process of a machine.

In: the facts of the files and a folder. Out: the path of a complete cache. Built once under a file lock, written beside
and renamed into place, so a reader sees a whole cache or none; the CRC-32 of a chunk is checked when a process first
reads it. The name holds the size and time of every source file, so changed files never meet an old cache.
Relies on flock and on rename being atomic: a local disk, not every network file system.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import mmap
import os
import shutil
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa

from vramcast.errors import InputError
from vramcast.host.parquet_facts import CACHE_CHUNK_BYTES, OPEN_CHUNKS, SLICE_BYTES, ParquetFacts
from vramcast.runtime.data.rows import Rows
from vramcast.runtime.data.stores import SliceStore
from vramcast.runtime.writing import whole_file
from vramcast.units import format_bytes, round_up

VERSION = 3


def default_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(root) / "vramcast" / "arrow"


def cache_path(facts: ParquetFacts, folder: Path) -> Path:
    files = [
        (os.path.abspath(file.path), file.size_bytes, file.modified_ns) for file in facts.files
    ]
    partitions = [file.partition for file in facts.files]
    key = json.dumps([VERSION, files, partitions, facts.schema_text])
    return (
        folder
        / f"{Path(facts.files[0].path).stem}-{hashlib.sha256(key.encode()).hexdigest()[:24]}.arrow"
    )


def ensure_cache(facts: ParquetFacts, folder: Path) -> Path:
    """Build the cache unless it is there; other processes of the machine wait for the one that builds."""
    path = cache_path(facts, folder)
    if not _complete(path):
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock")):
            if not _complete(path):
                _build(facts, path)
    return path


def _manifest_path(path: Path) -> Path:
    return path.with_suffix(".json")


def _complete(path: Path) -> bool:
    """The manifest is renamed into place last, so its presence says that the data was finished."""
    if not _manifest_path(path).exists() or not path.exists():
        return False
    return bool(_read_manifest(path)["file_bytes"] == path.stat().st_size)


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        text = json.loads(_manifest_path(path).read_bytes())
        body: dict[str, Any] = text["body"]
        if text["sha256"] == _digest(body):
            return body
    except (OSError, ValueError, KeyError, TypeError):
        pass  # answered below: a damaged manifest and a missing one need the same repair
    raise _damaged(path, "its manifest")


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _damaged(path: Path, what: str) -> InputError:
    return InputError(
        f"{path}: {what} is damaged. Delete {path.with_suffix('')}.* and it will be built again."
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released by the kernel if the builder dies
        yield


def _build(facts: ParquetFacts, path: Path) -> None:
    free = shutil.disk_usage(path.parent).free
    if facts.decoded_bytes > free:
        raise InputError(
            f"{path.parent}: the Arrow cache needs {format_bytes(facts.decoded_bytes)}, {format_bytes(free)} are free. "
            "Name another cache_dir, choose fewer columns, or use mode='row-groups'."
        )
    advice = "Free some space, name another cache_dir, or use mode='row-groups'; nothing was left behind."
    # One name each, used under the lock: what a killed build left is overwritten by the next.
    with whole_file(path, advice=advice, partial=path.with_suffix(".partial")) as partial:
        rows, spans = _write_chunks(facts, partial)
        body = {
            "version": VERSION,
            "file_bytes": partial.stat().st_size,
            "rows": rows,
            "spans": spans,
        }
        body["crc32"] = _checksums(partial, spans)
        pa.default_memory_pool().release_unused()  # a cache is built once: its decoding buffers need not stay
    manifest = _manifest_path(path)
    with whole_file(manifest, advice=advice, partial=path.with_suffix(".json-partial")) as partial:
        partial.write_text(json.dumps({"body": body, "sha256": _digest(body)}))


def _write_chunks(facts: ParquetFacts, partial: Path) -> tuple[list[int], list[tuple[int, int]]]:
    store = SliceStore(facts, SLICE_BYTES)
    rows: list[int] = []
    spans: list[tuple[int, int]] = []
    with pa.OSFile(str(partial), "wb") as sink:
        writer = None
        for table in _merged(store.table(chunk) for chunk in range(len(store.ends))):
            writer = writer or pa.ipc.new_file(sink, table.schema)
            for batch in table.to_batches(max_chunksize=_rows_per_chunk(table)):
                start = sink.tell()
                writer.write_batch(batch)
                rows.append(batch.num_rows)
                spans.append((start, sink.tell() - start))
        if writer is not None:
            writer.close()
    return rows, spans


def _merged(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Small row groups together: an open chunk of a few rows of many columns is more objects than data.

    Whole ones: a chunk with parts of two would be mapped, and counted, for the rows of one.
    """
    waiting: list[pa.Table] = []
    for table in tables:
        if waiting and sum(each.nbytes for each in (*waiting, table)) > CACHE_CHUNK_BYTES:
            yield pa.concat_tables(waiting).combine_chunks()
            waiting = []
        waiting.append(table)
    if waiting:
        yield pa.concat_tables(waiting).combine_chunks()


def _rows_per_chunk(table: pa.Table) -> int:
    return max(1, int(table.num_rows * CACHE_CHUNK_BYTES / max(table.nbytes, 1)))


def _checksums(partial: Path, spans: list[tuple[int, int]]) -> list[int]:
    with open(partial, "rb") as file:
        return [zlib.crc32(os.pread(file.fileno(), length, start)) for start, length in spans]


class MappedStore:
    """Rows straight from the memory-mapped cache; the pages belong to the kernel and are shared by all processes.

    A process keeps the chunks it used last mapped, up to its budget; the others stay in the page cache and come back
    by a page fault. Else an epoch would end with the whole file in every process's RSS.
    """

    survives_fork = False

    def __init__(self, facts: ParquetFacts, folder: Path, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.path = ensure_cache(facts, folder)
        manifest = _read_manifest(self.path)
        self.ends = tuple(accumulate(manifest["rows"]))
        if self.ends[-1] != facts.num_rows:
            raise _damaged(
                self.path, f"a cache of {self.ends[-1]} rows where the source has {facts.num_rows}"
            )
        self._spans: list[tuple[int, int]] = manifest["spans"]
        self._crc32: list[int | None] = manifest["crc32"]
        self._file = os.open(self.path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        self._mapping = mmap.mmap(self._file, 0, access=mmap.ACCESS_READ)
        self._reader = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(self._mapping)))
        self._open: OrderedDict[int, Rows] = OrderedDict()
        self._mapped: OrderedDict[int, None] = OrderedDict()
        self.mapped_bytes = 0

    def load(self, chunk: int, wanted: int = 1) -> Rows:
        rows = self._open.get(chunk)
        if rows is None:
            self._verify(chunk)
            rows = Rows(pa.Table.from_batches([self._reader.get_batch(chunk)]))
            self._open[chunk] = rows
            if len(self._open) > OPEN_CHUNKS:
                self._open.popitem(last=False)
        self._note_use(chunk)
        return rows

    def describe(self, chunk: int) -> str:
        return f"{self.path}, chunk {chunk} of {len(self.ends)}"

    def _note_use(self, chunk: int) -> None:
        if chunk not in self._mapped:
            self.mapped_bytes += self._spans[chunk][1]
            self._mapped[chunk] = None
        self._mapped.move_to_end(chunk)
        while self.mapped_bytes > self.budget_bytes and len(self._mapped) > 1:
            self._unmap(self._mapped.popitem(last=False)[0])

    def _unmap(self, chunk: int) -> None:
        """Whole pages of the chunk leave this process; its neighbours keep those they share."""
        start, length = self._spans[chunk]
        self.mapped_bytes -= length
        first, last = (
            round_up(start, mmap.PAGESIZE),
            (start + length) // mmap.PAGESIZE * mmap.PAGESIZE,
        )
        if last > first and hasattr(mmap, "MADV_DONTNEED"):
            self._mapping.madvise(mmap.MADV_DONTNEED, first, last - first)

    def _verify(self, chunk: int) -> None:
        if self._crc32[chunk] is None:
            return
        start, length = self._spans[chunk]
        if zlib.crc32(os.pread(self._file, length, start)) != self._crc32[chunk]:
            raise _damaged(self.path, f"chunk {chunk} (bytes {start} to {start + length})")
        self._crc32[chunk] = None  # verified once per process
