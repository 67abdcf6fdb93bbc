"""Files that are there whole or not at all, and one line when the disk is full.

In: where a file should be. Out: a temporary name beside it to write to; when the block ends well the file is flushed to
the disk and renamed, when it fails the file is removed. Relies on rename being atomic within a folder.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vramcast.errors import InputError


@contextmanager
def whole_file(path: Path, *, advice: str, partial: Path | None = None) -> Iterator[Path]:
    """`advice` ends the line that says why it could not be written; `partial` is a temporary name of the caller's."""
    partial = partial or path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with one_line(path, advice=advice):
            yield partial
            flush(partial)
            os.replace(partial, path)
            flush(path.parent)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def one_line(path: Path, *, advice: str) -> Iterator[None]:
    """What the system or SQLite says about a write that failed, with the file's name and a way forward."""
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{path}: cannot be written: {reason}. {advice}") from error


def flush(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
