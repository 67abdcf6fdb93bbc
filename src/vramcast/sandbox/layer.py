"""The scratch folder of one traced run: where it is, what was changed in it, keeping it, removing it.

Knows nothing of how changes get there. A pair of folders (lower: the user's, upper: the changes) tells them:

    in upper                           what happened
    a file that lower has not          written
    a file that lower has              replaced
    a character device 0:0             deleted, with all that is below it
    a folder marked opaque             what lower has in it and upper has not was deleted
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from vramcast.errors import InputError

PREFIX = "vramcast-scratch-"
_LOCK = "in-use"
_SECONDS_TO_LOCK = 60  # a folder of that age without a lock is one whose removal was cut short
_LAYERS = "layers.json"
_DELETED_LIST = "deleted.txt"  # of the guard, which cannot make devices
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")
_BYTE_CODE = "__pycache__"  # Python's own, no output of a script
_COPIED_AT_ONCE = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A folder of the user's and where changes to it go."""

    lower: str
    upper: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Paths as the script knows them."""

    written: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()


class Scratch:
    """A folder that holds a lock for as long as its run lasts."""

    def __init__(self, parent: str) -> None:
        self.path = tempfile.mkdtemp(prefix=PREFIX, dir=parent)
        self._lock = open(os.path.join(self.path, _LOCK), "wb")  # noqa: SIM115  # held until remove()
        with contextlib.suppress(OSError):
            _lock(self._lock)

    def remove(self) -> None:
        _remove_tree(self.path)
        self._lock.close()


def remove_abandoned(parent: str) -> None:
    """Scratch folders of runs that were killed together with the process that would have removed them."""
    for path in Path(parent).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if (
                not (path / _LOCK).exists()
                and time.time() - path.stat().st_mtime > _SECONDS_TO_LOCK
            ):
                _remove_tree(str(path))
            with open(path / _LOCK, "rb") as lock:
                _lock(lock)
                _remove_tree(str(path))


def _lock(file: IO[bytes]) -> None:
    """Raises OSError where another process holds the lock, or where there are no such locks."""
    if os.name == "nt":
        raise OSError("no advisory locks here")
    import fcntl

    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _remove_tree(path: str) -> None:
    """Also what a script, or overlayfs, made unreadable."""
    for folder, folders, _ in os.walk(path):
        for name in folders:
            with contextlib.suppress(OSError):
                if not os.path.islink(os.path.join(folder, name)):
                    os.chmod(os.path.join(folder, name), 0o700)
    shutil.rmtree(path, ignore_errors=True)


def write_layers(scratch: str, layers: list[Layer]) -> None:
    """For the process that watches: which folder's changes are where."""
    with open(os.path.join(scratch, _LAYERS), "w", encoding="utf-8") as file:
        json.dump([[layer.lower, layer.upper] for layer in layers], file)


def read_layers(scratch: str) -> list[Layer]:
    """None where the run ended before its protection was on."""
    try:
        with open(os.path.join(scratch, _LAYERS), encoding="utf-8") as file:
            return [Layer(lower=lower, upper=upper) for lower, upper in json.load(file)]
    except FileNotFoundError:
        return []


def note_deleted(upper: str, path: str) -> None:
    with open(
        os.path.join(os.path.dirname(upper), _DELETED_LIST), "a", encoding="utf-8"
    ) as journal:
        journal.write(json.dumps(path) + "\n")


def find_changes(layers: list[Layer]) -> Changes:
    written: list[str] = []
    replaced: list[str] = []
    deleted: list[str] = []
    for layer in layers:
        for path, upper in _walk(layer):
            if _is_whiteout(upper):
                deleted += _files_of(path)
            elif not os.path.isdir(upper) or os.path.islink(upper):
                (replaced if os.path.lexists(path) else written).append(path)
            elif _is_opaque(upper):
                deleted += [
                    file
                    for file in _files_of(path)
                    if not os.path.lexists(upper + file[len(path) :])
                ]
        deleted += _listed_as_deleted(layer)
    return Changes(
        written=tuple(sorted(written)),
        replaced=tuple(sorted(replaced)),
        deleted=tuple(sorted(set(deleted))),
    )


