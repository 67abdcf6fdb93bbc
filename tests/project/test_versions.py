"""The versions that are declared are the ones the documents name."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_python_is_the_same_everywhere() -> None:
    declared = PROJECT["requires-python"].removeprefix(">=")
    assert PYPROJECT["tool"]["ruff"]["target-version"] == "py" + declared.replace(".", "")
    for name in ("README.md", "README.zh-CN.md", "CONTRIBUTING.md"):
        assert set(re.findall(r"Python (3\.\d+)", text(name))) == {declared}, name


def test_torch_is_the_same_everywhere() -> None:
    (pinned,) = re.findall(r"^torch==(\S+)$", text("constraints.txt"), flags=re.MULTILINE)
    assert f"torch=={pinned}" in text("Makefile")
    assert f"torch {pinned}" in text("CONTRIBUTING.md")
    floors = {
        each
        for extra in ("trace", "runtime")
        for each in PROJECT["optional-dependencies"][extra]
        if "torch" in each
    }
    assert len(floors) == 1
    assert f"`{floors.pop()}`" in text("CONTRIBUTING.md")


def test_transformers_is_the_declared_one_in_the_documents() -> None:
    (declared,) = [
        each
        for each in PROJECT["optional-dependencies"]["trace"]
        if each.startswith("transformers")
    ]
    assert f"`{declared}`" in text("CONTRIBUTING.md")
