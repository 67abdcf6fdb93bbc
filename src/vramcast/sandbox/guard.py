"""Protection inside Python, for where the kernel's cannot be had: writes are redirected into the scratch folder.

`open`, the functions of `os` that take a path, and everything built on them (shutil, pathlib, tempfile, glob, numpy,
pickle, logging) see the user's files with the run's changes laid over them; see `merged`. Libraries that open files in
C, C++ or Rust are redirected one by one; see `guard_libraries`. What still tries to write elsewhere is refused by an
audit hook with one sentence.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import functools
import io
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Container, Iterator
from typing import Any

from vramcast.patches import Patches
from vramcast.sandbox.audit import Auditor, refusal
from vramcast.sandbox.guard_libraries import Redirect, redirect_libraries
from vramcast.sandbox.layer import Scratch
from vramcast.sandbox.merged import MergedFiles, is_folder, lexists

_WRITING_LETTERS = frozenset("wax+")
_DIRECT = ("/dev", "/proc", "/sys")
# People keep data sets there. Shared memory itself is made in C and does not pass here.
_LAYERED = ("/dev/shm",)
_UNNAMED = getattr(os, "O_TMPFILE", 0)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Guard:
    """`with Guard(upper, scratch):` every path of this process is looked up in the merged files."""

    def __init__(self, upper: str, scratch: str, *, kernel_refuses: bool = False) -> None:
        self.files = MergedFiles(upper, (*_DIRECT, scratch), _LAYERED)
        self._patches = Patches()
        self._defaults: list[tuple[Any, tuple[Any, ...]]] = []  # of functions, as they were
        self._auditor = Auditor(self.files.is_direct, programs_may_run=kernel_refuses)

    def __enter__(self) -> Guard:
        self.handlers: dict[Callable[..., Any], Callable[..., Any]] = dict(self._replacements())
        replaced = {true: _dispatcher(true) for true in self.handlers}
        for module in (os, sys.modules[os.name]):  # importlib asks `posix`, not `os`
            for name, function in list(vars(module).items()):
                if callable(function) and function in replaced:
                    self._patches.set(module, name, replaced[function])
        for module, name in (
            (builtins, "open"),
            (io, "open"),
            (io, "open_code"),
            (sys.modules["_io"], "open_code"),
        ):
            self._patches.set(module, name, replaced[getattr(module, name)])
        self._patches.set(shutil, "_use_fd_functions", False)
        redirect_libraries(Redirect(read=_where_to_read, write=_where_to_write), self._patches)
        self._replace_taken_functions()
        self._auditor.start()
        _active.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _active.remove(self)
        self._auditor.stop()
        for function, defaults in self._defaults:
            function.__defaults__ = defaults
        self._defaults.clear()
        self._patches.restore()

    # -- one path ---------------------------------------------------------------------------------------------------

    def where_to_read(self, path: Any) -> Any:
        """The same kind of value (str or bytes), for a library that opens the file itself."""
        found = self.files.find(self.files.resolve(os.fsdecode(path)))
        return os.fsencode(found) if isinstance(path, bytes) else found

    def where_to_write(self, path: Any, *, keep_content: bool = True) -> Any:
        changed = self.files.prepare(
            self.files.resolve(os.fsdecode(path)), keep_content=keep_content
        )
        return os.fsencode(changed) if isinstance(path, bytes) else changed

    def _resolve(self, path: Any, *, folder: int | None = None, follow: bool = True) -> str:
        text = os.fsdecode(path)
        if folder is not None and not text.startswith("/"):
            text = os.path.join(self.files.logical(_path_of_descriptor(folder)), text)
        return self.files.resolve(text, follow=follow)

    def _descriptor_may_change(self, descriptor: int) -> None:
        path = _path_of_descriptor(descriptor)
        if path.startswith("/") and not self.files.is_direct(path):
            raise refusal(f"a change of {path} through an open file")

    # -- functions in place of Python's own -------------------------------------------------------------------------

    def _replacements(self) -> Iterator[tuple[Callable[..., Any], Callable[..., Any]]]:
        yield io.open, self._with_open(io.open)
        yield io.open_code, self._open_code
        yield os.open, self._with_os_open(os.open)
        yield os.getcwd, self.files.current_folder
        yield os.listdir, self._with_listdir(os.listdir)
        yield os.scandir, self._with_scandir(os.scandir)
        for name in ("stat", "access", "statvfs", "pathconf", "getxattr", "listxattr", "chdir"):
            yield from self._with(name, self._reading, follow=True)
        for name in ("lstat", "readlink"):
            yield from self._with(name, self._reading, follow=False)
        for name in ("chmod", "chown", "utime", "truncate", "setxattr", "removexattr"):
            yield from self._with(name, self._changing, follow=True)
        for name in ("lchown", "lchmod"):
            yield from self._with(name, self._changing, follow=False)
        for name in ("fchmod", "fchown"):
            yield from self._with(name, self._changing_descriptor)
        for name in ("mkdir", "mkfifo", "mknod"):
            yield from self._with(name, self._making)
        for name in ("remove", "unlink"):
            yield from self._with(name, self._removing)
        yield from self._with("rmdir", self._removing_folder)
        for name in ("rename", "replace"):
            yield from self._with(name, self._renaming)
        yield from self._with("link", self._linking)
        yield from self._with("symlink", self._making_symlink)

    def _with(
        self, name: str, make: Callable[..., Any], **options: Any
    ) -> Iterator[tuple[Any, Any]]:
        true = getattr(os, name, None)  # not every system has every one
        if true is not None:
            yield true, make(true, **options)

    def _reading(self, true: Callable[..., Any], *, follow: bool) -> Callable[..., Any]:
        def read(path: Any = ".", *args: Any, **options: Any) -> Any:
            if self.files.untouched or isinstance(path, int):
                return true(path, *args, **options)
            folder = options.pop("dir_fd", None)
            links = options.get("follow_symlinks", follow)
            resolved = self._resolve(path, folder=folder, follow=links)
            return _named(path, true, self.files.find(resolved), *args, **options)

        return read

    def _changing(self, true: Callable[..., Any], *, follow: bool) -> Callable[..., Any]:
        def change(path: Any, *args: Any, **options: Any) -> Any:
            if isinstance(path, int):
                self._descriptor_may_change(path)
                return true(path, *args, **options)
            folder = options.pop("dir_fd", None)
            resolved = self._resolve(
                path, folder=folder, follow=options.get("follow_symlinks", follow)
            )
            if is_folder(self.files.find(resolved)):
                changed = self.files.prepare(
                    os.path.join(resolved, "."), keep_content=False
                ).removesuffix("/.")
            else:
                changed = self.files.prepare(resolved, keep_content=True)
            return _named(path, true, changed, *args, **options)

        return change

    def _changing_descriptor(self, true: Callable[..., Any]) -> Callable[..., Any]:
        def change(descriptor: int, *args: Any) -> Any:
            self._descriptor_may_change(descriptor)
            return true(descriptor, *args)

        return change

    def _making(self, true: Callable[..., Any]) -> Callable[..., Any]:
        def make(path: Any, *args: Any, dir_fd: int | None = None, **options: Any) -> Any:
            resolved = self._resolve(path, folder=dir_fd, follow=False)
            self._must_not_exist(resolved, path)
            _named(path, true, self._prepare(resolved, path, keep_content=False), *args, **options)
            self.files.note_folders(resolved)

        return make

    def _removing(self, true: Callable[..., Any]) -> Callable[..., Any]:
        def remove(path: Any, *, dir_fd: int | None = None) -> None:
            resolved = self._resolve(path, folder=dir_fd, follow=False)
            found = self.files.find(resolved)
            if self.files.is_direct(resolved) or not lexists(found):
                _named(path, true, found)
            elif is_folder(found):
                raise _error(IsADirectoryError, errno.EISDIR, path)
            else:
                self.files.delete(resolved)

        return remove

    def _removing_folder(self, true: Callable[..., Any]) -> Callable[..., Any]:
        def remove(path: Any, *, dir_fd: int | None = None) -> None:
            resolved = self._resolve(path, folder=dir_fd, follow=False)
            found = self.files.find(resolved)
            if self.files.is_direct(resolved) or not is_folder(found):
                _named(path, true, found)
            elif self.files.list_folder(resolved):
                raise _error(OSError, errno.ENOTEMPTY, path)
            else:
                self.files.delete(resolved)

        return remove

    def _renaming(self, true: Callable[..., Any]) -> Callable[..., Any]:
        def rename(
            source: Any,
            target: Any,
            *,
            src_dir_fd: int | None = None,
            dst_dir_fd: int | None = None,
        ) -> None:
            old = self._resolve(source, folder=src_dir_fd, follow=False)
            new = self._resolve(target, folder=dst_dir_fd, follow=False)
            found, there = self.files.find(old), self.files.find(new)
            if not lexists(found):
                raise _error(FileNotFoundError, errno.ENOENT, source)
            if old == new:
                return
            if is_folder(there):
                if not is_folder(found):
                    raise _error(IsADirectoryError, errno.EISDIR, target)
                if self.files.list_folder(new):
                    raise _error(OSError, errno.ENOTEMPTY, target)
            moved = self.files.prepare_tree(old)
            if lexists(there):
                self.files.delete(new)
            _named(source, true, moved, self._prepare(new, target, keep_content=False))
            self.files.delete(old)
            self.files.note_folders(new)

        return rename

    def _linking(self, true: Callable[..., Any]) -> Callable[..., Any]:
        def link(
            source: Any,
            target: Any,
            *,
            src_dir_fd: int | None = None,
            dst_dir_fd: int | None = None,
            **options: Any,
        ) -> None:
            old = self._resolve(source, folder=src_dir_fd, follow=False)
            new = self._resolve(target, folder=dst_dir_fd, follow=False)
            self._must_not_exist(new, target)
            copied = self._prepare(old, source, keep_content=True)
            _named(source, true, copied, self._prepare(new, target, keep_content=False), **options)

        return link

    def _making_symlink(self, true: Callable[..., Any]) -> Callable[..., Any]:
        def symlink(
            source: Any,
            target: Any,
            target_is_directory: bool = False,
            *,
            dir_fd: int | None = None,
        ) -> None:
            new = self._resolve(target, folder=dir_fd, follow=False)
            self._must_not_exist(new, target)
            self.files.forget_folders()
            _named(
                target,
                true,
                source,
                self._prepare(new, target, keep_content=False),
                target_is_directory,
            )

        return symlink

    def _with_open(self, true: Callable[..., Any]) -> Callable[..., Any]:
        def open_file(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
            writes = not _WRITING_LETTERS.isdisjoint(mode)
            if isinstance(file, int) or (self.files.untouched and not writes):
                return true(file, mode, *args, **options)
            if options.get("opener") is not None or len(args) > 5:
                with self._auditor.paused():  # the opener itself asks os.open
                    return true(file, mode, *args, **options)
            resolved = self.files.resolve(os.fsdecode(file))
            if not writes:
                return _opened(file, true, self.files.find(resolved), mode, *args, **options)
            self._check_open(resolved, file, exclusive="x" in mode, create="r" not in mode)
            changed = self._prepare(
                resolved, file, keep_content="w" not in mode and "x" not in mode
            )
            return _opened(file, true, changed, mode, *args, **options)

        return open_file

    def _open_code(self, path: str) -> Any:
        return open(path, "rb")

    def _with_os_open(self, true: Callable[..., Any]) -> Callable[..., Any]:
        def open_descriptor(
            path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None
        ) -> int:
            if self.files.untouched and not flags & (_WRITING | _UNNAMED):
                return int(true(path, flags, mode, dir_fd=dir_fd))
            follow = not flags & getattr(os, "O_NOFOLLOW", 0)
            resolved = self._resolve(path, folder=dir_fd, follow=follow)
            if _UNNAMED and flags & _UNNAMED == _UNNAMED:
                changed = os.path.dirname(
                    self._prepare(os.path.join(resolved, "."), path, keep_content=False)
                )
            elif not flags & _WRITING:
                changed = self.files.find(resolved)
            else:
                self._check_open(
                    resolved,
                    path,
                    exclusive=bool(flags & os.O_EXCL),
                    create=bool(flags & os.O_CREAT),
                )
                changed = self._prepare(resolved, path, keep_content=not flags & os.O_TRUNC)
            descriptor: int = _named(path, true, changed, flags, mode)
            return descriptor

        return open_descriptor

    def _check_open(self, resolved: str, path: Any, *, exclusive: bool, create: bool) -> None:
        """What the kernel would say of the merged files; the upper folder alone may not have the file."""
        found = self.files.find(resolved)
        if is_folder(found):
            raise _error(IsADirectoryError, errno.EISDIR, path)
        if exclusive and create and lexists(found):
            raise _error(FileExistsError, errno.EEXIST, path)
        if not create and not lexists(found):
            raise _error(FileNotFoundError, errno.ENOENT, path)
        if lexists(found) and not os.access(resolved, os.W_OK):
            raise _error(PermissionError, errno.EACCES, path)

    def _must_not_exist(self, resolved: str, path: Any) -> None:
        if lexists(self.files.find(resolved)):
            raise _error(FileExistsError, errno.EEXIST, path)

    def _prepare(self, resolved: str, path: Any, *, keep_content: bool) -> str:
        try:
            return self.files.prepare(resolved, keep_content=keep_content)
        except OSError as error:
            if error.filename is not None:
                error.filename = path
            raise

    def _with_listdir(self, true: Callable[..., Any]) -> Callable[..., Any]:
        def listdir(path: Any = ".") -> Any:
            if self.files.untouched:
                return true(path)
            if isinstance(path, int):
                path = self.files.logical(_path_of_descriptor(path))
            resolved = self.files.resolve(os.fsdecode(path))
            if not is_folder(self.files.find(resolved)):
                return _named(path, true, self.files.find(resolved))
            names = _named(path, self.files.list_folder, resolved)
            return [os.fsencode(name) for name in names] if isinstance(path, bytes) else names

        return listdir

    def _with_scandir(self, true: Callable[..., Any]) -> Callable[..., Any]:
        def scandir(path: Any = ".") -> Any:
            if self.files.untouched or isinstance(path, int):
                return true(path)
            resolved = self.files.resolve(os.fsdecode(path))
            if not is_folder(self.files.find(resolved)):
                return _named(path, true, self.files.find(resolved))
            return MergedEntries(path, _named(path, self.files.list_folder, resolved))

        return scandir

    # -- functions that modules took before -------------------------------------------------------------------------

    def _replace_taken_functions(self) -> None:
        """`from os import rename` and default arguments of tempfile hold the true functions."""
        by_identity = {id(true): new for true, new in self._patches.replaced() if callable(true)}
        for name, module in list(sys.modules.items()):
            if name.startswith("vramcast.sandbox") or name in (
                "os",
                os.name,
                "io",
                "_io",
                "builtins",
            ):
                continue
            for attribute in _taken_functions(name, module, by_identity):
                self._patches.set(module, attribute, by_identity[id(vars(module)[attribute])])
        for owner in (vars(tempfile)["_TemporaryFileCloser"], tempfile.TemporaryDirectory):
            for function in vars(owner).values():
                defaults = getattr(function, "__defaults__", None) or ()
                if any(id(value) in by_identity for value in defaults):
                    new = tuple(by_identity.get(id(value), value) for value in defaults)
                    self._defaults.append((function, defaults))
                    function.__defaults__ = new


# The guard that is on, if any. A module that is imported meanwhile may keep the functions that it finds for ever
# (`from os import rename`), so these ask which guard is on, and are the true ones when none is.
_active: list[Guard] = []
_dispatchers: dict[Callable[..., Any], Callable[..., Any]] = {}


def _dispatcher(true: Callable[..., Any]) -> Callable[..., Any]:
    if true not in _dispatchers:

        @functools.wraps(true)
        def dispatch(*args: Any, **options: Any) -> Any:
            function = _active[-1].handlers[true] if _active else true
            return function(*args, **options)

        _dispatchers[true] = dispatch
    return _dispatchers[true]


def _where_to_read(path: Any) -> Any:
    return _active[-1].where_to_read(path) if _active else path


def _where_to_write(path: Any, *, keep_content: bool = True) -> Any:
    return _active[-1].where_to_write(path, keep_content=keep_content) if _active else path


@contextlib.contextmanager
def guarded_process() -> Iterator[Guard | None]:
    """The guard for a process that runs already, with a scratch folder of its own that is gone afterwards."""
    if os.name == "nt":
        warnings.warn(
            "your files are not protected on Windows: what is saved here is on your disk",
            stacklevel=4,
        )
        yield None
        return
    scratch = Scratch(os.path.realpath(tempfile.gettempdir()))
    try:
        upper = os.path.join(scratch.path, "0", "upper")
        os.makedirs(upper)
        with Guard(upper, scratch.path) as guard:
            yield guard
    finally:
        scratch.remove()


class MergedEntry:
    """An os.DirEntry of the merged files."""

    def __init__(self, folder: Any, name: str) -> None:
        self.name: Any = os.fsencode(name) if isinstance(folder, bytes) else name
        self.path: Any = os.path.join(folder, self.name)

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isdir(self.path) and (follow_symlinks or not self.is_symlink())

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isfile(self.path) and (follow_symlinks or not self.is_symlink())

    def is_symlink(self) -> bool:
        return os.path.islink(self.path)

    def is_junction(self) -> bool:
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self.path, follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        return os.lstat(self.path).st_ino


class MergedEntries:
    """What os.scandir returns: an iterator and a context."""

    def __init__(self, folder: Any, names: list[str]) -> None:
        where = os.fspath(folder)
        self._entries = iter([MergedEntry(where, name) for name in names])

    def __iter__(self) -> MergedEntries:
        return self

    def __next__(self) -> MergedEntry:
        return next(self._entries)

    def __enter__(self) -> MergedEntries:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


_names_seen: dict[str, tuple[int, tuple[str, ...]]] = {}


def _taken_functions(name: str, module: Any, true_functions: Container[int]) -> tuple[str, ...]:
    """Names of a module that hold one of these functions; modules that did not grow are not searched again."""
    names = getattr(module, "__dict__", {})
    size, found = _names_seen.get(name, (-1, ()))
    if size != len(names):
        found = tuple(
            attribute for attribute, value in list(names.items()) if id(value) in true_functions
        )
        _names_seen[name] = (len(names), found)
    return tuple(attribute for attribute in found if id(names.get(attribute)) in true_functions)


def _path_of_descriptor(descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        raise refusal("a path relative to an open folder") from None


def _named(path: Any, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Errors name the path that the script gave, not where it was looked for."""
    try:
        return function(*args, **options)
    except OSError as error:
        if error.filename is not None:
            error.filename = path
        raise


def _opened(path: Any, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """An open file whose name is the one that the script gave."""
    file = _named(path, function, *args, **options)
    raw = getattr(file, "buffer", file)
    raw = getattr(raw, "raw", raw)
    if isinstance(raw, io.FileIO):
        raw.name = path
    return file


def _error(kind: type[OSError], number: int, path: Any) -> OSError:
    return kind(number, os.strerror(number), path)
