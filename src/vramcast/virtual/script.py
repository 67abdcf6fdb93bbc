"""Run a user's script, unchanged, on virtual devices, as `python script.py args` would, and say how it ended.

Whatever stops it (its end, the steps asked for, out of memory, an error, an exit code, Ctrl-C, SIGTERM) becomes a
`Run`; what was seen until then is in the virtual GPU.
"""

from __future__ import annotations

import errno
import os
import runpy
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch

from vramcast.errors import InputError, InvariantError, VramcastError
from vramcast.patches import Patches
from vramcast.virtual.accounting.source_lines import count_as_users, is_ours, is_users
from vramcast.virtual.endings import Ending, Run, Shortfall
from vramcast.virtual.gpu import VirtualGpu
from vramcast.virtual.launch import Launch
from vramcast.virtual.torch_patches import launchers
from vramcast.virtual.torch_patches.training import is_enough


class Terminated(BaseException):
    """SIGTERM or SIGHUP, as an exception: what was seen so far is still reported."""


def run_script(
    path: str,
    arguments: Sequence[str],
    gpu: VirtualGpu,
    explain: Callable[[BaseException], str | None] = lambda error: None,
) -> Run:
    """`python path arguments…` on the virtual GPU."""
    script = Path(path)
    if not script.is_file():
        raise InputError(f"{path}: no such script.")
    return run_launch(
        Launch(name=path, script=script, arguments=tuple(arguments)), gpu, explain=explain
    )


def run_launch(
    launch: Launch,
    gpu: VirtualGpu,
    rank: int | None = None,
    explain: Callable[[BaseException], str | None] = lambda error: None,
) -> Run:
    """`rank`: as which a launcher's processes are run. `explain`: why an error is not the script's own, if known.

    Raises NeedsCards if a launcher starts more processes on a node than the virtual GPU has cards.
    """
    error: BaseException | None = None
    gpu.asked_rank = rank
    patches = Patches()
    with _exits_as_exceptions():
        try:
            with _own_accelerate_state(), gpu:
                launchers.install(gpu, patches, run_here)
                try:
                    _run_processes(launch, gpu)
                finally:
                    patches.restore()
        except (VramcastError, InvariantError, launchers.NeedsCards):
            raise
        except BaseException as raised:
            error = raised
        return _run(gpu, launch, error, explain)


def _run_processes(launch: Launch, gpu: VirtualGpu) -> None:
    if not launch.per_node:
        run_here(launch)
        return
    with launchers.as_one_rank(gpu, launch.nodes, launch.per_node):
        run_here(launch)


def run_here(launch: Launch) -> None:
    """Run it as the interpreter would, in this process."""
    os.environ.update(launch.environment)
    with _as_main(launch):
        if launch.console is not None:
            sys.exit(launch.console.load()())
        if launch.module:
            runpy.run_module(launch.module, run_name="__main__", alter_sys=True)
        else:
            assert launch.script is not None
            count_as_users(str(launch.script))
            runpy.run_path(str(launch.script), run_name="__main__")


def _run(
    gpu: VirtualGpu,
    launch: Launch,
    error: BaseException | None,
    explain: Callable[[BaseException], str | None],
) -> Run:
    """The Run of a script that ended with this error, or without one."""
    steps, lost = gpu.phases.steps, tuple(dict.fromkeys(gpu.lost))
    ending = _ending(gpu, error)
    shortfall = _shortfall(gpu, error, ending)
    if shortfall is not None and not shortfall.went_on:
        ending = Ending.OUT_OF_MEMORY
    if ending not in (Ending.FAILED, Ending.EXITED):
        return Run(steps=steps, ending=ending, shortfall=shortfall, lost=lost)
    assert error is not None
    if isinstance(error, SystemExit):
        details = f"{launch.name} ended itself with exit code {error.code!r}."
        return Run(
            steps=steps,
            ending=ending,
            shortfall=shortfall,
            exit_code=error.code,
            details=details,
            lost=lost,
        )
    line, message = _innermost_line(error, launch.name), _one_line(error)
    return Run(
        steps=steps,
        ending=ending,
        shortfall=shortfall,
        line=line,
        message=message,
        lost=lost,
        details=f"{launch.name} failed at {line}: {_explained(error, explain)}",
    )


def _ending(gpu: VirtualGpu, error: BaseException | None) -> Ending:
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return Ending.STOPPED if is_enough(gpu) else Ending.DONE
    if isinstance(error, torch.OutOfMemoryError):
        return Ending.OUT_OF_MEMORY
    if isinstance(error, SystemExit):
        return Ending.EXITED
    if isinstance(
        error, KeyboardInterrupt
    ):  # so does a thread that made the last step end the others
        return Ending.STOPPED if is_enough(gpu) else Ending.INTERRUPTED
    if isinstance(error, Terminated):
        return Ending.TERMINATED
    return Ending.FAILED


