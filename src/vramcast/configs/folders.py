"""The files a user gave, and the paths that stand inside them.

A path inside a file is followed relative to it, or to a folder above it, if what it means lies within the folders of
the given files (symbolic links resolved); or it means one of the given files, by name. Anything else is not opened, and
the report says so.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from vramcast.errors import InputError
from vramcast.files import read_text
from vramcast.units import MiB

MOST_BYTES = 2 * MiB
MOST_ABOVE = 6  # folders above a file from which its paths may be meant
MOST_NOTEBOOK_BYTES = 32 * MiB


class Folders:
    """`texts` stand in for files on disk: a changed file is read before it is written."""

    def __init__(self, given: Sequence[Path], texts: Mapping[Path, str] | None = None) -> None:
        self.given = tuple(given)
        self.texts = dict(texts or {})
        self.roots = {_folder(path) for path in given}

    def read(self, path: Path) -> str:
        if path in self.texts:
            return self.texts[path]
        limit = MOST_NOTEBOOK_BYTES if path.suffix == ".ipynb" else MOST_BYTES
        return read_text(path, limit)

    def find(self, named: str, within: Path) -> Path | None:
        """The file that a path inside `within` means; None: it is not here, or outside of the given folders."""
        if not named or "$" in named or "\n" in named or len(named) > 1000:
            return None
        given = self._among_given(named)
        if given is not None:
            return given
        path = within.parent / named
        if self._is_here(path):
            return path
        return None if Path(named).is_absolute() else self._from_above(named, within)

    def _from_above(self, named: str, within: Path) -> Path | None:
        """A script is started from its repository's root: `finetune/ds_config.json` in finetune/train.sh."""
        try:
            folders = list(within.parent.resolve().parents)[:MOST_ABOVE]
        except (OSError, RuntimeError, ValueError):
            return None
        for folder in folders:
            if self._is_here(folder / named):
                return Path(os.path.relpath(folder / named))
        return None

    def _is_here(self, path: Path) -> bool:
        """Does it exist within the given folders, symbolic links resolved?"""
        try:
            real = path.resolve()
            return real.exists() and any(real.is_relative_to(root) for root in self.roots)
        except (OSError, RuntimeError, ValueError):
            return False

    def is_outside(self, named: str, within: Path) -> bool:
        """Is there a file that is not followed?"""
        try:
            return (within.parent / named).exists() and self.find(named, within) is None
        except (OSError, ValueError):
            return False

    def _among_given(self, named: str) -> Path | None:
        name = PurePosixPath(named).name
        return next((path for path in self.given if path.name == name and path.is_file()), None)


def real_path(path: Path) -> Path:
    """Without symbolic links; a ring of them is a mistake of the user's."""
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None


def _folder(path: Path) -> Path:
    try:
        return real_path(path if path.is_dir() else path.parent)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
