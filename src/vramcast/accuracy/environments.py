"""Folders with the libraries of a measured run's time, to go before the installed ones; torch stays.

A row names its environment; `environments/<name>.txt` beside the rows pins what is in it, every package by name:
nothing else is installed, because a library that asks for torch must not bring another one. Installed on first use, and
again when the list has changed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from vramcast.errors import InputError

LISTS = "environments"  # beside the rows
INSTALLED_LIST = "installed.txt"


def environment(name: str, rows_folder: Path, environments: Path) -> Path:
    """The folder with those packages, made where it is missing."""
    wanted = requirements(name, rows_folder).read_text(encoding="utf-8")
    target = environments.resolve() / name
    written = target / INSTALLED_LIST
    if written.is_file() and written.read_text(encoding="utf-8") == wanted:
        return target
    shutil.rmtree(target, ignore_errors=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(target),
    ]
    listed = str(requirements(name, rows_folder))
    ended = subprocess.run([*command, "-r", listed], capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise InputError(f"{listed} could not be installed: {ended.stderr.strip()[-400:]}")
    written.write_text(wanted, encoding="utf-8")
    return target


def requirements(name: str, rows_folder: Path) -> Path:
    path = rows_folder / LISTS / f"{name}.txt"
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in path.parent.glob("*.txt"))) or "none"
        raise InputError(f"no environment {name!r}: {path} is missing. Known: {known}.")
    return path
