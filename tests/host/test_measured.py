"""Predicted host memory beside what the kernel says real processes hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vramcast.host.entries import host_entries
from vramcast.host.host_job import HostData, HostJob, Loader, token_batch
from vramcast.host.parquet import read_facts
from vramcast.host.processes import HostUse, family_use
from vramcast.ledger import FORWARD, Ledger
from vramcast.units import MiB

SCRIPT = Path(__file__).parent / "measured_loader.py"
SEQ, BUDGET_BYTES = 512, 64 * MiB


@pytest.fixture(scope="module")
def rows_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20,000 chat rows, 12 MB decoded: less than a reader may hold, so that every mode reaches a steady state."""
    path = tmp_path_factory.mktemp("measured") / "chat.parquet"
    texts = [f"{n}: " + "你好世界" * (10 + n % 30) for n in range(20_000)]
    pq.write_table(pa.table({"prompt": texts, "response": texts[::-1]}), path, row_group_size=1000)
    return path


@pytest.fixture(scope="module")
def short_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("short") / "short.parquet"
    texts = [f"{n:05}" for n in range(20_000)]
    pq.write_table(pa.table({"prompt": texts, "response": texts}), path, row_group_size=1000)
    return path


def measured(path: Path, mode: str, workers: int, batches: tuple[int, ...], rows: int) -> list[int]:
    """One batch size after another in one process, so that only batches differ."""
    job = {
        "path": str(path), "mode": mode, "workers": workers, "batches": batches, "seq": SEQ, "budget": BUDGET_BYTES,
        "rows": rows, "cache": str(path.parent),
    }  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), json.dumps(job)],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    uses = json.loads(done.stdout.splitlines()[-1])
    assert [use["processes"] for use in uses] == [1 + workers] * len(batches)
    return [use["private_bytes"] + use["shm_bytes"] + use["file_bytes"] for use in uses]


def predicted(path: Path, mode: str, workers: int, batch: int) -> int:
    job = HostJob(
        build="cpu", imports=("torch", "pyarrow"),
        data=HostData(facts=read_facts(path), mode=mode, budget_bytes=BUDGET_BYTES),
        loader=Loader(tensor_bytes=token_batch(batch, SEQ), workers=workers, steady=True),
    )  # fmt: skip
    ledger = Ledger(entries=host_entries(job))
    return sum(ledger.moment(FORWARD, place).process_bytes for place in ledger.places())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "workers"),
    [("row-groups", 0), ("row-groups", 2), ("table", 2), ("mmap", 2), ("ultra", 2)],
)
def test_the_prediction_is_within_ten_percent_or_100_mb(
    rows_file: Path, mode: str, workers: int
) -> None:
    (found,), expected = (
        measured(rows_file, mode, workers, (24,), rows=15_000),
        predicted(rows_file, mode, workers, 24),
    )
    assert abs(found - expected) <= max(0.1 * found, 100e6), (
        f"{mode}: predicted {expected}, measured {found}"
    )


@pytest.fixture(scope="module")
def wide_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty columns in row groups of a hundred rows: footers and objects outweigh the data."""
    path = tmp_path_factory.mktemp("wide") / "wide.parquet"
    columns = {
        f"c{n}": [f"{row} text" for row in range(40_000)] if n % 2 else range(40_000)
        for n in range(39)
    }
    prompts = [f"{row}: prompt" for row in range(40_000)]
    pq.write_table(pa.table({"prompt": prompts, **columns}), path, row_group_size=100)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["row-groups", "table", "mmap"])
def test_many_columns_in_small_row_groups_are_predicted_too(wide_file: Path, mode: str) -> None:
    (found,), expected = (
        measured(wide_file, mode, 2, (24,), rows=60_000),
        predicted(wide_file, mode, 2, 24),
    )
    assert abs(found - expected) <= max(0.1 * found, 100e6), (
        f"{mode}: predicted {expected}, measured {found}"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "workers"), [("row-groups", 0), ("row-groups", 2), ("mmap", 2), ("ultra", 2)]
)
def test_growth_with_the_batch_is_within_5_mb(short_rows: Path, mode: str, workers: int) -> None:
    """Batches 32 times as large, from as many rows. The first workers of a process are not those compared."""
    _, small, large = measured(short_rows, mode, workers, (8, 8, 256), rows=10_000)
    expected_small, expected_large = (
        predicted(short_rows, mode, workers, batch) for batch in (8, 256)
    )
    growth, expected_growth = large - small, expected_large - expected_small
    assert abs(growth - expected_growth) <= 5e6, (
        f"{mode}: growth {growth}, predicted {expected_growth}"
    )


def test_a_family_counts_shared_memory_that_only_a_descriptor_holds() -> None:
    before = family_use()
    descriptor = os.memfd_create("not shm")
    os.close(descriptor)
    path = f"/dev/shm/vramcast-test-{os.getpid()}"
    with open(path, "wb+") as file:
        os.unlink(path)
        file.write(bytes(8 * MiB))
        file.flush()
        assert family_use().shm_bytes - before.shm_bytes == 8 * MiB


FORK = f"""
import json, mmap, os
from dataclasses import asdict
from vramcast.host.processes import family_use
held = mmap.mmap(-1, {64 * MiB})
held.write(b"x" * {64 * MiB})
before = family_use()
reader, writer = os.pipe()
pid = os.fork()
if pid == 0:
    os.close(writer)
    os.read(reader, 1)
    os._exit(0)
during = family_use()
os.close(writer)
os.waitpid(pid, 0)
print(json.dumps([asdict(before), asdict(during)]))
"""


def test_a_family_counts_a_forks_pages_once() -> None:
    """In a small process: one that holds gigabytes of objects copies pages when it collects garbage beside its fork."""
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True)
    before, during = (HostUse(**use) for use in json.loads(done.stdout))
    assert before.total_bytes > 64 * MiB
    assert (before.processes, during.processes) == (1, 2)
    assert during.total_bytes - before.total_bytes < 16 * MiB
