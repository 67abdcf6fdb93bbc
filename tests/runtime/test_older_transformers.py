"""The runtime pieces and a small trace with the oldest transformers that is declared, and with the last before 5.

The libraries of each are installed beside torch, never instead of it, into build/environments, from the lists in
tests/runtime/environments; the first run needs the package registry.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from vramcast.accuracy.environments import environment

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
OLDEST, LAST_OF_4 = "4.45.0", "4.57.6"
PIECES = (
    "test_moe.py",
    "test_reference.py",
    "test_edit.py",
    "test_graph_cut.py",
    "test_monitor.py",
)


def run(version: str, *arguments: str) -> str:
    """Python with that transformers before the installed one; what it says, after a good end."""
    folder = environment(f"transformers-{version}", FOLDER, ROOT / "build" / "environments")
    paths = os.pathsep.join((str(folder), str(ROOT / "src")))
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    ended = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=900, check=False,
        env={**variables, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-3000:]
    return ended.stdout + ended.stderr


def test_the_oldest_transformers_is_the_declared_one():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (declared,) = [
        each
        for each in project["optional-dependencies"]["trace"]
        if each.startswith("transformers")
    ]
    assert f"{declared}.0" == f"transformers>={OLDEST}"


@pytest.mark.slow
@pytest.mark.parametrize("version", [OLDEST, LAST_OF_4])
def test_the_runtime_pieces_pass_their_tests(version):
    said = run(
        version, "-c", "import transformers, torch; print(transformers.__version__, torch.__file__)"
    )
    assert said.startswith(version)
    assert "environments" not in said.split()[1]
    tests = [str(FOLDER / name) for name in PIECES]
    assert " passed" in run(
        version, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", *tests
    )


@pytest.mark.slow
@pytest.mark.parametrize("version", [OLDEST, LAST_OF_4])
def test_a_trace_is_what_was_predicted_for_that_version(version):
    said = run(
        version,
        "-m",
        "vramcast",
        "trace",
        str(FOLDER / "monitored_gpt2.py"),
        "--gpu",
        "rtx3060",
        "--steps",
        "4",
    )
    lines = re.findall(
        r"^cuda:0, (.+): predicted ([\d.]+) GiB, observed ([\d.]+) GiB", said, flags=re.MULTILINE
    )
    assert len(lines) == 7, said
    for name, predicted, observed in lines:
        assert float(observed) == pytest.approx(float(predicted), rel=0.01), name
