"""Writes the parquet files of the dataset tests, small enough to be made anew for every test."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from parquet_samples import Write, table


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(
        rows: int = 100,
        *,
        name: str = "data.parquet",
        group: int = 10,
        start: int = 0,
        **options: object,
    ) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table(rows, start), path, row_group_size=group, **options)
        return path

    return make
