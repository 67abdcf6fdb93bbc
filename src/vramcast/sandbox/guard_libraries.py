"""Libraries that open files in C, C++ or Rust, where Python's `open` is not asked: their paths are redirected here.

torch.save and safetensors are the virtual GPU's own, and ask Python's `open`. A library is redirected where it is
already loaded, or as soon as it is imported.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from vramcast.patches import Patches


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirect:
    """Where a path is read and written."""

    read: Callable[[Any], Any]
    write: Callable[..., Any]


def redirect_libraries(redirect: Redirect, patches: Patches) -> None:
    waiting = dict(_LIBRARIES)
    for name in list(waiting):
        if name in sys.modules:
            waiting.pop(name)(sys.modules[name], redirect, patches)
    finder = _RedirectingFinder(waiting, redirect, patches)
    patches.set(sys, "meta_path", [finder, *sys.meta_path])


class _RedirectingFinder(importlib.abc.MetaPathFinder):
    """Lets the others find a module, and redirects it once it is loaded."""

    def __init__(self, waiting: dict[str, Any], redirect: Redirect, patches: Patches) -> None:
        self._waiting = waiting
        self._redirect = redirect
        self._patches = patches

    def find_spec(
        self, name: str, path: Any, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        apply = self._waiting.pop(name, None)
        if apply is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        true_exec = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            true_exec(module)
            apply(module, self._redirect, self._patches)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _is_path(value: Any) -> bool:
    return isinstance(value, (str, bytes, os.PathLike))


def _with_path(
    true: Callable[..., Any], change: Callable[[Any], Any], index: int = 0
) -> Callable[..., Any]:
    """The function with one of its positional arguments changed where it is a path."""

    def call(*args: Any, **options: Any) -> Any:
        if len(args) > index and _is_path(args[index]):
            args = (*args[:index], change(args[index]), *args[index + 1 :])
        return true(*args, **options)

    return call


def _with_mode(true: Callable[..., Any], redirect: Redirect, default: str) -> Callable[..., Any]:
    """`open(path, mode)` of a library."""

    def call(path: Any, mode: str = default, *args: Any, **options: Any) -> Any:
        if _is_path(path):
            writes = any(letter in mode for letter in "wax+")
            path = (
                redirect.write(path, keep_content="w" not in mode)
                if writes
                else redirect.read(path)
            )
        return true(path, mode, *args, **options)

    return call


def _redirect_sqlite(module: Any, redirect: Redirect, patches: Patches) -> None:
    true = module.connect

    def connect(database: Any, *args: Any, **options: Any) -> Any:
        plain = (
            _is_path(database)
            and os.fsdecode(database) not in ("", ":memory:")
            and not options.get("uri")
        )
        if plain:
            for ending in (
                "-wal",
                "-journal",
            ):  # what a database that was not closed still has to do
                beside = os.fsdecode(database) + ending
                if os.path.exists(beside):
                    redirect.write(beside)
            database = redirect.write(database)
        return true(database, *args, **options)

    patches.set(module, "connect", connect)


def _redirect_h5py(module: Any, redirect: Redirect, patches: Patches) -> None:
    true = module.File.__init__

    def init(file: Any, name: Any, mode: str = "r", *args: Any, **options: Any) -> None:
        if _is_path(name):
            writes = mode != "r"
            name = redirect.write(name, keep_content=mode != "w") if writes else redirect.read(name)
        true(file, name, mode, *args, **options)

    patches.set(module.File, "__init__", init)


def _redirect_tokenizers(module: Any, redirect: Redirect, patches: Patches) -> None:
    kind = module.Tokenizer
    patches.set(kind, "save", _with_path(kind.save, redirect.write, 1))
    true_from_file = kind.from_file
    patches.set(kind, "from_file", staticmethod(_with_path(true_from_file, redirect.read)))


def _redirect_safetensors(module: Any, redirect: Redirect, patches: Patches) -> None:
    true = module.safe_open
    patches.set(module, "safe_open", _with_path(true, redirect.read))
    for name in ("safetensors.torch", "safetensors.numpy"):
        reader = sys.modules.get(name)
        if reader is not None and getattr(reader, "safe_open", None) is true:
            patches.set(reader, "safe_open", module.safe_open)
    patches.set(module, "serialize_file", _with_path(module.serialize_file, redirect.write, 1))


def _redirect_pyarrow(module: Any, redirect: Redirect, patches: Patches) -> None:
    for name, default in (("OSFile", "r"), ("memory_map", "r")):
        patches.set(module, name, _with_mode(getattr(module, name), redirect, default))
    for name in ("output_stream", "create_memory_map"):
        patches.set(module, name, _with_path(getattr(module, name), redirect.write))
    patches.set(module, "input_stream", _with_path(module.input_stream, redirect.read))


def _redirect_parquet(module: Any, redirect: Redirect, patches: Patches) -> None:
    writer, reader = module.ParquetWriter, module.ParquetFile
    patches.set(writer, "__init__", _with_path(writer.__init__, redirect.write, 1))
    patches.set(reader, "__init__", _with_path(reader.__init__, redirect.read, 1))
    for name in ("read_table", "read_schema", "read_metadata"):
        patches.set(module, name, _with_path(getattr(module, name), redirect.read))
        public = sys.modules.get("pyarrow.parquet")
        if public is not None:
            patches.set(public, name, getattr(module, name))


_LIBRARIES: dict[str, Callable[[Any, Redirect, Patches], None]] = {
    "sqlite3": _redirect_sqlite,
    "h5py": _redirect_h5py,
    "tokenizers": _redirect_tokenizers,
    "safetensors": _redirect_safetensors,
    "pyarrow": _redirect_pyarrow,
    "pyarrow.parquet.core": _redirect_parquet,
}
