"""What a reader really holds: RSS against the budget, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vramcast.units import MiB

READ = """
import json, random, sys, time
import psutil, pyarrow.parquet
from vramcast.runtime import LowMemDataset
process = psutil.Process()
path, mode, budget, random_rows = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
before = process.memory_info().rss
data = LowMemDataset(path, mode=mode, budget_bytes=budget)
rng, peak = random.Random(0), 0
started = time.process_time()
for step in range(random_rows):
    index = rng.randrange(len(data))
    assert data[index]["prompt"].startswith(f"{index}:")
    peak = max(peak, process.memory_info().rss) if step % 20 == 0 else peak
print(json.dumps({"growth": peak - before, "ms": (time.process_time() - started) / random_rows * 1e3}))
"""


@pytest.fixture(scope="module")
def large_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200,000 rows, 180 MB decoded, row groups of 0.9 MB."""
    path = tmp_path_factory.mktemp("large") / "large.parquet"
    schema = pa.schema([("prompt", pa.string()), ("response", pa.string())])
    tail = "回答" * 140
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, 200_000, 1000):
            rows = range(start, start + 1000)
            columns = {"prompt": [f"{n}:{n * 7919 % 10007}" for n in rows], "response": [f"{n}{tail}" for n in rows]}
            writer.write_table(pa.table(columns, schema=schema))
    return path


def read(path: Path, mode: str, budget: int, random_rows: int) -> dict[str, float]:
    command = [sys.executable, "-c", READ, str(path), mode, str(budget), str(random_rows)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


@pytest.mark.slow
@pytest.mark.parametrize("budget", [64 * MiB, 128 * MiB])
def test_row_groups_keep_to_their_budget(large_file: Path, budget: int) -> None:
    assert read(large_file, "row-groups", budget, 1500)["growth"] <= budget + 20e6


@pytest.mark.slow
def test_ultra_is_small_and_takes_milliseconds_per_random_row(large_file: Path) -> None:
    result = read(large_file, "ultra", 64 * MiB, 400)
    assert result["growth"] <= 64 * MiB
    assert result["ms"] <= 10
