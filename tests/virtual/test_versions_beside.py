"""A trace says which versions decided it, and where the files beside the script ask for others."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from vramcast.virtual.versions_beside import (
    deciding_versions,
    differences,
    explain_versions,
    wanted_beside,
)

INSTALLED = {"torch": "2.13.0+cpu", "transformers": "5.23.0", "peft": "0.21.2"}
FILES = {
    "requirements.txt": "# pinned\ntransformers==4.57.6  # the last of the 4s\n-r others.txt\n",
    "requirements-train.txt": "transformers[torch]>=4.40,<5 --hash=sha256:00\nnumpy==1.0\n",
    "uv.lock": '[[package]]\nname = "transformers"\nversion = "4.57.6"\n[[package]]\nname = "numpy"\nversion = "1.0"\n',
    "Pipfile.lock": json.dumps({"default": {"transformers": {"version": "==4.57.6"}}}),
    "environment.yml": "dependencies:\n- python=3.11\n- transformers=4.57\n- pip\n",
    "environment.yaml": "dependencies:\n- pip:\n  - transformers~=4.57.0\n",
    "pyproject.toml": '[project]\ndependencies = ["transformers<5"]\n',
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_asks_for_another_version(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(FILES[name])
    (line,) = differences(tmp_path, INSTALLED)
    assert line.startswith(f"{name} asks for transformers")
    assert line.endswith("but transformers 5.23.0 is installed here and decided this trace")


@pytest.mark.parametrize(
    "text",
    [
        "transformers>=4.40\n",
        "torch==2.13.0\n",  # the local part says nothing
        "transformers\n",
        "trl==0.9.6\n",  # not imported
        'transformers<5; python_version < "3"\n',
        "transformers @ https://example.org/transformers.whl\n",
        "???\n",
        "",
    ],
)
def test_a_file_that_asks_for_nothing_else(tmp_path: Path, text: str) -> None:
    (tmp_path / "requirements.txt").write_text(text)
    assert differences(tmp_path, INSTALLED) == []


def test_the_nearest_folder_answers_up_to_the_repository(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("transformers==4.40.0\n")
    root, scripts = tmp_path / "project", tmp_path / "project" / "scripts"
    scripts.mkdir(parents=True)
    assert [str(each.requirement) for each in wanted_beside(scripts)] == ["transformers==4.40.0"]
    (root / ".git").mkdir()
    assert wanted_beside(scripts) == []
    (root / "requirements.txt").write_text("transformers==4.50.0\n")
    assert [str(each.requirement) for each in wanted_beside(scripts)] == ["transformers==4.50.0"]


@pytest.mark.parametrize("text", ["[[package]\n", "package = 3\n", "\0"])
def test_a_broken_lock_asks_for_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "uv.lock").write_text(text)
    assert wanted_beside(tmp_path) == []


def test_what_is_imported_decided() -> None:
    assert "torch" in sys.modules or "torch" not in deciding_versions()
    import torch  # noqa: F401

    assert deciding_versions()["torch"] == version("torch")
    assert (
        explain_versions({"torch": "2.13.0", "peft": "0.21.2"})
        == "decided by torch 2.13.0, peft 0.21.2"
    )
