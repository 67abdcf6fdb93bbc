"""Every piece under torchrun: DDP and FSDP2 on two and four gloo processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_every_piece_agrees_with_one_process_under_torchrun(world):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={world}",
        "ranks_job.py",
    ]
    done = subprocess.run(
        command,
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.strip().splitlines()[-1])
    assert report["world"] == world
    assert report["moe ddp"] <= 1e-5
    assert report["moe fsdp2"] <= 1e-5
    assert report["one pass ddp"] <= 1e-5
    assert report["one pass fsdp2"] <= 1e-5
    assert report["dtype"] == "torch.bfloat16"
    assert report["edit ddp"] <= 1e-5
    assert report["edit fsdp2"] <= 1e-5
    assert report["reference ddp"] == pytest.approx(report["reference fsdp2"], rel=1e-5)
    # Policy and reference are equal at the start: -(2/β)·log(1/2).
    assert report["reference ddp"] == pytest.approx(20 * 0.693147, rel=1e-4)
    # The most cautious prediction is the last rank's, and rank 0 runs out above 5.
    assert report["batch"] == ([5, 5] if world == 2 else [4, 4])
    expected = 100 if world == 2 else 400
    assert report["metrics"]["memory/alloc_max"] == expected
    assert report["metrics"]["memory/res_max"] == 2 * expected
