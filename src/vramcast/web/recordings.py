"""Traces and memory snapshots that a page sends, as timelines. They are kept under the hash of their content.

A snapshot is read without unpickling, a trace is JSON: nothing of a file runs. What is kept is bounded: the oldest
goes first.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from vramcast.errors import InputError, VramcastError
from vramcast.snapshot.analysis import Analysis, analyse
from vramcast.snapshot.reader import read_snapshot
from vramcast.snapshot.record import Snapshot
from vramcast.timelines.of_snapshot import timeline_of_snapshot
from vramcast.timelines.of_trace import timeline_of_trace
from vramcast.timelines.record import Timeline
from vramcast.traces.record import read as read_trace
from vramcast.units import GiB, MiB
from vramcast.web.given import Place, is_inside, plain_name

MOST_BYTES = 256 * MiB  # of one file
MOST_KEPT_BYTES = 1 * GiB
MOST_UNPACKED_BYTES = 512 * MiB  # of a trace, which is compressed
KEPT = "kept"
GZIP = b"\x1f\x8b"
TOKEN = re.compile(r"[0-9a-f]{40}")


class Keeper:
    """Takes a file part by part. `close` says under which name it is found again."""

    def __init__(self, place: Place, name: str) -> None:
        self._folder, self._name = place.folder / KEPT, plain_name(name)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._path = self._folder / f"coming-{os.urandom(12).hex()}"
        self._digest, self._size = hashlib.sha256(), 0

    def add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > MOST_BYTES:
            raise InputError(f"{self._name}: more than {MOST_BYTES:,} B")
        self._digest.update(part)
        with self._path.open("ab") as file:
            file.write(part)

    def close(self) -> str:
        if not self._size:
            raise InputError(f"{self._name} is empty")
        token = self._digest.hexdigest()[:40]
        own = self._folder / token
        own.mkdir(exist_ok=True)
        for known in own.iterdir():  # the same content under another name
            known.unlink()
        os.replace(self._path, own / self._name)
        _forget_oldest(self._folder, token)
        return token

    def discard(self) -> None:
        """What has come so far, where `close` has not kept it."""
        self._path.unlink(missing_ok=True)


def _forget_oldest(folder: Path, newest: str) -> None:
    """Of what was kept, until the rest is small enough."""
    found = []
    for own in folder.iterdir():
        if TOKEN.fullmatch(own.name):
            found.append((own.stat().st_mtime, own, sum(f.stat().st_size for f in own.iterdir())))
    left = sum(size for _, _, size in found)
    for _, own, size in sorted(found):
        if left <= MOST_KEPT_BYTES:
            return
        if own.name != newest:
            shutil.rmtree(own, ignore_errors=True)
            left -= size


def find_recording(place: Place, said: str) -> Path:
    """A kept file by its token, or a file below a folder that was named on the command line."""
    if TOKEN.fullmatch(said):
        own = place.folder / KEPT / said
        for path in own.iterdir() if own.is_dir() else ():
            return path
        raise InputError("the file is no longer kept: drop it again")
    if is_inside(said, place.roots):
        return Path(said).expanduser().resolve()
    raise InputError(
        f"{said[:200]}: drop the file here; files of the machine that answers are not read"
    )


def is_snapshot(path: Path) -> bool:
    """Else it is a trace."""
    with path.open("rb") as file:
        return file.read(2) != GZIP


def recording_timeline(place: Place, said: str) -> Timeline:
    with _opened(place, said) as path:
        if is_snapshot(path):
            snapshot, device = _snapshot(path)
            return timeline_of_snapshot(snapshot, device, path.name)
        return timeline_of_trace(read_trace(path, MOST_UNPACKED_BYTES))


def recording_analysis(place: Place, said: str) -> Analysis:
    with _opened(place, said) as path:
        if not is_snapshot(path):
            raise InputError(
                f"{path.name} is a trace: it says what a run takes, not why one failed"
            )
        snapshot, device = _snapshot(path)
        return analyse(snapshot, device, with_replay=False)


@contextmanager
def _opened(place: Place, said: str) -> Iterator[Path]:
    """What cannot be read is called by its own name, not by the folder where it is kept."""
    path = find_recording(place, said)
    try:
        yield path
    except VramcastError as error:
        raise type(error)(str(error).replace(f"{path.parent}/", "")) from None


@lru_cache(maxsize=2)
def _snapshot(path: Path) -> tuple[Snapshot, int]:
    """And its fullest device."""
    from vramcast.diagnose.readers.snapshot import fullest_device

    snapshot = read_snapshot(path)
    if not snapshot.devices():
        raise InputError(f"{path.name}: the snapshot is empty: no segments and no events")
    return snapshot, fullest_device(snapshot)
