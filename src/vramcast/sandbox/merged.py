"""The user's files with a run's changes laid over them, looked up in Python: what the guard shows a script.

    upper     scratch folder; holds changed and new files under their whole path: UPPER/home/me/model.pt
    deleted   paths that no longer exist for the script, though the real file is untouched

Knows paths and files, nothing of patches. Only the true functions of `os` are called here.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterable

from vramcast.sandbox.layer import note_deleted

_MOST_LINKS = 40
# The true ones: `os` has other functions while a guard is on.
true_open, true_lstat, true_stat, true_readlink = os.open, os.lstat, os.stat, os.readlink
true_mkdir, true_listdir, true_unlink, true_rmdir, true_rename = (
    os.mkdir,
    os.listdir,
    os.unlink,
    os.rmdir,
    os.rename,
)
true_chmod, true_utime, true_symlink, true_getcwd = os.chmod, os.utime, os.symlink, os.getcwd


def lexists(path: str) -> bool:
    try:
        true_lstat(path)
    except (OSError, ValueError):
        return False
    return True


def is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(true_lstat(path).st_mode)
    except (OSError, ValueError):
        return False


class MergedFiles:
    """Paths here are absolute and have no links in them, as `resolve` returns them."""

    def __init__(self, upper: str, direct: Iterable[str], layered: Iterable[str] = ()) -> None:
        """`direct`: folders written as they are (devices, the scratch folder itself), except for `layered` ones."""
        self.upper = upper
        self.untouched = True  # nothing was changed yet: the files are as the system shows them
        direct = tuple(direct)
        self._direct = frozenset(direct)
        self._below_direct = tuple(f"{folder}/" for folder in direct)
        self._below_layered = tuple(f"{folder}/" for folder in layered)
        self._below_inner = tuple(
            folder for folder in self._below_direct if folder.startswith(self._below_layered)
        )
        self._changed_folders: set[str] = set()  # that exist in the upper folder
        self._deleted: set[str] = set()
        self._folders: dict[str, str] = {}

    # -- from what a script says to a path --------------------------------------------------------------------------

    def resolve(self, path: str, *, follow: bool = True) -> str:
        """Absolute, with links followed as the script would see them."""
        folder, name = os.path.split(
            path if path.startswith("/") else os.path.join(self.current_folder(), path)
        )
        if name in ("", ".", ".."):
            return self._follow(os.path.join(folder, name))
        resolved = os.path.join(self._resolve_folder(folder), name)
        target = self._link_target(resolved) if follow else None
        return resolved if target is None else self._follow(resolved)

    def _resolve_folder(self, folder: str) -> str:
        """Remembered until the script makes a link, renames or deletes."""
        if folder not in self._folders:
            self._folders[folder] = self._follow(folder)
        return self._folders[folder]

    def forget_folders(self) -> None:
        self._folders.clear()
        self._changed_folders = {
            folder for folder in self._changed_folders if is_folder(self.upper + folder)
        }

    def _follow(self, path: str) -> str:
        pending = _parts(path)
        resolved = "/"
        links = 0
        while pending:
            part = pending.pop()
            if part == "..":
                resolved = os.path.dirname(resolved)
                continue
            candidate = os.path.join(resolved, part)
            target = self._link_target(candidate)
            if target is None:
                resolved = candidate
                continue
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if target.startswith("/"):
                resolved = "/"
            pending += _parts(target)
        return resolved

    def current_folder(self) -> str:
        return self.logical(true_getcwd())

    def _link_target(self, path: str) -> str | None:
        try:
            return true_readlink(self.find(path))
        except (OSError, ValueError):
            return None

    def logical(self, path: str) -> str:
        """A path of the upper folder as the script knows it."""
        return path[len(self.upper) :] or "/" if _is_inside(self.upper, path) else path

    def is_direct(self, path: str) -> bool:
        if path.startswith(self._below_layered):
            return path.startswith(self._below_inner)
        return path.startswith(self._below_direct) or path in self._direct

    # -- reading ----------------------------------------------------------------------------------------------------

    def find(self, path: str) -> str:
        """Where the file is that the script would see; a path that does not exist where there is none."""
        if os.path.dirname(path) not in self._changed_folders and not self._deleted:
            return path
        if self.is_direct(path):
            return path
        changed = self.upper + path
        return changed if self._is_deleted(path) or lexists(changed) else path

    def _is_deleted(self, path: str) -> bool:
        while self._deleted and path != "/":
            if path in self._deleted:
                return True
            path = os.path.dirname(path)
        return False

    def list_folder(self, path: str) -> list[str]:
        """Names in both layers, as os.listdir would give them."""
        found = self.find(path)
        if found == path:
            return [
                name for name in true_listdir(path) if os.path.join(path, name) not in self._deleted
            ]
        names = dict.fromkeys(true_listdir(found))
        if not self._is_deleted(path) and is_folder(path):
            below = true_listdir(path)
            names.update(
                dict.fromkeys(
                    name for name in below if os.path.join(path, name) not in self._deleted
                )
            )
        return list(names)

    # -- writing ----------------------------------------------------------------------------------------------------

    def prepare(self, path: str, *, keep_content: bool) -> str:
        """Where to write: the folders above exist there, and the file itself if its content is still wanted."""
        if self.is_direct(path):
            return path
        self.untouched = False
        changed = self.upper + path
        if lexists(changed):
            return changed
        self._prepare_folder(os.path.dirname(path))
        found = self.find(path)
        if keep_content and found == path and lexists(path):
            _copy_file(path, changed)
        return changed

    def _prepare_folder(self, folder: str) -> None:
        changed = self.upper + folder
        if folder in self._changed_folders:
            return
        if folder == "/" or is_folder(changed):
            self._changed_folders.add(folder)
            return
        found = self.find(folder)
        if not is_folder(found):
            number = errno.ENOTDIR if lexists(found) else errno.ENOENT
            raise OSError(number, os.strerror(number), folder)
        self._prepare_folder(os.path.dirname(folder))
        true_mkdir(changed)
        self._changed_folders.add(folder)
        seen = true_stat(found)
        true_chmod(changed, stat.S_IMODE(seen.st_mode) | stat.S_IRWXU)
        true_utime(changed, ns=(seen.st_atime_ns, seen.st_mtime_ns))

    def note_folders(self, path: str) -> None:
        """A folder that was made or moved, with all that are in it."""
        if is_folder(self.upper + path):
            self._changed_folders.add(path)
            for name in true_listdir(self.upper + path):
                self.note_folders(os.path.join(path, name))

    def prepare_tree(self, path: str) -> str:
        """A whole folder with both layers' files in the upper one, to be renamed."""
        changed = self.prepare(path, keep_content=True)
        if is_folder(self.find(path)):
            self._prepare_folder(path)
            for name in self.list_folder(path):
                self.prepare_tree(os.path.join(path, name))
        return changed

    def delete(self, path: str) -> None:
        """The script no longer sees it."""
        if self.is_direct(path):
            return
        self.untouched = False
        self.forget_folders()
        changed = self.upper + path
        if is_folder(changed):
            shutil.rmtree(changed)
        elif lexists(changed):
            true_unlink(changed)
        if lexists(path):
            self._deleted.add(path)
            note_deleted(self.upper, path)


