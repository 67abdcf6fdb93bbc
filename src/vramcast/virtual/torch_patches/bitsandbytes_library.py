"""bitsandbytes before 0.46: its Python allocates with torch and hands pointers to a CUDA library that is not here.

Nothing is computed on a virtual GPU, so a library whose every function returns 0 will do; what is allocated, kept and
freed is decided in Python. Later versions register torch ops and need none of this.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import metadata
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vramcast.virtual.gpu import VirtualGpu

PACKAGE, EXTENSION = "bitsandbytes", "bitsandbytes.cextension"
FIRST_WITHOUT = (0, 46)


class NoKernels:
    """A loaded library: any name is a function, and 0 is CUDA's word for success."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args: 0


def install(gpu: VirtualGpu) -> None:
    """For scripts that import it while the virtual GPU lasts; what they imported is forgotten at its end."""
    if PACKAGE in sys.modules or not _is_old():
        return
    extension = ModuleType(EXTENSION)
    vars(extension).update(lib=NoKernels(), COMPILED_WITH_CUDA=True)
    sys.modules[EXTENSION] = extension
    gpu.exit.callback(_forget)


def _is_old() -> bool:
    try:
        version = metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return False
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < FIRST_WITHOUT


def _forget() -> None:
    for name in [name for name in sys.modules if name == PACKAGE or name.startswith(f"{PACKAGE}.")]:
        del sys.modules[name]
