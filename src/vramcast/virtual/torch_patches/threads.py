"""Threads and processes that a script starts itself: `threading.Thread`, `multiprocessing.Process`.

A dispatch mode belongs to one thread, so every thread that the script starts enters it as well. A process that runs a
function of the script is run as a thread of this process; of several with the same function, which are ranks of one
job, the first. Processes of libraries (tokenization, workers) are started as they are. What cannot be followed is
written down as lost: an exception that ended a thread, a forked process that used a card.
"""

from __future__ import annotations

import _thread
import mmap
import multiprocessing.process as processes
import os
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _pop_mode, _push_mode

from vramcast.patches import Patches
from vramcast.virtual.accounting.source_lines import is_users
from vramcast.virtual.kernels import autocast
from vramcast.virtual.state import GpuState
from vramcast.virtual.torch_patches.training import StepsDone


def install(gpu: GpuState, patches: Patches) -> None:
    _install_threads(gpu, patches)
    _install_processes(gpu, patches)
    _watch_forks(gpu)


# -- threads -------------------------------------------------------------------------------------------------------


def _install_threads(gpu: GpuState, patches: Patches) -> None:
    bootstrap, excepthook = threading.Thread._bootstrap_inner, threading.excepthook  # type: ignore[attr-defined]

    def run_followed(thread: threading.Thread) -> None:
        _push_mode(gpu.mode)
        autocast.enter_thread()
        try:
            bootstrap(thread)
        finally:
            _pop_mode()

    def tell(args: Any) -> None:
        if issubclass(args.exc_type, StepsDone):
            _thread.interrupt_main()
            return
        if not issubclass(args.exc_type, torch.OutOfMemoryError):
            name = args.thread.name if args.thread is not None else "a thread"
            gpu.lost.append(f"thread {name} ended by {args.exc_type.__name__}: {args.exc_value}")
        excepthook(args)

    patches.set(threading.Thread, "_bootstrap_inner", run_followed)
    patches.set(threading, "excepthook", tell)


# -- processes -----------------------------------------------------------------------------------------------------


class _AsThread:
    """What `multiprocessing.Process` keeps of a process that was started: here a thread, or nothing at all."""

    def __init__(self, process: Any, gpu: GpuState, *, runs: bool) -> None:
        self.pid, self.returncode = os.getpid(), None if runs else 0
        self.sentinel, self._end = os.pipe()
        self._gpu, self._process = gpu, process
        self._thread = threading.Thread(target=self._run, name=process.name, daemon=process.daemon)
        if runs:
            self._thread.start()
        else:
            os.close(self._end)

    def _run(self) -> None:
        code = 1
        try:
            self._process.run()
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        finally:
            self.returncode = code
            os.close(self._end)

    def poll(self, flag: int = 0) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        if self.returncode is None:
            self._thread.join(timeout)
        return self.returncode

    def terminate(self) -> None:
        if self.returncode is None:
            self._gpu.note(
                f"process {self._process.name} was terminated: here it ran on as a thread"
            )

    kill = interrupt = terminate

    def close(self) -> None:
        os.close(self.sentinel)


def _install_processes(gpu: GpuState, patches: Patches) -> None:
    true_start = processes.BaseProcess.start
    started: dict[Any, int] = {}

    def start(process: Any) -> None:
        work = process._target if process._target is not None else type(process).run
        if not _is_of_the_script(work):
            true_start(process)
            return
        index = started.get(work, 0)
        started[work] = index + 1
        process._popen = _AsThread(process, gpu, runs=index == 0)
        process._sentinel = process._popen.sentinel
        if index == 0:
            gpu.note(
                f"process {process.name} was run as a thread: on a GPU it has a CUDA context of its own"
            )

    def check() -> None:
        for work, count in started.items():
            if count > 1:
                _judge(gpu, getattr(work, "__name__", "a process"), count)

    patches.set(processes.BaseProcess, "start", start)
    gpu.exit.callback(check)


def _judge(gpu: GpuState, name: str, count: int) -> None:
    """Processes that were left out are ranks like the first, or work that shares the card with it."""
    if gpu.made_process_group:
        gpu.note(
            f"of {count} processes that run {name}, the first was run: the others are ranks like it"
        )
    else:
        gpu.lost.append(
            f"{count} processes run {name}; the first was run, and the others may use the same card"
        )


def _is_of_the_script(work: Callable[..., Any]) -> bool:
    code = getattr(getattr(work, "func", work), "__code__", None)
    return code is not None and is_users(code.co_filename)


def _watch_forks(gpu: GpuState) -> None:
    """A forked process knows the cards by what this one was when it forked. What it puts there is lost, and said."""
    used = mmap.mmap(-1, 1)

    def in_child() -> None:
        if not gpu.is_left:
            gpu.forked = used

    os.register_at_fork(after_in_child=in_child)

    def check() -> None:
        gpu.is_left = True
        if used[0] and gpu.forked is None:
            gpu.lost.append("a process that the script forked used a GPU")

    gpu.exit.callback(check)
