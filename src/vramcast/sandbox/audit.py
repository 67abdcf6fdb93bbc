"""The last line of the guard: Python's audit events of writes that were not redirected, and of programs started.

An audit hook cannot be removed again, so there is one per process, and it asks the auditor that is active.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

WRITING_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Events whose first arguments are paths that are about to change, with how many of them.
CHANGING_EVENTS = {
    "os.chmod": 1,
    "os.chown": 1,
    "os.link": 2,
    "os.mkdir": 1,
    "os.remove": 1,
    "os.removexattr": 1,
    "os.rename": 2,
    "os.rmdir": 1,
    "os.setxattr": 1,
    "os.truncate": 1,
    "os.utime": 1,
    "sqlite3.connect": 1,
}
STARTING_EVENTS = ("subprocess.Popen", "os.system", "os.posix_spawn", "os.exec", "os.spawn")
# Programs that libraries ask about the machine, and that write nothing; of some only these sub-commands.
READING_PROGRAMS = frozenset(
    [
        "arch",
        "awk",
        "cat",
        "cut",
        "echo",
        "file",
        "free",
        "getconf",
        "grep",
        "head",
        "hostname",
        "ldconfig",
        "ldd",
        "ls",
        "lsb_release",
        "lscpu",
        "nproc",
        "nvcc",
        "nvidia-smi",
        "ps",
        "rocm-smi",
        "rocminfo",
        "sort",
        "sw_vers",
        "sysctl",
        "tail",
        "test",
        "tr",
        "true",
        "uname",
        "wc",
        "which",
        "whereis",
        "whoami",
    ]
)
READING_COMMANDS = {
    "git": frozenset(
        ("branch", "describe", "diff", "log", "ls-files", "remote", "rev-parse", "show", "status")
    ),
    "pip": frozenset(("freeze", "list", "show")),
}
SHELLS = frozenset(("bash", "dash", "sh", "zsh"))

_active: list[Auditor] = []
_installed: list[bool] = []
_local = threading.local()


def refusal(what: str) -> PermissionError:
    return PermissionError(
        errno.EPERM,
        f"vramcast refuses {what}: it cannot be redirected into the scratch layer, and your files are left alone. "
        "`vramcast trace` on Linux with user namespaces can; --no-protect lets the script do it",
    )


class Auditor:
    def __init__(self, may_change: Callable[[str], bool], *, programs_may_run: bool) -> None:
        self._may_change = may_change
        self._programs_may_run = programs_may_run

    def start(self) -> None:
        _active.append(self)
        if not _installed:
            _installed.append(True)
            sys.addaudithook(_ask_active)

    def stop(self) -> None:
        _active.remove(self)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """For a call that only looks like a write."""
        _local.paused = getattr(_local, "paused", 0) + 1
        try:
            yield
        finally:
            _local.paused -= 1

    def check(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            self._check_open(*args)
        elif event in CHANGING_EVENTS:
            for path in args[: CHANGING_EVENTS[event]]:
                self._check_path(path, event)
        elif event == "os.symlink":
            self._check_path(args[1], event)
        elif event in STARTING_EVENTS and not self._programs_may_run:
            _check_program(args)

    def _check_open(self, path: Any, mode: Any, flags: int) -> None:
        if flags & WRITING_FLAGS and not getattr(_local, "paused", 0):
            self._check_path(path, "open")

    def _check_path(self, path: Any, event: str) -> None:
        if path is None or isinstance(path, int):
            return
        text = os.fsdecode(path)
        if text == ":memory:" and event == "sqlite3.connect":
            return
        if not self._may_change(os.path.abspath(text)):
            raise refusal(f"{event} of {text}")


def _check_program(args: tuple[Any, ...]) -> None:
    given = args[1] if len(args) > 1 and args[1] else args[0]
    words = (
        [os.fsdecode(word) for word in given]
        if isinstance(given, (list, tuple))
        else [os.fsdecode(given)]
    )
    if len(words) == 1:
        parts = _shell_parts(words[0])
    elif os.path.basename(words[0]) in SHELLS and words[1] == "-c" and len(words) > 2:
        parts = _shell_parts(words[2])
    else:
        parts = [words]
    if not parts or not all(map(_only_reads, parts)):
        raise refusal(f"to start {words[0] if len(words) == 1 else os.path.basename(words[0])}")


def _shell_parts(line: str) -> list[list[str]]:
    """The programs of a shell's line; none where it writes into a file or does more than run them."""
    if any(sign in line for sign in ">$`("):
        return []
    with contextlib.suppress(ValueError):
        return [shlex.split(part) for part in re.split(r"\|\||&&|[|;&]", line)]
    return []


def _only_reads(words: list[str]) -> bool:
    if not words:
        return False
    program = os.path.basename(words[0])
    if program in READING_COMMANDS:
        return len(words) > 1 and words[1] in READING_COMMANDS[program]
    return program in READING_PROGRAMS


def _ask_active(event: str, args: tuple[Any, ...]) -> None:
    for auditor in _active:
        auditor.check(event, args)
