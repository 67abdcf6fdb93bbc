"""bitsandbytes before 0.46: its Python code allocates with torch and hands pointers to a CUDA library that is not here.

In comes a script that imports it, out comes a library whose every function returns 0: nothing is computed on a
virtual GPU, and what is allocated, kept and freed is decided in Python. Later versions register torch ops and need
none of this.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from importlib import metadata
from types import ModuleType

from vramcast.virtual.state import GpuState

PACKAGE, EXTENSION = "bitsandbytes", "bitsandbytes.cextension"
FIRST_WITHOUT = (0, 46)


class NoKernels:
    """A loaded library: any name is a function, and 0 is CUDA's word for success."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args: 0


def _is_no_load_error(record: logging.LogRecord) -> bool:
    """It says at length that it finds no CUDA library; none is needed here."""
    return "library load error" not in record.getMessage()


def install(gpu: GpuState) -> None:
    logger = logging.getLogger("bitsandbytes.cextension")
    logger.addFilter(_is_no_load_error)
    gpu.exit.callback(logger.removeFilter, _is_no_load_error)
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
    numbers = [int(part) for part in version.split(".")[:2] if part.isdigit()]
    return tuple(numbers) < FIRST_WITHOUT


def _forget() -> None:
    for name in list(sys.modules):
        if name == PACKAGE or name.startswith(f"{PACKAGE}."):
            del sys.modules[name]
