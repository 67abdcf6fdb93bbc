"""What a traced process and the process that watches over it tell each other: small JSON messages over a socket.

from the child    {"ask": "listener", "descriptor": 7}  {"ask": "changes"}  {"ask": "connections", "lookups": {...}}
                  {"refused": why}   this protection cannot be had; nothing was run
                  {"result": {...}}  {"error": [kind, text]}  {"interrupted": true}
from the parent   the request, then one answer for every question
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

from vramcast.sandbox.network import (
    OFFLINE_ENVIRONMENT,
    Connections,
    install_filter,
    watch_names,
    watch_python_sockets,
)

NAMESPACE, GUARD, NONE = "namespace", "guard", "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """How the user's files are kept as they are."""

    kind: str  # NAMESPACE, GUARD or NONE
    kernel_refuses: bool = False  # of a guard: the kernel refuses what Python does not see
    reason: str = ""  # why it is not the namespace

    def explain(self, error: BaseException) -> str | None:
        """One sentence if the error may come from the kernel, which says no more than "Permission denied"."""
        if not self.kernel_refuses or not any(map(_may_be_refused, _chain(error))):
            return None
        return (
            "The guard lets no program and no library in C or Rust write outside of the scratch layer, and your files "
            "are left alone; if that was tried here, `vramcast trace` where user namespaces are allowed can follow it, "
            "and --no-protect lets the script do it."
        )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and those that it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _may_be_refused(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM):
        return True
    # Libraries in C++ and Rust pass on the text alone; programs say why on their own standard error.
    return (
        isinstance(error, subprocess.CalledProcessError)
        or "permission denied" in str(error).lower()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What a run did outside its own memory."""

    protection: Protection
    written: int = 0
    replaced: int = 0
    deleted: int = 0
    kept_in: str | None = None
    connections: int = 0
    hosts: tuple[str, ...] = ()
    offline: bool = False

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "hosts": list(self.hosts)}


class Session:
    """The child's side."""

    def __init__(
        self, connection: Connection, protection: Protection, request: dict[str, Any]
    ) -> None:
        self._connection = connection
        self.protection = protection
        self._request = request
        self._lookups: dict[str, list[str]] = {}
        self._seen_here: Connections | None = None  # where the parent is not told by the kernel

    def watch_network(self) -> None:
        offline = self._request["offline"]
        if offline:
            for name, value in OFFLINE_ENVIRONMENT.items():
                os.environ.setdefault(name, value)
        watch_names(self._lookups)
        listener = install_filter()
        if listener is not None and self._ask("listener", descriptor=listener)["copied"]:
            os.close(listener)
        else:
            self._seen_here = Connections(refuse=offline)
            watch_python_sockets(self._seen_here)

    def footprint(self) -> Footprint:
        """Asked for when the script has ended."""
        changes = self._ask("changes") if self.protection.kind != NONE else {}
        if self._seen_here is None:
            network = self._ask("connections", lookups=self._lookups)
        else:
            network = self._seen_here.summary(self._lookups)
        return Footprint(
            protection=self.protection,
            kept_in=self._request["keep_files"],
            offline=self._request["offline"],
            connections=network["connections"],
            hosts=tuple(network["hosts"]),
            **changes,
        )

    def _ask(self, question: str, **details: Any) -> dict[str, Any]:
        send(self._connection, {"ask": question, **details})
        answer: dict[str, Any] = receive(self._connection)
        return answer


class Unwatched:
    """For a target that runs in this very process, without protection and without anybody to ask."""

    protection = Protection(kind=NONE)

    def footprint(self) -> Footprint:
        return Footprint(protection=self.protection)


def send(connection: Connection, message: dict[str, Any]) -> None:
    connection.send_bytes(json.dumps(message).encode())


def receive(connection: Connection) -> Any:
    return json.loads(connection.recv_bytes())
