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


PYTHON = (sys.executable,)
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2")
ACCELERATE = (sys.executable, "-m", "accelerate.commands.launch", "--main_process_port=0")


def start(
    folder: Path, launcher: tuple[str, ...], *options: str
) -> subprocess.CompletedProcess[str]:
    """With a home of its own: a configuration that somebody made with `accelerate config` must not decide."""
    command = [
        *launcher,
        str(EXAMPLE),
        "--data",
        str(folder / "chat.parquet"),
        "--generate",
        "400",
        *options,
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HOME": str(folder / "home")}
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)


def run(folder: Path, *options: str, launcher: tuple[str, ...] = PYTHON) -> str:
    done = start(folder, launcher, *options)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def check(output: str, rows: int) -> None:
    assert f"{rows} rows over all ranks" in output
    first, last = map(float, re.findall(r"loss ([0-9.]+) -> ([0-9.]+)", output)[0])
    assert last < first
    predicted, measured = map(
        parse_bytes, re.findall(r"predicted ([0-9.]+ ..B), measured ([0-9.]+ ..B)", output)[0]
    )
    assert abs(predicted - measured) <= max(0.1 * measured, 100e6)


@pytest.mark.slow
def test_one_process_trains_every_row_and_memory_is_as_predicted(tmp_path: Path) -> None:
    output = run(tmp_path, "--max-length", "64")
    check(output, rows=400)
    assert "189,440 parameters, 98,880 trained, adafactor" in output


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [TORCHRUN, (*ACCELERATE, "--multi_gpu", "--num_processes=2")],
    ids=["torchrun", "accelerate"],
)
def test_two_processes_share_the_rows(tmp_path: Path, launcher: tuple[str, ...]) -> None:
    output = run(tmp_path, "--max-length", "64", "--optimizer", "adamw", launcher=launcher)
    check(output, rows=400)
    assert "adamw; 2 rank(s)" in output
    assert "25 batches per rank" in output


@pytest.mark.slow
def test_accelerates_cpu_flag_with_two_processes_is_explained(tmp_path: Path) -> None:
    done = start(tmp_path, (*ACCELERATE, "--cpu", "--num_processes=2"))
    assert done.returncode != 0
    assert "accelerate launch --multi_gpu --num_processes 2" in done.stderr


@pytest.mark.slow
def test_a_stopped_run_goes_on_with_the_rows_it_had_not_seen(tmp_path: Path) -> None:
    options = ("--max-length", "64", "--state", str(tmp_path / "place"))
    assert "160 rows" in run(tmp_path, *options, "--steps", "20")
    assert "240 rows" in run(tmp_path, *options)
