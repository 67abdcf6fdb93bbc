"""A pickle reader that can build nothing but None, bools, numbers, strings, bytes, tuples, lists and dicts.

A memory snapshot is a stranger's pickle, and `pickle.load` runs what a pickle says. This interpreter has no opcode that
imports, calls or builds an object, so there is nothing to allow or forbid by name. It reads the file in pieces, hands
every finished dict to `absorb` so that the caller can keep something smaller, and asks the disk for no more bytes than
the file has: declared lengths and memo numbers allocate nothing.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any, BinaryIO, NoReturn

from vramcast.errors import SnapshotError

_CHUNK_BYTES = 1 << 22
_LOOKAHEAD_BYTES = (
    1 << 16
)  # at least this much is in the buffer when an opcode starts, unless the file ends
_LONGEST_TEXT = 1 << 24  # bytes of one string; torch writes names of files and functions
_LONGEST_NUMBER = 32  # characters or bytes; torch writes 64-bit integers
# Far beyond what torch writes; damaged or hostile files end here, before they fill the machine.
_MOST_OPEN = 1000  # containers that are begun and not ended
_MOST_WAITING = 1 << 20  # values that no container has taken yet
_MOST_DICTS = 1 << 19  # that were not packed: segments and blocks
_UNSIGNED_4 = struct.Struct("<I")
_PACKED = object()  # stands in the memo for a dict that was packed

_REFUSED = {
    b"c": "imports a name (GLOBAL)",
    b"\x93": "imports a name (STACK_GLOBAL)",
    b"R": "calls a function (REDUCE)",
    b"i": "creates an object (INST)",
    b"o": "creates an object (OBJ)",
    b"\x81": "creates an object (NEWOBJ)",
    b"\x92": "creates an object (NEWOBJ_EX)",
    b"b": "sets an object's state (BUILD)",
    b"\x82": "uses an extension (EXT1)",
    b"\x83": "uses an extension (EXT2)",
    b"\x84": "uses an extension (EXT4)",
    b"P": "refers to outside objects (PERSID)",
    b"Q": "refers to outside objects (BINPERSID)",
    b"\x97": "refers to outside buffers (NEXT_BUFFER)",
    b"\x98": "refers to outside buffers (READONLY_BUFFER)",
}

# A new list filled with memo references only, which is how a call stack is written: `] memoize ( h. h. j.... e`.
_REFERENCE_LIST = re.compile(rb"\](?:\x94|q.|r.{4})\(((?:h.|j.{4})+)e", re.DOTALL)
_REFERENCE = re.compile(rb"h(.)|j(.{4})", re.DOTALL)


class Packed(bytes):
    """What a dict was packed into. Packed items of a list are kept as one bytearray, and nothing may refer to them."""

    __slots__ = ()


class Building(dict[Any, Any]):
    """A dict under construction that remembers its memo number, so that what replaces it can take its place there."""

    __slots__ = ("memo_key",)

    def __init__(self) -> None:
        self.memo_key: int | None = None


class PickleStream:
    """Reads one pickle. `absorb(dict)` returns the value to keep in the dict's place, or None to keep the dict;
    `absorb_list(items)` does the same for a list of memo references, given once for each different list."""

    def __init__(
        self,
        file: BinaryIO,
        file_bytes: int,
        *,
        absorb: Callable[[dict[Any, Any]], object | None],
        absorb_list: Callable[[list[Any]], object | None],
        progress: Callable[[int, int], None],
    ) -> None:
        self._file = file
        self._file_bytes = file_bytes
        self._absorb = absorb
        self._absorb_list = absorb_list
        self._progress = progress
        self._buffer = b""
        self._pos = 0
        self._buffer_start = 0  # where in the file the buffer begins
        self._refill_at = -1
        self._stack: list[Any] = []
        self._kept_dicts = 0
        self._marks: list[int] = []  # how high the stack was at each open mark
        self._memo: list[Any] = []
        self._sparse_memo: dict[int, Any] = {}
        self._known_lists: dict[bytes, Any] = {}

    def load(self) -> object:
        self._refill()
        handlers = [getattr(self, _METHODS.get(code, "_op_unknown")) for code in range(256)]
        try:
            while True:
                if self._pos > self._refill_at:
                    self._refill()
                code = self._buffer[self._pos]
                self._pos += 1
                if code == 0x2E:  # STOP
                    return self._stack.pop()
                handlers[code]()
        except (IndexError, struct.error):
            self._fail("ends too early or is damaged")
        except (TypeError, ValueError, AttributeError) as error:
            self._fail(f"is damaged ({type(error).__name__})")

    # Bytes

    def _refill(self) -> None:
        """Drop what is read and put the next piece behind it."""
        chunk = self._file.read(_CHUNK_BYTES)
        self._buffer_start += self._pos
        self._buffer = self._buffer[self._pos :] + chunk
        self._pos = 0
        self._refill_at = len(self._buffer) - _LOOKAHEAD_BYTES if chunk else len(self._buffer)
        if len(self._stack) > _MOST_WAITING:
            self._fail(f"has more than {_MOST_WAITING:,} values that belong to nothing")
        self._progress(self._buffer_start, self._file_bytes)

    def _read(self, nbytes: int) -> bytes:
        end = self._pos + nbytes
        if end > len(self._buffer):
            if self._buffer_start + end > self._file_bytes:
                self._fail(
                    f"ends in the middle: it says {nbytes} more bytes follow, and they do not"
                )
            if nbytes > _LONGEST_TEXT:
                self._fail(f"has a string of {nbytes:,} bytes")
            self._buffer += self._file.read(end - len(self._buffer))
        data = self._buffer[self._pos : end]
        if len(data) != nbytes:
            self._fail("ends in the middle: the file is truncated")
        self._pos = end
        return data

    def _line(self) -> bytes:
        end = self._buffer.find(b"\n", self._pos)
        while end < 0:
            size = len(self._buffer)
            self._buffer += self._file.read(_CHUNK_BYTES)
            if len(self._buffer) == size:
                self._fail("ends in the middle of a line: the file is truncated")
            if size - self._pos > _LONGEST_TEXT:
                self._fail(f"has a string of more than {_LONGEST_TEXT:,} bytes")
            end = self._buffer.find(b"\n", size)
        line = self._buffer[self._pos : end]
        self._pos = end + 1
        return line

    def _unsigned(self, nbytes: int) -> int:
        """A small number that belongs to an opcode: it is in the buffer, unless the file ends."""
        data = self._buffer[self._pos : self._pos + nbytes]
        if len(data) != nbytes:
            self._fail("ends in the middle: the file is truncated")
        self._pos += nbytes
        return int.from_bytes(data, "little")

    def _fail(self, reason: str) -> NoReturn:
        raise SnapshotError(
            f"not a readable memory snapshot: at byte {self._buffer_start + self._pos:,} the pickle {reason}."
        )

    # Stack and memo

    def _pop_to_mark(self) -> list[Any]:
        start = self._marks.pop()
        items = self._stack[start:]
        del self._stack[start:]
        return items

    def _remember(self, key: int, value: Any) -> None:
        if type(value) is Building:
            value.memo_key = key
        if key == len(self._memo):
            self._memo.append(value)
        elif 0 <= key < len(self._memo):
            self._memo[key] = value
        else:
            self._sparse_memo[key] = value

    def _recall(self, key: int) -> Any:
        if 0 <= key < len(self._memo):
            value = self._memo[key]
        elif key in self._sparse_memo:
            value = self._sparse_memo[key]
        else:
            self._fail(f"is damaged (it refers to entry {key} of its memo, which does not exist)")
        if value is _PACKED:
            self._fail("refers to an event for a second time, which torch never writes")
        return value

    def _take_place_of(self, building: Building, value: object) -> None:
        self._kept_dicts -= 1
        if building.memo_key is not None:
            self._remember(building.memo_key, _PACKED if type(value) is Packed else value)

    def _op_unknown(self) -> None:
        code = self._buffer[self._pos - 1 : self._pos]
        self._pos -= 1
        if code in _REFUSED:
            self._fail(
                f"{_REFUSED[code]}. A snapshot holds data only, so this one was refused and nothing was run"
            )
        self._fail(f"has a byte {code!r} that starts no instruction")

    # Values

    def _op_none(self) -> None:
        self._stack.append(None)

    def _op_true(self) -> None:
        self._stack.append(True)

    def _op_false(self) -> None:
        self._stack.append(False)

    def _op_binint(self) -> None:
        self._stack.append(int.from_bytes(self._read(4), "little", signed=True))

    def _op_binint1(self) -> None:
        self._stack.append(self._buffer[self._pos])
        self._pos += 1

    def _op_binint2(self) -> None:
        self._stack.append(self._unsigned(2))

    def _op_long1(self) -> None:
        self._long(self._unsigned(1))

    def _op_long4(self) -> None:
        self._long(self._unsigned(4))

    def _long(self, nbytes: int) -> None:
        if nbytes > _LONGEST_NUMBER:
            self._fail(f"has a number of {nbytes} bytes")
        self._stack.append(int.from_bytes(self._read(nbytes), "little", signed=True))

    def _op_int(self) -> None:
        text = self._number()
        self._stack.append(
            {b"00": False, b"01": True}[text] if text in (b"00", b"01") else int(text)
        )

    def _op_long(self) -> None:
        self._stack.append(int(self._number().rstrip(b"L")))

    def _op_float(self) -> None:
        self._stack.append(float(self._number()))

    def _number(self) -> bytes:
        text = self._line()
        if len(text) > _LONGEST_NUMBER:
            self._fail(f"has a number of {len(text)} characters")
        return text

    def _op_binfloat(self) -> None:
        self._stack.append(struct.unpack(">d", self._read(8))[0])

    def _op_unicode(self) -> None:
        self._stack.append(str(self._line(), "raw-unicode-escape"))

    def _op_string(self) -> None:
        text = self._line()
        if len(text) < 2 or text[:1] != text[-1:] or text[:1] not in (b"'", b'"'):
            self._fail("is damaged (a string without quotes)")
        self._stack.append(text[1:-1].decode("unicode-escape"))

    def _op_text1(self) -> None:
        self._text(self._unsigned(1))

    def _op_text4(self) -> None:
        self._text(self._unsigned(4))

    def _op_text8(self) -> None:
        self._text(self._unsigned(8))

    def _text(self, nbytes: int) -> None:
        self._stack.append(str(self._read(nbytes), "utf-8", "surrogatepass"))

    def _op_bytes1(self) -> None:
        self._stack.append(self._read(self._unsigned(1)))

    def _op_bytes4(self) -> None:
        self._stack.append(self._read(self._unsigned(4)))

    def _op_bytes8(self) -> None:
        self._stack.append(self._read(self._unsigned(8)))

    # Containers

    def _op_mark(self) -> None:
        if len(self._marks) == _MOST_OPEN:
            self._fail(f"is nested more than {_MOST_OPEN:,} deep")
        self._marks.append(len(self._stack))

    def _op_empty_tuple(self) -> None:
        self._stack.append(())

    def _op_tuple(self) -> None:
        self._push_tuple(tuple(self._pop_to_mark()))

    def _op_tuple1(self) -> None:
        self._push_tuple((self._stack.pop(),))

    def _op_tuple2(self) -> None:
        second, first = self._stack.pop(), self._stack.pop()
        self._push_tuple((first, second))

    def _op_tuple3(self) -> None:
        third, second, first = self._stack.pop(), self._stack.pop(), self._stack.pop()
        self._push_tuple((first, second, third))

    def _push_tuple(self, items: tuple[Any, ...]) -> None:
        """A tuple may become a key, and to hash a deep nest would end the process; torch writes pairs of numbers."""
        if any(type(item) is tuple for item in items):
            self._fail("has tuples inside of tuples, which torch never writes")
        self._stack.append(items)

    def _op_empty_list(self) -> None:
        match = _REFERENCE_LIST.match(self._buffer, self._pos - 1)
        if match is None or not self._push_reference_list(match):
            self._stack.append([])

    def _push_reference_list(self, match: re.Match[bytes]) -> bool:
        references = match.group(1)
        known = self._known_lists.get(references)
        if known is None:
            keys = [
                int.from_bytes(short or long, "little")
                for short, long in _REFERENCE.findall(references)
            ]
            known = self._absorb_list([self._recall(key) for key in keys])
            if known is None:
                return False
            self._known_lists[references] = known
        memo_code = self._buffer[self._pos]
        operand = self._buffer[self._pos + 1 : match.start(1) - 1]
        self._remember(
            len(self._memo) if memo_code == 0x94 else int.from_bytes(operand, "little"), known
        )
        self._stack.append(known)
        self._pos = match.end()
        return True

    def _op_list(self) -> None:
        items = self._pop_to_mark()
        self._stack.append([])
        self._extend(items)

    def _op_append(self) -> None:
        item = self._stack.pop()
        self._extend([item])

    def _op_appends(self) -> None:
        self._extend(self._pop_to_mark())

    def _extend(self, items: list[Any]) -> None:
        target = self._stack[-1]
        items = [self._finished(item) for item in items]
        if items and type(items[0]) is Packed:
            if not target:
                target.append(bytearray())
            target[0] += b"".join(items)
        else:
            target.extend(items)

    def _finished(self, item: Any) -> Any:
        """Protocols that fill a dict entry by entry do not say when it is full; being put into a list says so."""
        if type(item) is not Building:
            return item
        value = self._absorb(item)
        if value is None:
            return item
        self._take_place_of(item, value)
        return value

    def _op_empty_dict(self) -> None:
        self._begin_dict()

    def _begin_dict(self) -> Building:
        if self._kept_dicts == _MOST_DICTS:
            self._fail(f"has more than {_MOST_DICTS:,} segments and blocks")
        self._kept_dicts += 1
        building = Building()
        self._stack.append(building)
        return building

    def _op_dict(self) -> None:
        items = self._pop_to_mark()
        self._begin_dict().update(zip(items[::2], items[1::2], strict=True))

    def _op_setitem(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._stack[-1][key] = value

    def _op_setitems(self) -> None:
        items = self._pop_to_mark()
        building = self._stack[-1]
        building.update(zip(items[::2], items[1::2], strict=True))
        value = self._absorb(building)
        if value is not None:
            self._stack[-1] = value
            self._take_place_of(building, value)

    # Bookkeeping

    def _op_pop(self) -> None:
        if self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
        else:
            self._stack.pop()

    def _op_pop_mark(self) -> None:
        self._pop_to_mark()

    def _op_dup(self) -> None:
        self._stack.append(self._stack[-1])

    def _op_memoize(self) -> None:
        self._remember(len(self._memo), self._stack[-1])

    def _op_put(self) -> None:
        self._remember(int(self._number()), self._stack[-1])

    def _op_binput(self) -> None:
        self._remember(self._unsigned(1), self._stack[-1])

    def _op_long_binput(self) -> None:
        self._remember(self._unsigned(4), self._stack[-1])

    def _op_get(self) -> None:
        self._stack.append(self._recall(int(self._number())))

    def _op_binget(self) -> None:
        self._stack.append(self._recall(self._buffer[self._pos]))
        self._pos += 1

    def _op_long_binget(self) -> None:
        self._stack.append(self._recall(_UNSIGNED_4.unpack_from(self._buffer, self._pos)[0]))
        self._pos += 4

    def _op_proto(self) -> None:
        version = self._unsigned(1)
        if version > 5:
            self._fail(f"has protocol {version}, and 5 is the newest known here")

    def _op_frame(self) -> None:
        self._pos += 8  # the length of the next frame: this reader does not need it


_METHODS = {
    ord(code): f"_op_{name}"
    for code, name in {
        "N": "none",
        "\x88": "true",
        "\x89": "false",
        "J": "binint",
        "K": "binint1",
        "M": "binint2",
        "\x8a": "long1",
        "\x8b": "long4",
        "I": "int",
        "L": "long",
        "F": "float",
        "G": "binfloat",
        "V": "unicode",
        "S": "string",
        "U": "text1",
        "T": "text4",
        "\x8c": "text1",
        "X": "text4",
        "\x8d": "text8",
        "C": "bytes1",
        "B": "bytes4",
        "\x8e": "bytes8",
        "(": "mark",
        ")": "empty_tuple",
        "t": "tuple",
        "\x85": "tuple1",
        "\x86": "tuple2",
        "\x87": "tuple3",
        "]": "empty_list",
        "l": "list",
        "a": "append",
        "e": "appends",
        "}": "empty_dict",
        "d": "dict",
        "s": "setitem",
        "u": "setitems",
        "0": "pop",
        "1": "pop_mark",
        "2": "dup",
        "\x94": "memoize",
        "p": "put",
        "q": "binput",
        "r": "long_binput",
        "g": "get",
        "h": "binget",
        "j": "long_binget",
        "\x80": "proto",
        "\x95": "frame",
    }.items()
}
