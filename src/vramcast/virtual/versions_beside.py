"""Which versions of libraries decided a trace, and which ones the files beside the script ask for.

A trace runs with what is installed. A `uv.lock` beside the script that pins transformers 4.57.6 means another training
step than that of an installed 5.23, so the difference is told. Looked at are the script's folder and those above it, up
to the root of its repository; the first folder that has such a file answers. Files are read, never followed.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from vramcast.errors import InputError
from vramcast.files import read_text

# Distributions that decide a training step, and the modules by which they are imported.
LIBRARIES = {
    "torch": "torch",
    "transformers": "transformers",
    "accelerate": "accelerate",
    "peft": "peft",
    "trl": "trl",
    "bitsandbytes": "bitsandbytes",
    "liger-kernel": "liger_kernel",
    "deepspeed": "deepspeed",
    "lightning": "lightning",
    "pytorch-lightning": "pytorch_lightning",
}
MOST_BYTES = 16 << 20  # of a lock file
MOST_FOLDERS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A file asks for a library in some versions."""

    file: Path
    requirement: Requirement


def deciding_versions() -> dict[str, str]:
    """Of the libraries that the traced script has imported."""
    found = {}
    for library, module in LIBRARIES.items():
        try:
            if module in sys.modules:
                found[library] = version(library)
        except PackageNotFoundError:
            continue
    return found


def explain_versions(installed: dict[str, str]) -> str:
    return f"decided by {', '.join(f'{library} {number}' for library, number in installed.items())}"


def differences(folder: Path, installed: dict[str, str]) -> list[str]:
    """One line for each library that is installed in another version than a file beside the script asks for."""
    lines = {}
    for wanted in wanted_beside(folder):
        library = canonicalize_name(wanted.requirement.name)
        here = installed.get(library)
        if here is None or library in lines:
            continue
        if not wanted.requirement.specifier.contains(here, prereleases=True):
            lines[library] = (
                f"{wanted.file.name} asks for {wanted.requirement}, but {library} {here} is installed here and decided "
                "this trace"
            )
    return list(lines.values())


def wanted_beside(folder: Path) -> list[Wanted]:
    """What the nearest folder with such files asks for, locks first."""
    for place in [folder, *folder.parents][:MOST_FOLDERS]:
        found = [wanted for file, read in _files_of(place) for wanted in _read(file, read)]
        if found or (place / ".git").exists():
            return found
    return []


Reader = Callable[[str], Iterator[str]]


def _files_of(folder: Path) -> Iterator[tuple[Path, Reader]]:
    for pattern, reader in READERS.items():
        for file in sorted(folder.glob(pattern)):
            if file.is_file():
                yield file, reader


def _read(file: Path, reader: Reader) -> Iterator[Wanted]:
    """Of the libraries that matter. What cannot be read asks for nothing."""
    try:
        lines = list(reader(read_text(file, MOST_BYTES)))
    except (InputError, ValueError, TypeError, AttributeError, yaml.YAMLError):
        return
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        matters = canonicalize_name(requirement.name) in LIBRARIES and requirement.specifier
        if matters and (requirement.marker is None or requirement.marker.evaluate()):
            yield Wanted(file=file, requirement=requirement)


def _requirements(text: str) -> Iterator[str]:
    for line in text.splitlines():
        words = line.partition(" #")[0].partition(" --")[0].strip()
        if words and not words.startswith(("#", "-")):
            yield words.rstrip("\\").strip()


def _lock(text: str) -> Iterator[str]:
    """uv, poetry and pdm: a table per package."""
    for package in tomllib.loads(text).get("package", ()):
        yield f"{package.get('name')}=={package.get('version')}"


def _pipfile_lock(text: str) -> Iterator[str]:
    for name, package in json.loads(text).get("default", {}).items():
        yield f"{name}{package.get('version', '')}"


def _pyproject(text: str) -> Iterator[str]:
    yield from map(str, tomllib.loads(text).get("project", {}).get("dependencies", ()))


def _conda(text: str) -> Iterator[str]:
    """`transformers=4.57` is conda's, `pip:` has lines of pip."""
    for entry in yaml.safe_load(text).get("dependencies", ()):
        if isinstance(entry, dict):
            yield from map(str, entry.get("pip", ()))
        else:
            yield _from_conda(entry)


def _from_conda(entry: Any) -> str:
    name, sign, number = str(entry).partition("=")
    if not sign or number.startswith("=") or name[-1:] in "<>!~":
        return str(entry)
    return f"{name}=={number.partition('=')[0]}.*"


READERS: dict[str, Reader] = {
    "uv.lock": _lock,
    "poetry.lock": _lock,
    "pdm.lock": _lock,
    "Pipfile.lock": _pipfile_lock,
    "requirements*.txt": _requirements,
    "environment.y*ml": _conda,
    "pyproject.toml": _pyproject,
}
