"""Run something in a process of its own that cannot change the user's files, and clean up however that process ends.

    parent (here)      makes the scratch folder, starts the child, answers its questions, passes signals on,
                       ends what the child left running, removes the scratch folder
    child (`child`)    takes its protection, runs the target, sends the result

The strongest protection that the machine allows is taken: the kernel's namespace, else the guard inside Python.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any

from vramcast import errors
from vramcast.errors import InputError
from vramcast.sandbox.layer import (
    Changes,
    Layer,
    Scratch,
    check_can_keep,
    find_changes,
    keep_files,
    read_layers,
    remove_abandoned,
)
from vramcast.sandbox.network import Connections
from vramcast.sandbox.session import GUARD, NAMESPACE, NONE, Unwatched, receive, send

_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from vramcast.sandbox.child import main; main({})"
_MARK = "VRAMCAST_RUN"  # by which the programs that a script started are known
_SECONDS_TO_END = 10.0  # after the result: time for what the script left to be done at exit
_SECONDS_TO_OBEY = 5.0  # after SIGTERM, before SIGKILL


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    protect: str = "auto"  # auto, namespace, guard or none
    keep_files: str | None = None
    offline: bool = False


def run_protected(
    target: str,
    payload: dict[str, Any],
    options: Options,
    show: Callable[[dict[str, Any]], None] = lambda result: None,
) -> dict[str, Any]:
    """The result of `target` ("package.module:function"), called as function(payload, session) in a child process.

    `show` is given the result at once: a signal that ended the target ends this process next.
    """
    if os.name == "nt":
        result = _run_on_windows(target, payload, options)
        show(result)
        return result
    if options.keep_files is not None:
        check_can_keep(options.keep_files)
    reason = "asked for" if options.protect == GUARD else f"no namespaces on {sys.platform}"
    for kind in _kinds_to_try(options.protect):
        try:
            with _Run(kind, options, reason) as run:
                outcome = run.run(target, payload)
                if "result" in outcome:
                    show(outcome["result"])
        except Refused as error:
            reason = str(error)
            continue
        return _result(outcome)
    raise InputError(f"--protect {options.protect}: this machine refuses it ({reason}).")


def _run_on_windows(target: str, payload: dict[str, Any], options: Options) -> dict[str, Any]:
    """There is no protection for Windows yet, so nothing runs unless the user says so."""
    if options.protect != NONE:
        raise InputError(
            "your files cannot be protected on Windows. Run it in WSL, or say --no-protect."
        )
    module, _, name = target.partition(":")
    with contextlib.redirect_stdout(sys.stderr):  # the report alone goes to standard output
        result: dict[str, Any] = getattr(import_module(module), name)(payload, Unwatched())
    return result


def _kinds_to_try(protect: str) -> tuple[str, ...]:
    if protect == "auto":
        return (NAMESPACE, GUARD) if sys.platform == "linux" else (GUARD,)
    return (protect,)


def _result(outcome: dict[str, Any]) -> dict[str, Any]:
    if "interrupted" in outcome:
        raise KeyboardInterrupt
    if "error" in outcome:
        kind, text = outcome["error"]
        raise getattr(errors, kind)(text)
    result: dict[str, Any] = outcome["result"]
    return result


class Refused(Exception):
    """This protection cannot be had here; nothing was run."""


class _Run:
    """One child process and its scratch folder."""

    def __init__(self, kind: str, options: Options, reason: str) -> None:
        self._kind = kind
        self._options = options
        self._reason = reason
        self._needed = _needed_folders()
        self._signals: list[int] = []
        self._connections = Connections(refuse=options.offline)
        self._listener: int | None = None
        self._token = secrets.token_hex(8)
        self._exit = contextlib.ExitStack()

    def __enter__(self) -> _Run:
        self._scratch = None if self._kind == NONE else _make_scratch(self._kind)
        if self._scratch is not None:
            self._exit.callback(self._scratch.remove)
        self._exit.enter_context(_orphans_ended(self._token))
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()
        for number in self._signals:
            if number != signal.SIGINT:
                os.kill(os.getpid(), number)  # now that nothing is left: as if it had come only now

    def run(self, target: str, payload: dict[str, Any]) -> dict[str, Any]:
        here, there = multiprocessing.Pipe()
        with here, there:
            flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
            start = _START.format(there.fileno())
            command = [sys.executable, *flags, "-P", "-c", start, json.dumps(sys.path)]
            process = subprocess.Popen(
                command, pass_fds=(there.fileno(),), env={**os.environ, _MARK: self._token}
            )
            there.close()
            with self._passing_signals_on(process):
                send(here, self._request(target, payload))
                outcome = self._listen(here, process)
                _end(process, _SECONDS_TO_END if outcome else 0)
        if outcome is not None and "refused" in outcome:
            raise Refused(outcome["refused"])
        if outcome is None:
            outcome = {"error": ["TraceError", self._how_it_died(process.returncode)]}
        self._keep()
        return outcome

    def _request(self, target: str, payload: dict[str, Any]) -> dict[str, Any]:
        return {
            "target": target,
            "payload": payload,
            "protection": self._kind,
            "reason": self._reason,
            "scratch": self._scratch.path if self._scratch else None,
            "needed": self._needed,
            "keep_files": self._options.keep_files,
            "offline": self._options.offline,
        }

    # -- while it runs ----------------------------------------------------------------------------------------------

    def _listen(
        self, connection: Connection, process: subprocess.Popen[bytes]
    ) -> dict[str, Any] | None:
        """Answer questions until the outcome comes; None where the process ended without one."""
        while True:
            message = self._next_message(connection, process)
            if message is None or "ask" not in message:
                return message
            send(connection, self._answer(message, process.pid))

    def _next_message(
        self, connection: Connection, process: subprocess.Popen[bytes]
    ) -> dict[str, Any] | None:
        while True:
            waiting: list[Any] = (
                [connection] if self._listener is None else [connection, self._listener]
            )
            ready = wait(waiting, timeout=0.2)
            if self._listener in ready:
                self._connections.answer(self._listener)
            if connection in ready:
                try:
                    message: dict[str, Any] = receive(connection)
                except (EOFError, OSError):
                    return None
                return message
            if process.poll() is not None and not connection.poll():
                return None

    def _answer(self, message: dict[str, Any], child: int) -> dict[str, Any]:
        if message["ask"] == "listener":
            return {"copied": self._copy_listener(child, message["descriptor"])}
        if message["ask"] == "connections":
            return self._connections.summary(message["lookups"])
        changes = self._changes()
        return {name: len(getattr(changes, name)) for name in ("written", "replaced", "deleted")}

    def _copy_listener(self, child: int, descriptor: int) -> bool:
        from vramcast.sandbox import linux

        try:
            self._listener = linux.copy_descriptor(child, descriptor)
        except OSError:
            return False
        self._exit.callback(os.close, self._listener)
        return True

    @contextlib.contextmanager
    def _passing_signals_on(self, process: subprocess.Popen[bytes]) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def pass_on(number: int, frame: FrameType | None) -> None:
            repeated = number in self._signals
            self._signals.append(number)
            if number != signal.SIGINT or repeated or not _is_on_terminal():
                process.send_signal(number)  # Ctrl-C on a terminal reaches both

        numbers = [
            getattr(signal, name)
            for name in ("SIGINT", "SIGTERM", "SIGHUP")
            if hasattr(signal, name)
        ]
        before = {number: signal.signal(number, pass_on) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    # -- when it has ended ------------------------------------------------------------------------------------------

    def _layers(self) -> list[Layer]:
        return [] if self._scratch is None else read_layers(self._scratch.path)

    def _changes(self) -> Changes:
        return find_changes(self._layers())

    def _keep(self) -> None:
        if self._options.keep_files is not None and self._scratch is not None:
            keep_files(self._layers(), self._changes(), self._options.keep_files)

    def _how_it_died(self, code: int) -> str:
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        left = "" if self._kind == NONE else " Your files are as they were."
        return f"the script's process ended with {how} before there was a report.{left}"


def _needed_folders() -> list[str]:
    folders = [os.getcwd(), os.path.expanduser("~"), tempfile.gettempdir()]
    return [
        os.path.realpath(folder)
        for folder in folders
        if os.path.isdir(folder) and os.access(folder, os.W_OK)
    ]


def _make_scratch(kind: str) -> Scratch:
    folders = [tempfile.gettempdir(), "/var/tmp", os.path.expanduser("~/.cache"), "/dev/shm"]
    usable = [folder for folder in folders if os.path.isdir(folder) and os.access(folder, os.W_OK)]
    if kind == NAMESPACE:
        from vramcast.sandbox.namespace import NO_UPPER_LAYER, file_system_of, read_mounts

        mounts = read_mounts()
        usable = [
            folder
            for folder in usable
            if file_system_of(os.path.realpath(folder), mounts) not in NO_UPPER_LAYER
        ]
    for folder in usable:
        remove_abandoned(folder)
        with contextlib.suppress(OSError):
            return Scratch(os.path.realpath(folder))
    raise Refused(
        f"none of {', '.join(folders)} can hold the scratch layer; TMPDIR can name another folder"
    )


def _is_on_terminal() -> bool:
    """Whether this process is in the foreground of a terminal, whose Ctrl-C goes to the child as well."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _end(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait for the process; after `seconds` it is asked to end, then it is ended."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=seconds)
        return
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_SECONDS_TO_OBEY)
        return
    process.kill()
    process.wait()


