"""Connections of a traced script to other machines: counted by host, or refused.

Where the kernel can notify (Linux 5.5 and later), the watching process is asked about every connect() of the script, of
its libraries in C, Go or Rust and of programs it starts. Elsewhere Python's own sockets are seen by an audit hook.
Names are those that Python looked up; an address that another program connected to stays a number.

    child     `watch_names`, `install_filter` → a descriptor, which the parent copies
    parent    `Connections.answer` for every connect()
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import ipaddress
import os
import platform
import socket
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vramcast.sandbox import linux

# By machine: the architecture as audit knows it, seccomp(), connect().
_SYSTEM_CALLS = {"x86_64": (0xC000003E, 317, 42), "aarch64": (0xC00000B7, 277, 203)}
_SET_MODE_FILTER, _NEW_LISTENER = 1, 8
_RETURN_NOTIFY, _RETURN_ALLOW = 0x7FC00000, 0x7FFF0000
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_OFFSET_NUMBER, _OFFSET_ARCHITECTURE = 0, 4
_RECEIVE, _SEND = 0xC0502100, 0xC0182101  # ioctls of a listener
_CONTINUE = 1
_NOTIFICATION = struct.Struct(
    "=QIIiIQ6Q"
)  # id, thread, flags, number, architecture, instruction, arguments
_RESPONSE = struct.Struct("=QqiI")  # id, value, error, flags
_LONGEST_ADDRESS = 128

OFFLINE_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"}


@dataclass(slots=True)
class Connections:
    """What was asked for, in order."""

    refuse: bool
    addresses: list[str] = field(default_factory=list)

    def answer(self, listener: int) -> None:
        """One connect() of the script: allow it or refuse it."""
        import fcntl

        buffer = bytearray(_NOTIFICATION.size)
        try:
            fcntl.ioctl(listener, _RECEIVE, buffer)
        except OSError:  # the caller is gone
            return
        key, thread, _, _, _, _, descriptor, pointer, length, *_ = _NOTIFICATION.unpack(buffer)
        error = 0
        with contextlib.suppress(OSError, ValueError):
            error = self._judge(thread, descriptor, pointer, length)
        response = _RESPONSE.pack(key, 0, -error, 0 if error else _CONTINUE)
        with contextlib.suppress(OSError):
            fcntl.ioctl(listener, _SEND, response)

    def _judge(self, thread: int, descriptor: int, pointer: int, length: int) -> int:
        with open(f"/proc/{thread}/mem", "rb", buffering=0) as memory:
            memory.seek(pointer)
            address = _parse_address(memory.read(min(length, _LONGEST_ADDRESS)))
        if address is None or is_this_machine(address):
            return 0
        if _is_stream(thread, descriptor):
            self.addresses.append(address)
        return errno.ENETUNREACH if self.refuse else 0

    def summary(self, lookups: dict[str, list[str]]) -> dict[str, Any]:
        """`lookups`: addresses by name, none where a name was not found."""
        names = {address: name for name, found in lookups.items() for address in found}
        not_found = [name for name, found in lookups.items() if not found]
        hosts = [names.get(address, address) for address in self.addresses] + not_found
        return {"connections": len(hosts), "hosts": list(dict.fromkeys(hosts))}


def _parse_address(raw: bytes) -> str | None:
    """The Internet address in a sockaddr; None for sockets of this machine's own."""
    family = struct.unpack_from("=H", raw)[0]
    if family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, raw[4:8])
    if family == socket.AF_INET6:
        return socket.inet_ntop(socket.AF_INET6, raw[8:24])
    return None


def is_this_machine(address: str) -> bool:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(parsed, "ipv4_mapped", None)
    if mapped is not None:
        parsed = mapped
    if parsed.is_loopback or parsed.is_unspecified:
        return True
    family = socket.AF_INET if parsed.version == 4 else socket.AF_INET6
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((str(parsed), 0))  # only an address of one's own can be bound
        return True
    return False


def _is_stream(thread: int, descriptor: int) -> bool:
    """Datagram sockets are connected to look up names and to learn one's own address; nothing is sent by that."""
    with open(f"/proc/{thread}/status") as lines:
        process = next(int(line.split()[1]) for line in lines if line.startswith("Tgid:"))
    with socket.socket(fileno=linux.copy_descriptor(process, descriptor)) as copied:
        return copied.type == socket.SOCK_STREAM


def install_filter() -> int | None:
    """A descriptor on which the kernel asks about connect(); None where it does not."""
    if sys.platform != "linux" or platform.machine() not in _SYSTEM_CALLS:
        return None
    architecture, seccomp, connect = _SYSTEM_CALLS[platform.machine()]
    steps = (
        (_LOAD, 0, 0, _OFFSET_ARCHITECTURE),
        (_JUMP_IF_EQUAL, 0, 3, architecture),
        (_LOAD, 0, 0, _OFFSET_NUMBER),
        (_JUMP_IF_EQUAL, 0, 1, connect),
        (_RETURN, 0, 0, _RETURN_NOTIFY),
        (_RETURN, 0, 0, _RETURN_ALLOW),
    )
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_void_p))

    program = Program(len(steps), ctypes.addressof(code))
    try:
        linux.give_up_privileges()
        return linux.syscall(
            seccomp, _SET_MODE_FILTER, _NEW_LISTENER, ctypes.byref(program), what="seccomp"
        )
    except OSError:
        return None


def watch_names(lookups: dict[str, list[str]]) -> None:
    """Remember which names Python asks for, and what they were found to be."""
    true = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **options: Any) -> Any:
        try:
            found = true(host, *args, **options)
        except OSError:
            if _is_name(host):
                lookups.setdefault(_text(host), [])
            raise
        if _is_name(host):
            lookups[_text(host)] = [str(entry[4][0]) for entry in found]
        return found

    socket.getaddrinfo = getaddrinfo


def _text(host: Any) -> str:
    return host.decode(errors="replace") if isinstance(host, bytes) else str(host)


def _is_name(host: Any) -> bool:
    if host is None or _text(host) in ("", "localhost", socket.gethostname()):
        return False
    try:
        ipaddress.ip_address(_text(host).partition("%")[0])
    except ValueError:
        return True
    return False


def watch_python_sockets(connections: Connections) -> None:
    """Without the kernel's help: an audit hook sees Python's own sockets."""
    sys.addaudithook(_hook(connections))


def _hook(connections: Connections) -> Callable[[str, tuple[Any, ...]], None]:
    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event != "socket.connect" or not isinstance(args[1], tuple):
            return
        connected, address = args[0], str(args[1][0])
        if connected.family not in (socket.AF_INET, socket.AF_INET6):
            return
        with contextlib.suppress(OSError, ValueError):
            address = str(socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][4][0])
            if is_this_machine(address):
                return
        if connected.type == socket.SOCK_STREAM:
            connections.addresses.append(address)
        if connections.refuse:
            raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))

    return hook
