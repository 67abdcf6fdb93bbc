"""Rewrite a parquet file with row groups of a sane size.

In: parquet files. Out: one parquet file with the same rows in the same order, in row groups of about `group_bytes`,
and a checksum on every page. Holds one slice of the input and one row group of the output.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from vramcast.errors import InputError
from vramcast.host.parquet import ParquetFacts, Source, read_facts
from vramcast.runtime.stores import SliceStore
from vramcast.units import MiB

GROUP_BYTES = MiB  # decodes in a few milliseconds, and compresses about as well as a larger one


def rewrite_row_groups(
    source: Source, target: str | os.PathLike[str], *, group_bytes: int = GROUP_BYTES, compression: str = "snappy"
) -> ParquetFacts:
    """Write `target`, whole or not at all, and return its facts."""
    facts = read_facts(source)
    path = Path(target)
    if path.exists():
        raise InputError(f"{path}: exists already. Name a new file; the source is not replaced in place.")
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        _write(facts, partial, group_bytes, compression)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return read_facts(path)


def _write(facts: ParquetFacts, partial: Path, group_bytes: int, compression: str) -> None:
    store = SliceStore(facts)
    rows_per_group = max(1, facts.num_rows * group_bytes // max(facts.decoded_bytes, 1))
    waiting: pa.Table = store.table(0).slice(0, 0)
    with pq.ParquetWriter(partial, waiting.schema, compression=compression, write_page_checksum=True) as writer:
        for chunk in range(len(store.ends)):
            waiting = pa.concat_tables([waiting, store.table(chunk)])
            while waiting.num_rows >= rows_per_group:
                writer.write_table(waiting.slice(0, rows_per_group), row_group_size=rows_per_group)
                waiting = waiting.slice(rows_per_group)
            waiting = waiting.combine_chunks()  # copies the rest, so the slice it came from is let go
        if waiting.num_rows:
            writer.write_table(waiting, row_group_size=rows_per_group)
