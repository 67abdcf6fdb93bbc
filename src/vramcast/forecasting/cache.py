"""Traces of jobs, kept in the user's cache folder so that the second answer takes no time.

One gzipped JSON file for each, written beside its place and moved there, so that no reader sees half of one. What
cannot be read is traced again, what cannot be written is not kept; VRAMCAST_NO_CACHE=1 keeps nothing. Only files that
this module wrote are ever removed: the oldest, where all of them together are larger than a limit.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FORMAT = 1  # of what is kept
SUFFIX = ".traced-job.gz"
MOST_BYTES = 256 << 20  # of all files
OFF = "VRAMCAST_NO_CACHE"


def folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(root) / "vramcast" / "traced-jobs"


def key_of(values: Mapping[str, Any]) -> str:
    text = json.dumps([FORMAT, values], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def load(key: str) -> dict[str, Any] | None:
    if os.environ.get(OFF):
        return None
    path = folder() / f"{key}{SUFFIX}"
    try:
        found = json.loads(gzip.decompress(path.read_bytes()))
    except (OSError, ValueError, EOFError, zlib.error):
        return None
    with contextlib.suppress(OSError):
        path.touch()  # it was of use: the oldest ones go first
    return found if isinstance(found, dict) else None


def keep(key: str, found: Mapping[str, Any]) -> str:
    """The folder in which it is kept now; empty if it could not be."""
    if os.environ.get(OFF):
        return ""
    place = folder()
    text = json.dumps(found, separators=(",", ":"), ensure_ascii=False).encode()
    try:
        place.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(suffix=".part", dir=place)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(gzip.compress(text, 6, mtime=0))
            os.replace(name, place / f"{key}{SUFFIX}")
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    except OSError:
        return ""
    _remove_oldest(place)
    return str(place)


def _remove_oldest(place: Path) -> None:
    with contextlib.suppress(OSError):
        files = sorted(place.glob(f"*{SUFFIX}"), key=lambda path: path.stat().st_mtime)
        total = sum(path.stat().st_size for path in files)
        for path in files:
            if total <= MOST_BYTES:
                break
            total -= path.stat().st_size
            path.unlink()