def _shortfall(gpu: VirtualGpu, error: BaseException | None, ending: Ending) -> Shortfall | None:
    """Where the card was too small: an error that ended the script, or one that it was spared."""
    missing = gpu.out_of_memory
    if missing is None:
        return None
    line = missing.line
    if error is not None and ending == Ending.OUT_OF_MEMORY:
        line = _innermost_line(error, line)
    left_over_it = ending in (Ending.EXITED, Ending.FAILED) and gpu.phases.steps == missing.steps
    if not (missing.was_lifted or ending == Ending.OUT_OF_MEMORY or left_over_it):
        return None  # the script caught the error and found another way
    return Shortfall(
        message=missing.message, line=line, went_on=missing.was_lifted, steps=missing.steps
    )


@contextmanager
def _exits_as_exceptions() -> Iterator[None]:
    """os._exit, SIGTERM and SIGHUP end the script as Ctrl-C does. A script may still have handlers of its own."""
    patches, true_exit, process = Patches(), os._exit, os.getpid()

    def leave(code: int) -> NoReturn:
        if os.getpid() != process:
            true_exit(code)  # of a fork
        raise SystemExit(code)

    patches.set(os, "_exit", leave)
    try:
        with _signals_as_exceptions():
            yield
    finally:
        patches.restore()


@contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(number: int, frame: Any) -> NoReturn:
        raise Terminated(signal.Signals(number).name)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.signal(number, terminate) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- errors --------------------------------------------------------------------------------------------------------

_WITHOUT = {  # packages whose kernels need a GPU to be built or run, and the way around them
    "flash_attn": "attn_implementation='sdpa' keeps the same tensors as flash_attn",
    "xformers": "torch's scaled_dot_product_attention keeps the same tensors as xformers",
    "apex": "torch.optim and torch.nn have the same optimizers and norms",
    "deepspeed": "vramcast estimate --strategy zero2 or zero3 answers for DeepSpeed",
    "bitsandbytes": "vramcast estimate --quantize nf4 --optimizer adamw-8bit answers without it",
}


def _explained(error: BaseException, explain: Callable[[BaseException], str | None]) -> str:
    """The error with the end of its traceback, and what can be done about it."""
    if isinstance(error, ImportError):
        return f"{error}. {_missing(error)}"
    shown = "".join(traceback.format_exception(error, limit=-6)).rstrip()
    return f"{_one_line(error)}\n{shown}\n{explain(error) or _advice(error)}"


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _missing(error: ImportError) -> str:
    """What to do about a package that is not here, or about a name that a package does not have."""
    package = (error.name or "").partition(".")[0]
    found = package or next((name for name in _WITHOUT if name in str(error)), "")
    way = f" Without it: {_WITHOUT[found]}." if found in _WITHOUT else ""
    if found in sys.modules and found not in _WITHOUT and not _is_absent(error, found):
        if found in sys.stdlib_module_names:
            return f"The script needs a newer Python than {sys.version.split()[0]}, which runs it here."
        return f"The {found} that is installed here is another version than the script was written for."
    return (
        f"Install {found or 'what is missing'} where vramcast is installed; the script runs with "
        f"this Python.{way}"
    )


def _is_absent(error: ImportError, package: str) -> bool:
    """Whether the whole package is missing, and not a module inside it or a name in one."""
    return isinstance(error, ModuleNotFoundError) and error.name == package


def _advice(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno == errno.EROFS:
        return (
            f"{error.filename} is on a file system that a trace cannot protect, so it is read-only while the script "
            "runs. Let it write elsewhere, or say --no-protect."
        )
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return (
            f"{error.filename} is not here. The script needs its own files for a trace as for a run; weights alone "
            "may be missing, with --empty-weights."
        )
    if _was_raised_by_torch(error):
        return "If the script runs on a real GPU, the virtual one cannot follow it here."
    return (
        "The script, or a package that it uses, raised this itself. If it does not on a real GPU, a value that the "
        "virtual one cannot know may have decided it: see what stood in."
    )


def _was_raised_by_torch(error: BaseException) -> bool:
    """Whether the error came out of torch or out of the virtual GPU."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return True
    last = os.path.realpath(frames[-1].filename)
    of_torch = os.path.dirname(os.path.realpath(torch.__file__)) + os.sep
    return last.startswith(of_torch) or is_ours(last) or isinstance(error, NotImplementedError)


def _innermost_line(error: BaseException, otherwise: str) -> str:
    """The innermost line of the user's own files."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_users(frame.filename) and os.path.isfile(frame.filename):
            return f"{os.path.basename(frame.filename)}:{frame.lineno}"
    return otherwise


# -- as the interpreter would --------------------------------------------------------------------------------------


@contextmanager
def _as_main(launch: Launch) -> Iterator[None]:
    """sys.argv and sys.path as the interpreter would set them."""
    argv, path, main = sys.argv, list(sys.path), sys.modules["__main__"]
    if launch.script is not None:
        sys.argv = [str(launch.script), *launch.arguments]
        sys.path.insert(0, str(launch.script.resolve().parent))
    elif launch.console is not None:
        sys.argv = [shutil.which(launch.name) or launch.name, *launch.arguments]
    else:
        sys.argv = [launch.module, *launch.arguments]
        sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        sys.argv, sys.path, sys.modules["__main__"] = argv, path, main


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
