"""Rewrite a parquet file with row groups of a sane size.

In: parquet files. Out: one parquet file with the same rows in the same order, in row groups of about `group_bytes`,
and a checksum on every page. Holds one slice of the input and one row group of the output.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from vramcast.errors import InputError
from vramcast.host.data_files import Source
from vramcast.host.parquet import read_facts
from vramcast.host.parquet_facts import ParquetFacts
from vramcast.runtime.data.stores import SliceStore
from vramcast.runtime.writing import whole_file
from vramcast.units import MiB

GROUP_BYTES = MiB  # decodes in a few milliseconds, and compresses about as well as a larger one


def rewrite_row_groups(
    source: Source,
    target: str | os.PathLike[str],
    *,
    group_bytes: int = GROUP_BYTES,
    compression: str = "snappy",
) -> ParquetFacts:
    """Write `target`, whole or not at all, and return its facts."""
    facts = read_facts(source)
    path = Path(target)
    if path.exists():
        raise InputError(
            f"{path}: exists already. Name a new file; the source is not replaced in place."
        )
    groups = _row_groups(facts, group_bytes)
    table = next(groups)
    advice = "Free some space there, or name a target on another disk; nothing was left behind."
    with (
        whole_file(path, advice=advice) as partial,
        _writer(partial, table.schema, compression) as writer,
    ):
        while table is not None:
            if table.num_rows:
                writer.write_table(table, row_group_size=table.num_rows)
            table = None  # the slice it came from is let go before the next one is decoded
            table = next(groups, None)
    return read_facts(path)


def _row_groups(facts: ParquetFacts, group_bytes: int) -> Iterator[pa.Table]:
    """All rows in order, in tables that become one row group each."""
    store = SliceStore(facts)
    rows_per_group = max(1, facts.num_rows * group_bytes // max(facts.decoded_bytes, 1))
    waiting: pa.Table = store.table(0).slice(0, 0)
    num_groups = 0
    for chunk in range(len(store.ends)):
        waiting = pa.concat_tables([waiting, store.table(chunk)])
        while waiting.num_rows >= rows_per_group:
            yield waiting.slice(0, rows_per_group)
            num_groups += 1
            waiting = waiting.slice(rows_per_group)
        waiting = waiting.combine_chunks()  # copies the rest, so the slice it came from is let go
    if waiting.num_rows or not num_groups:
        yield waiting


@contextmanager
def _writer(partial: Path, schema: pa.Schema, compression: str) -> Iterator[pq.ParquetWriter]:
    """Closed with its footer only after a write that went well: on a full disk closing fails a second time."""
    writer = pq.ParquetWriter(partial, schema, compression=compression, write_page_checksum=True)
    try:
        yield writer
    except BaseException:
        with suppress(OSError):
            writer.close()
        raise
    writer.close()
