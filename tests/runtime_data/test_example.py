"""The low-memory trainer, run as a reader of the docs would run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from vramcast.units import parse_bytes

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_t5_low_mem.py"


def run(folder: Path, *options: str, ranks: int = 1) -> str:
    launcher = (
        [sys.executable] if ranks == 1 else [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    )
    command = [*launcher, str(EXAMPLE), "--data", str(folder / "chat.parquet"), "--generate", "400", *options]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=folder
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def check(output: str, rows: int) -> None:
    assert f"{rows} rows over all ranks" in output
    first, last = map(float, re.findall(r"loss ([0-9.]+) -> ([0-9.]+)", output)[0])
    assert last < first
    predicted, measured = map(parse_bytes, re.findall(r"predicted ([0-9.]+ ..B), measured ([0-9.]+ ..B)", output)[0])
    assert abs(predicted - measured) <= max(0.1 * measured, 100e6)


@pytest.mark.slow
def test_one_process_trains_every_row_and_memory_is_as_predicted(tmp_path: Path) -> None:
    output = run(tmp_path, "--max-length", "64")
    check(output, rows=400)
    assert "189,440 parameters, 98,880 trained, adafactor" in output


@pytest.mark.slow
def test_two_processes_share_the_rows(tmp_path: Path) -> None:
    check(run(tmp_path, "--max-length", "64", "--optimizer", "adamw", ranks=2), rows=400)


@pytest.mark.slow
def test_a_stopped_run_goes_on_with_the_rows_it_had_not_seen(tmp_path: Path) -> None:
    options = ("--max-length", "64", "--state", str(tmp_path / "place"))
    assert "160 rows" in run(tmp_path, *options, "--steps", "20")
    assert "240 rows" in run(tmp_path, *options)
