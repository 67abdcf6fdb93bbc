"""A disk that gets full while a cache or a file is written: one line, and nothing half-written that looks whole."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from full_disk_job import write_source

JOB = Path(__file__).with_name("full_disk_job.py")
RANKS_JOB = Path(__file__).with_name("full_disk_ranks_job.py")
MOUNT = 'mount -t tmpfs -o size=1m none "$1" && shift && exec "$@"'


def can_mount(place: Path) -> bool:
    """A file system of one's own, in a namespace of one's own: as root, or where users may have namespaces."""
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "-Urm", "sh", "-c", MOUNT, "sh", str(place), "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("way", ["limit", "small file system"])
def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(tmp_path, way):
    place, source = tmp_path / "place", tmp_path / "source.parquet"
    place.mkdir()
    write_source(source)
    command = [sys.executable, str(JOB), str(place), way.partition(" ")[0], str(source)]
    if way != "limit":
        if not can_mount(place):
            pytest.skip("no file system can be mounted here")
        command = ["unshare", "-Urm", "sh", "-c", MOUNT, "sh", str(place), *command]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    for action in ("no room to begin", "precompute", "rewrite", "map"):
        assert found[action] is not None, action
        assert "\n" not in found[action]
    assert "cannot be written" in found["precompute"]
    assert "finished batches are kept" in found["precompute"]
    assert "cannot be written" in found["rewrite"]
    assert "another disk" in found["rewrite"]
    assert found["left by the beginning"] == []
    assert (
        found["left by precompute"]
        == found["left by rewrite"]
        == found["left by map"]
        == ["rank-00000.sqlite"]
    )
    # Whole batches of 64 samples, less than all; what is missing is refused, and computed when there is room again.
    assert 0 < found["samples kept"] < 60 * 64
    assert found["samples kept"] % 64 == 0
    assert "samples are not in the reference cache" in found["not all"]
    assert found["with room"] == [None, None]
    assert found["forwards with room"] == 60 - found["samples kept"] // 64
    assert found["rows"] == 40_000


@pytest.mark.slow
def test_every_rank_is_told_that_the_disk_of_one_is_full(tmp_path):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        str(RANKS_JOB),
        str(tmp_path),
    ]
    variables = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=variables
    )
    assert done.returncode == 0, done.stderr[-3000:]
    with_room, full = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, 1))
    assert "rank-00001.sqlite: cannot be written" in full["full"]
    assert "finished batches are kept" in full["full"]
    assert with_room["full"] == f"rank 1 failed: {full['full']}"
    assert "\n" not in full["full"]
    assert with_room["with room"] is None
    assert full["with room"] is None