def _parts(path: str) -> list[str]:
    """Last part first, to be taken from the end."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _is_inside(folder: str, path: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def _copy_file(source: str, target: str) -> None:
    seen = true_lstat(source)
    if stat.S_ISLNK(seen.st_mode):
        true_symlink(true_readlink(source), target)
    elif stat.S_ISDIR(seen.st_mode):
        true_mkdir(target)
        true_chmod(target, stat.S_IMODE(seen.st_mode) | stat.S_IRWXU)
        true_utime(target, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    elif stat.S_ISREG(seen.st_mode):
        _copy_bytes(source, target)
        true_chmod(target, stat.S_IMODE(seen.st_mode) | stat.S_IWUSR)
        true_utime(target, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    else:
        raise PermissionError(
            errno.EPERM, "a device or pipe cannot be redirected into the scratch layer", source
        )


def _copy_bytes(source: str, target: str) -> None:
    read = true_open(source, os.O_RDONLY | getattr(os, "O_NOATIME", 0) * _owns(source))
    try:
        write = true_open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            while block := os.read(read, 1 << 20):
                view = memoryview(block)
                while view:
                    view = view[os.write(write, view) :]
        finally:
            os.close(write)
    finally:
        os.close(read)


def _owns(path: str) -> bool:
    return os.name == "posix" and true_stat(path).st_uid == os.geteuid()
