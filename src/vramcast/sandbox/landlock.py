"""Landlock: from some moment on, the kernel refuses this process and its children every write outside some folders.

It cannot redirect anything; behind the guard it refuses what Python does not see: Rust and C libraries, other programs.
Needs no rights (Linux 5.13 and later, where it is switched on) and cannot be undone in the same process.
"""

from __future__ import annotations

import os

from vramcast.sandbox import linux

_WRITE_FILE = 1 << 1
_REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))
_REFER = 1 << 13  # version 2: renaming from one folder to another
_TRUNCATE = 1 << 14  # version 3


def refuse_writes_outside(folders: list[str]) -> bool:
    """Whether the kernel does it."""
    version = linux.landlock_version()
    if version < 1:
        return False
    handled = _WRITE_FILE | _REMOVE_AND_MAKE
    if version >= 2:
        handled |= _REFER
    if version >= 3:
        handled |= _TRUNCATE
    ruleset = linux.landlock_ruleset(handled)
    try:
        for folder in folders:
            linux.landlock_allow(ruleset, handled, folder)
        linux.give_up_privileges()
        linux.landlock_enforce(ruleset)
    finally:
        os.close(ruleset)
    return True
