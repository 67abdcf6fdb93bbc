"""System calls that Python's standard library does not offer: namespaces, mounts, capabilities, parent death.

Linux only. Every function raises OSError with the kernel's reason.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_NOATIME, MS_NODIRATIME, MS_BIND, MS_REC, MS_PRIVATE, MS_RELATIME = (
    1024,
    2048,
    4096,
    16384,
    1 << 18,
    1 << 21,
)

# What statvfs says about a mount, as the flags that mount() takes.
_MOUNT_FLAG_OF_STATVFS = {
    2: MS_NOSUID,
    4: MS_NODEV,
    8: MS_NOEXEC,
    1024: MS_NOATIME,
    2048: MS_NODIRATIME,
    4096: MS_RELATIME,
}

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
_CAP_SYS_ADMIN = 21
_CAPABILITY_VERSION_3 = 0x20080522

# Numbers that are the same on every architecture since Linux 5.
_SYS_PIDFD_GETFD = 438
_SYS_LANDLOCK_CREATE_RULESET, _SYS_LANDLOCK_ADD_RULE, _SYS_LANDLOCK_RESTRICT_SELF = 444, 445, 446

_libc = ctypes.CDLL(None, use_errno=True)


def check_result(result: int, what: str) -> int:
    """The result of a C call, or OSError where it failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(number: int, *arguments: object, what: str) -> int:
    words = [
        ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments
    ]
    return check_result(_libc.syscall(ctypes.c_long(number), *words), what)


def can_administer() -> bool:
    """Whether this process may mount without a user namespace of its own."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_SYS_ADMIN & 1)
    return False


def enter_namespaces(flags: int) -> None:
    check_result(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    encoded = [
        None if text is None else os.fsencode(text) for text in (source, target, kind, options)
    ]
    result = _libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])
    check_result(result, f"mount on {target}")


def make_read_only(path: str) -> None:
    """No process of this namespace can write through the mount at `path` any more."""
    seen = os.statvfs(path).f_flag
    kept = sum(flag for bit, flag in _MOUNT_FLAG_OF_STATVFS.items() if seen & bit)
    mount("none", path, None, MS_REMOUNT | MS_BIND | MS_RDONLY | kept)


def drop_capabilities() -> None:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    check_result(_libc.capset(header, nothing), "capset")


def prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    check_result(_libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero), "prctl")


def end_with_parent(signal_number: int) -> None:
    """The kernel sends this signal when the parent ends, however it ends."""
    prctl(_PR_SET_PDEATHSIG, signal_number)


def let_parent_look() -> None:
    """The parent may read this process's memory, as for any process of the same user."""
    prctl(_PR_SET_DUMPABLE, 1)


def adopt_orphans(adopt: bool) -> None:
    """Processes whose own parent ended become children of this one."""
    prctl(_PR_SET_CHILD_SUBREAPER, int(adopt))


def give_up_privileges() -> None:
    """No program that is started from here gains rights, which the kernel asks for before it takes a filter."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)


def copy_descriptor(process: int, descriptor: int) -> int:
    """Another process's file descriptor, as one of our own."""
    handle = os.pidfd_open(process)
    try:
        return syscall(_SYS_PIDFD_GETFD, handle, descriptor, 0, what="pidfd_getfd")
    finally:
        os.close(handle)


def landlock_version() -> int:
    """0 where the kernel has no Landlock or it is switched off."""
    try:
        return syscall(_SYS_LANDLOCK_CREATE_RULESET, None, 0, 1, what="landlock_create_ruleset")
    except OSError:
        return 0


def landlock_ruleset(handled: int) -> int:
    attributes = ctypes.c_uint64(handled)
    return syscall(
        _SYS_LANDLOCK_CREATE_RULESET, ctypes.byref(attributes), 8, 0, what="landlock_create_ruleset"
    )


def landlock_allow(ruleset: int, allowed: int, path: str) -> None:
    class Rule(ctypes.Structure):
        _pack_ = 1
        _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))

    parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = Rule(allowed, parent)
        syscall(_SYS_LANDLOCK_ADD_RULE, ruleset, 1, ctypes.byref(rule), 0, what="landlock_add_rule")
    finally:
        os.close(parent)


def landlock_enforce(ruleset: int) -> None:
    syscall(_SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0, what="landlock_restrict_self")
