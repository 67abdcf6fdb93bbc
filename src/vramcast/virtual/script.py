"""Run a user's script, unchanged, on virtual devices, as `python script.py args` would: to its end, a stop, or an OOM.

Any other error of the script becomes a TraceError that shows where it came from.
"""

from __future__ import annotations

import errno
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vramcast.errors import InputError, TraceError
from vramcast.virtual.accounting.source_lines import count_as_users
from vramcast.virtual.gpu import VirtualGpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How the script ended."""

    steps: int
    stopped: bool = False  # after the number of steps asked for
    out_of_memory: str = ""  # torch's message
    out_of_memory_line: str = ""  # the innermost line of the user's own files


def run_script(
    path: str,
    arguments: Sequence[str],
    gpu: VirtualGpu,
    explain: Callable[[BaseException], str | None] = lambda error: None,
) -> Run:
    """`explain`: why an error is not the script's own, where the caller knows it."""
    script = Path(path)
    if not script.is_file():
        raise InputError(f"{path}: no such script.")
    message = line = ""
    count_as_users(str(script))
    try:
        with _as_main(script, arguments), _own_accelerate_state(), gpu:
            runpy.run_path(str(script), run_name="__main__")
    except torch.OutOfMemoryError as error:
        message, line = str(error), _innermost_line(error, script)
    except SystemExit as end:
        if end.code not in (None, 0):
            raise TraceError(f"{path} ended itself with exit code {end.code!r}.") from end
    except ImportError as error:
        raise TraceError(
            f"{path} failed at {_innermost_line(error, script)}: {error}. {_missing(error)}"
        ) from error
    except Exception as error:
        shown = "".join(traceback.format_exception(error, limit=-6)).rstrip()
        raise TraceError(
            f"{path} failed at {_innermost_line(error, script)}: {type(error).__name__}: {error}\n{shown}\n"
            f"{explain(error) or _advice(error)}"
        ) from error
    stopped = gpu.step_limit is not None and gpu.phases.steps >= gpu.step_limit
    return Run(
        steps=gpu.phases.steps, stopped=stopped, out_of_memory=message, out_of_memory_line=line
    )


_WITHOUT = {  # packages whose kernels need a GPU to be built or run, and the way around them
    "flash_attn": "attn_implementation='sdpa' keeps the same tensors as flash_attn",
    "xformers": "torch's scaled_dot_product_attention keeps the same tensors as xformers",
    "apex": "torch.optim and torch.nn have the same optimizers and norms",
    "deepspeed": "vramcast estimate --strategy zero2 or zero3 answers for DeepSpeed",
    "bitsandbytes": "vramcast estimate --quantize nf4 --optimizer adamw-8bit answers without it",
}


def _missing(error: ImportError) -> str:
    """What to do about a package that is not here."""
    package = (error.name or "").partition(".")[0]
    found = package or next((name for name in _WITHOUT if name in str(error)), "")
    way = f" Without it: {_WITHOUT[found]}." if found in _WITHOUT else ""
    return f"Install {found or 'what is missing'} where vramcast is installed; the script runs with this Python.{way}"


def _advice(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.EROFS:
        return (
            f"{error.filename} is on a file system that a trace cannot protect, so it is read-only while the script "
            "runs. Let it write elsewhere, or say --no-protect."
        )
    return "If the script runs on a real GPU, the virtual one cannot follow it here."


@contextmanager
def _as_main(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    """sys.argv and sys.path as the interpreter would set them."""
    argv, path = sys.argv, list(sys.path)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path = argv, path


SINGLETONS = ("PartialState", "AcceleratorState", "GradientState")


@contextmanager
def _own_accelerate_state() -> Iterator[None]:
    """Accelerate keeps one state per process: a script begins without one, and what it leaves goes with it."""
    before = {name: dict(shared) for name, shared in _accelerate_states()}
    for _, shared in _accelerate_states():
        shared.clear()
    try:
        yield
    finally:
        for name, shared in _accelerate_states():
            shared.clear()
            shared.update(before.get(name, {}))


def _accelerate_states() -> list[tuple[str, dict[str, Any]]]:
    state = sys.modules.get("accelerate.state")
    return [(name, getattr(state, name)._shared_state) for name in SINGLETONS] if state else []


def _innermost_line(error: BaseException, script: Path) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    home = os.path.dirname(os.path.abspath(script))
    installed = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
    for frame in reversed(frames):
        name = os.path.abspath(frame.filename)
        if name.startswith(home) and not any(part in name for part in installed):
            return f"{os.path.basename(frame.filename)}:{frame.lineno}"
    return str(script)
