"""The traced process: takes its protection, runs the target, and sends back what came out.

Started by `process.run_protected`, never imported by other code. Nothing heavy is loaded before the protection is on,
since a process with threads cannot enter a namespace.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from vramcast.errors import VramcastError
from vramcast.sandbox.layer import Layer, write_layers
from vramcast.sandbox.session import GUARD, NAMESPACE, NONE, Protection, Session, receive, send


def main(descriptor: int) -> None:
    connection = Connection(descriptor)
    request = receive(connection)
    os.dup2(
        2, 1
    )  # what the script prints goes to standard error: standard output is for the report alone
    with contextlib.ExitStack() as stack:
        try:
            protection = stack.enter_context(_protected(request))
        except _Refused as error:
            send(connection, {"refused": str(error)})
            return
        session = Session(connection, protection, request)
        session.watch_network()
        send(connection, _run(request, session))


class _Refused(Exception):
    pass


@contextlib.contextmanager
def _protected(request: dict[str, Any]) -> Iterator[Protection]:
    kind, scratch = request["protection"], request["scratch"]
    if kind == NONE:
        yield Protection(kind=NONE)
    elif kind == NAMESPACE:
        _enter_namespace(scratch, request["needed"])
        yield Protection(kind=NAMESPACE)
    else:
        with _guarded(scratch) as kernel_refuses:
            yield Protection(kind=GUARD, kernel_refuses=kernel_refuses, reason=request["reason"])


def _enter_namespace(scratch: str, needed: list[str]) -> None:
    from vramcast.sandbox import linux, namespace

    try:
        namespace.enter(scratch, needed)
        linux.let_parent_look()
    except namespace.Refused as error:
        raise _Refused(str(error)) from error
    namespace.rename_folders_by_copy()
    _end_with_parent()


def _end_with_parent() -> None:
    if sys.platform == "linux":
        from vramcast.sandbox import linux

        parent = os.getppid()
        linux.end_with_parent(signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def _guarded(scratch: str) -> Iterator[bool]:
    from vramcast.sandbox.guard import Guard

    _end_with_parent()
    upper = os.path.join(scratch, "0", "upper")
    os.makedirs(upper)
    write_layers(scratch, [Layer(lower="/", upper=upper)])
    temporary = os.path.join(scratch, "tmp")
    os.makedirs(temporary)
    os.environ["TMPDIR"] = tempfile.tempdir = (
        temporary  # other programs' temporary files need no redirection
    )
    kernel_refuses = False
    if sys.platform == "linux":
        from vramcast.sandbox.landlock import refuse_writes_outside

        with contextlib.suppress(OSError):
            kernel_refuses = refuse_writes_outside([scratch, "/dev", "/proc"])
    with Guard(upper, scratch, kernel_refuses=kernel_refuses):
        yield kernel_refuses


def _run(request: dict[str, Any], session: Session) -> dict[str, Any]:
    module, _, name = request["target"].partition(":")
    try:
        target: Callable[..., dict[str, Any]] = getattr(import_module(module), name)
        return {"result": target(request["payload"], session)}
    except VramcastError as error:
        return {"error": [type(error).__name__, str(error)]}
    except KeyboardInterrupt:
        return {"interrupted": True}
    except Exception:
        return {"error": ["InvariantError", traceback.format_exc()]}
