"""What an opened footer takes, beside what glibc says pyarrow has allocated for it."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vramcast.host.footer import read_footer
from vramcast.host.parquet import read_facts
from vramcast.host.parquet_facts import RECORD_BYTES

ROWS = 4000
NUMBERS = pa.array(range(ROWS))
TEXT = pa.array([f"{n:08}" for n in range(ROWS)])
SCHEMAS: dict[
    str, tuple[dict[str, pa.Array], int, bool]
] = {  # columns, rows of a row group, statistics
    "two numbers": ({"a": NUMBERS, "b": NUMBERS}, 1, True),
    "forty numbers": ({f"c{n}": NUMBERS for n in range(40)}, 20, True),
    "forty without statistics": ({f"c{n}": NUMBERS for n in range(40)}, 20, False),
    "long names": ({f"a_rather_long_column_name_{n}": NUMBERS for n in range(40)}, 20, True),
    "short text": ({"a": TEXT, "b": TEXT}, 1, True),
    "long text": ({"a": pa.array([f"{n:0300}" for n in range(ROWS)]), "b": TEXT}, 1, True),
    "lists": (
        {
            "a": pa.array([[n, n] for n in range(ROWS)]),
            "b": pa.array([[str(n)] for n in range(ROWS)]),
        },
        1,
        True,
    ),
    "structs": ({"a": pa.array([{"x": n, "y": str(n), "z": [n]} for n in range(ROWS)])}, 1, True),
}


MALLINFO2 = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
)  # fmt: skip


class Mallinfo2(ctypes.Structure):
    """What malloc.h declares."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in MALLINFO2)


def allocated_bytes() -> int:
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = Mallinfo2
    info = libc.mallinfo2()
    return int(info.uordblks + info.hblkhd)


@pytest.mark.slow
@pytest.mark.parametrize("schema", SCHEMAS)
def test_an_opened_footer_takes_what_its_objects_add_up_to(tmp_path: Path, schema: str) -> None:
    columns, group_rows, statistics = SCHEMAS[schema]
    path = tmp_path / "wide.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=group_rows, write_statistics=statistics)
    pq.ParquetFile(path).close()  # first uses are not what is measured
    gc.collect()
    before = allocated_bytes()
    opened = pq.ParquetFile(path)
    found = allocated_bytes() - before
    opened.close()
    assert read_footer(path).opened_bytes == pytest.approx(found, rel=0.1)


def test_the_schema_is_read_without_the_row_groups(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    table = pa.table({"a": pa.array(["x", "y"], type=pa.large_string()), "b": pa.array([[1], [2]])})
    pq.write_table(table.replace_schema_metadata({"key": "value"}), path, row_group_size=1)
    short = read_footer(path).schema_file
    assert len(short) < path.stat().st_size
    assert pq.read_metadata(pa.BufferReader(short)).num_row_groups == 0
    assert pq.read_schema(pa.BufferReader(short)).equals(pq.read_schema(path), check_metadata=True)


@pytest.mark.slow
def test_a_row_groups_record_is_as_large_as_said(tmp_path: Path) -> None:
    import tracemalloc

    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": range(150_000), "b": range(150_000)}), path, row_group_size=300)
    read_facts(path)
    tracemalloc.start()
    facts = read_facts(path)
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert facts.records_bytes == len(facts.row_groups) * RECORD_BYTES
    assert facts.records_bytes == pytest.approx(held, rel=0.1)