@contextlib.contextmanager
def _orphans_ended(token: str) -> Iterator[None]:
    """Programs that a script started and left running end with it: their files are about to vanish."""
    if sys.platform != "linux":
        yield
        return
    from vramcast.sandbox import linux

    linux.adopt_orphans(True)
    try:
        yield
    finally:
        deadline = time.monotonic() + _SECONDS_TO_OBEY
        while (left := _orphans(token)) and time.monotonic() < deadline:
            for child in left:
                _signal_and_reap(child, signal.SIGTERM)
            time.sleep(0.02)
        for child in _orphans(token):
            _signal_and_reap(child, signal.SIGKILL)
        linux.adopt_orphans(False)


def _orphans(token: str) -> list[int]:
    """Children of this process that carry the run's mark; others belong to somebody else."""
    mark = f"{_MARK}={token}".encode()
    return [child for child in _children() if mark in _environment(child)]


def _children() -> Iterator[int]:
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{name}/stat", "rb") as file:
            if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():
                yield int(name)


def _environment(process: int) -> list[bytes]:
    with contextlib.suppress(OSError), open(f"/proc/{process}/environ", "rb") as file:
        return file.read().split(b"\0")
    return []


def _signal_and_reap(child: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(child, number)
        os.waitpid(child, os.WNOHANG)
