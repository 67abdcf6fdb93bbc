"""The wheel builds, carries its data and works in a fresh environment, far from the repository."""

from __future__ import annotations

import json
import shutil
import site
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "vramcast"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that no build directory of the working tree leaks into it."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", copy / "src", ignore=ignored)
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            copy / "dist",
            copy,
        ],
        check=True,
    )
    (built,) = (copy / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel. Its dependencies are borrowed: a line in a .pth file adds a folder to the
    path without running that folder's own .pth files, so the editable install of the repository stays out."""
    home = tmp_path_factory.mktemp("venv")
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel], check=True
    )
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()), encoding="utf-8")
    return home


def run(home: Path, *arguments: str) -> str:
    command = [str(home / "bin" / arguments[0]), *arguments[1:]]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, check=True)
    return done.stdout


def test_the_wheel_carries_every_file_of_the_package(wheel: Path) -> None:
    carried = set(zipfile.ZipFile(wheel).namelist())
    files = {
        path.relative_to(ROOT / "src").as_posix() for path in PACKAGE.rglob("*") if path.is_file()
    }
    files = {name for name in files if "__pycache__" not in name}
    assert files.difference(carried) == set()


def test_it_is_the_installed_package_that_runs(installed: Path) -> None:
    where = run(installed, "python", "-c", "import vramcast; print(vramcast.__file__)").strip()
    assert Path(where).is_relative_to(installed)


def test_the_commands_work_outside_of_the_repository(installed: Path) -> None:
    assert "H100 SXM 80GB" in run(installed, "vramcast", "gpus", "h100")
    data = json.loads(run(installed, "vramcast", "params", "phi-3-mini", "--json"))
    assert data["model"]["params_total"] == 3_821_079_552
    assert "qwen2.5-7b" in run(installed, "vramcast", "models")