def _walk(layer: Layer) -> Iterator[tuple[str, str]]:
    """Everything in the upper folder, by its path in the lower one and its own."""
    for folder, folders, files in os.walk(layer.upper):
        if _BYTE_CODE in folders:
            folders.remove(_BYTE_CODE)
        for name in (*folders, *files):
            upper = os.path.join(folder, name)
            yield os.path.join(layer.lower, os.path.relpath(upper, layer.upper)), upper


def _is_whiteout(path: str) -> bool:
    seen = os.lstat(path)
    return stat.S_ISCHR(seen.st_mode) and seen.st_rdev == 0


def _is_opaque(path: str) -> bool:
    for name in _OPAQUE:
        with contextlib.suppress(OSError):
            if os.getxattr(path, name) == b"y":
                return True
    return False


def _files_of(path: str) -> list[str]:
    """The file, or all files in the folder."""
    if not os.path.isdir(path) or os.path.islink(path):
        return [path]
    return [
        os.path.join(folder, name)
        for folder, _, files in os.walk(path)
        for name in files
        if os.path.basename(folder) != _BYTE_CODE
    ]


def _listed_as_deleted(layer: Layer) -> list[str]:
    journal = os.path.join(os.path.dirname(layer.upper), _DELETED_LIST)
    if not os.path.exists(journal):
        return []
    with open(journal, encoding="utf-8") as lines:
        paths = {json.loads(line) for line in lines}
    return [
        file
        for path in paths
        for file in _files_of(path)
        if not os.path.lexists(layer.upper + file)
    ]


def check_can_keep(target: str) -> None:
    """A folder to keep files in must be new or empty: nothing that exists is mixed with them."""
    if os.path.lexists(target) and not (os.path.isdir(target) and not os.listdir(target)):
        raise InputError(
            f"--keep-files {target}: exists and is not an empty folder. Name a new one."
        )


def keep_files(layers: list[Layer], changes: Changes, target: str) -> None:
    """The changes as files below `target`, each under its whole path, and a list of what was deleted."""
    os.makedirs(target, exist_ok=True)
    uppers = {layer.lower: layer.upper for layer in layers}
    for path in (*changes.written, *changes.replaced):
        lower = max((folder for folder in uppers if _is_below(folder, path)), key=len)
        copy = target + path
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        _copy_with_holes(os.path.join(uppers[lower], os.path.relpath(path, lower)), copy)
    listed = {"written": changes.written, "replaced": changes.replaced, "deleted": changes.deleted}
    Path(target, "changes.json").write_text(
        json.dumps(listed, indent=1, ensure_ascii=False), encoding="utf-8"
    )


def _is_below(folder: str, path: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def _copy_with_holes(source: str, target: str) -> None:
    """Checkpoints of a trace are mostly holes: sizes of gigabytes that take no room."""
    if not os.path.isfile(source) or os.path.islink(source):
        if os.path.islink(source):
            os.symlink(os.readlink(source), target)
        return
    with open(source, "rb") as read, open(target, "wb") as write:
        size = os.fstat(read.fileno()).st_size
        for start, end in _parts_with_data(read.fileno(), size):
            for offset in range(start, end, _COPIED_AT_ONCE):
                write.seek(offset)
                write.write(os.pread(read.fileno(), min(_COPIED_AT_ONCE, end - offset), offset))
        write.truncate(size)
    shutil.copystat(source, target)


def _parts_with_data(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    end = 0
    while end < size:
        try:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError:  # nothing but a hole until the end
            return
        end = os.lseek(descriptor, start, os.SEEK_HOLE)
        yield start, end
