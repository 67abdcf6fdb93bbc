"""Every path that a user gives is opened here, to be read and nothing else.

Only regular files are opened: a device never ends, a pipe may never begin. What is read at once is bounded by what its
reader can need. A mistake is one line that says what the path is. Knows nothing of what the files hold.
"""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from vramcast.errors import InputError
from vramcast.units import format_bytes

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# What a path can be that is no file, and the way forward.
_OTHERS = (
    (stat.S_ISDIR, "a folder, not a file; name a file in it"),
    (stat.S_ISFIFO, "a pipe, not a file; write what it gives into one first"),
    (stat.S_ISCHR, "a device, not a file"),
    (stat.S_ISBLK, "a device, not a file"),
    (stat.S_ISSOCK, "a socket, not a file"),
)
# Without O_NONBLOCK a pipe that takes a file's place between the look and the opening would never return.
_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)
)


def open_file(path: str | Path, most_bytes: int | None = None) -> BinaryIO:
    """A regular file, open for reading; refused if it is larger than its reader allows."""
    try:
        _check_kind(
            path, os.stat(path).st_mode
        )  # before it is opened: opening some devices does something
        descriptor = os.open(path, _FLAGS)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})"
        ) from None
    try:
        found = os.fstat(descriptor)
        _check_kind(path, found.st_mode)
        if most_bytes is not None and found.st_size > most_bytes:
            raise _too_large(path, format_bytes(found.st_size), most_bytes)
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def read_bytes(path: str | Path, most_bytes: int) -> bytes:
    """All of a file. One that grows, or whose size is not known before (/proc), is held to the same limit."""
    with open_file(path, most_bytes) as file:
        try:
            data = file.read(most_bytes + 1)
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    if len(data) > most_bytes:
        raise _too_large(path, "more", most_bytes)
    return data


def read_text(path: str | Path, most_bytes: int) -> str:
    """All of a file in UTF-8, with or without a byte order mark."""
    data = read_bytes(path, most_bytes)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: not text in UTF-8 (byte {error.start:,} is {data[error.start]:#04x})"
        ) from None


class Bounded(io.RawIOBase):
    """A stream of unknown length. It ends with an error where it goes on for longer than its reader allows."""

    def __init__(self, stream: BinaryIO, name: str, most_bytes: int) -> None:
        self._stream = stream
        self._name = name
        self._most_bytes = most_bytes
        self._read_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        try:
            data = self._stream.read(len(memoryview(buffer)))
        except OSError as error:
            raise InputError(f"{self._name}: cannot be read ({error.strerror or error})") from None
        self._read_bytes += len(data)
        if self._read_bytes > self._most_bytes:
            raise _too_large(self._name, "more", self._most_bytes)
        memoryview(buffer)[: len(data)] = data
        return len(data)


def _check_kind(path: str | Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = next(
            (words for holds, words in _OTHERS if holds(mode)), "something else than a file"
        )
        raise InputError(f"{path}: {kind}")


def _too_large(path: str | Path, size: str, most_bytes: int) -> InputError:
    return InputError(
        f"{path}: {size} where at most {format_bytes(most_bytes)} are read. Is it the right file?"
    )
