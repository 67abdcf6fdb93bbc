"""Valid inputs made odd: bytes flipped, cut and spliced; values of JSON, YAML and pickles replaced by absurd ones."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Callable
from typing import Any

DEEP = "a deep nest"
ODD_NUMBERS = [
    0, -1, 1, 2, 3, 7, 255, 256, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, 10**15, 10**18,
    10**30, 10**400, 0.0, -0.0, 0.5, 1e-300, 1e300, math.inf, -math.inf, math.nan,
]  # fmt: skip
ODD_TEXTS = [
    "", " ", "0", "-1", "1e999", "nan", "None", "null", "true", "a" * 5000, "\x00", "\x1b[31mred\x1b[0m", "\u202eleft",
    "\ud800", "\u4e2d\u6587", "../../etc/passwd", "/dev/zero", "%s%n", "{0}", "9" * 5000, "fp32", "cuda:1",
    "none", "all",
]  # fmt: skip


def odd_value(rng: random.Random) -> Any:
    kind = rng.randrange(8)
    if kind < 3:
        return rng.choice(ODD_NUMBERS)
    if kind < 5:
        return rng.choice(ODD_TEXTS)
    if kind == 5:
        return rng.choice(
            [None, True, False, [], {}, [[]], {"a": {}}, [None], [1, "a"], {"": None}]
        )
    if kind == 6:
        return [rng.choice(ODD_NUMBERS) for _ in range(rng.randrange(1, 6))]
    return rng.choice([nested(3), nested(100), DEEP])


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


def with_depth(text: str, rng: random.Random) -> str:
    """JSON, in which the word for a deep nest becomes one: deeper than Python would write it."""
    depth = rng.choice([200, 1500, 20_000])
    nest = rng.choice(["[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth, "[" * depth])
    return text.replace(json.dumps(DEEP), nest)


def places(value: Any, most: int = 4000) -> list[tuple[Any, Any]]:
    """Every (container, key) inside."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting and len(found) < most:
        inside = waiting.pop()
        items = list(inside.items()) if isinstance(inside, dict) else list(enumerate(inside))
        found += [(inside, key) for key, _ in items]
        waiting += [item for _, item in items if isinstance(item, dict | list)]
    return found


def changed_structure(value: Any, rng: random.Random) -> Any:
    """A copy with a few entries replaced, near to what they were, taken away, doubled or exchanged."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
        found = places(value)
        if not found:
            return odd_value(rng)
        container, key = rng.choice(found)
        action = rng.randrange(6)
        if action == 0:
            del container[key]
        elif action == 1:
            container[key] = near(container[key], rng)
        elif action == 2:
            other, place = rng.choice(found)
            if place in other if isinstance(other, dict) else place < len(other):
                container[key] = copy.deepcopy(other[place])
        elif action == 3 and isinstance(container, dict):
            container[rng.choice(ODD_TEXTS)] = container.pop(key)
        else:
            container[key] = odd_value(rng)
    return value


def near(value: Any, rng: random.Random) -> Any:
    """The same type, another value."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice(
            [value + 1, value - 1, -value, value * 2, value // 2, value * 1000, 0, 1, 3]
        )
    if isinstance(value, float):
        return rng.choice([-value, value * 10, 0.0, math.nan, math.inf])
    if isinstance(value, str):
        return rng.choice(
            [
                value[:-1],
                value + value,
                value.upper(),
                value[::-1],
                f" {value}\n",
                value.replace("_", ""),
            ]
        )
    if isinstance(value, list):
        return rng.choice([value[:-1], value + value, value[::-1], value * 50, []])
    return odd_value(rng)


def changed_bytes(data: bytes, rng: random.Random) -> bytes:
    """Flips, cuts, doubled and moved pieces, absurd numbers in place of digits."""
    made = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 4, 16])):
        if not made:
            return bytes(rng.randbytes(rng.randrange(64)))
        at = rng.randrange(len(made))
        length = min(len(made) - at, rng.choice([1, 2, 4, 8, 64, 1024]))
        _BYTE_CHANGES[rng.randrange(len(_BYTE_CHANGES))](made, at, length, rng)
    return bytes(made)


def _flip(made: bytearray, at: int, length: int, rng: random.Random) -> None:
    made[at] ^= 1 << rng.randrange(8)


def _put(made: bytearray, at: int, length: int, rng: random.Random) -> None:
    made[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFE, 0xFF, rng.randrange(256)])


def _cut(made: bytearray, at: int, length: int, rng: random.Random) -> None:
    del made[at:]


def _remove(made: bytearray, at: int, length: int, rng: random.Random) -> None:
    del made[at : at + length]


def _double(made: bytearray, at: int, length: int, rng: random.Random) -> None:
    made[at:at] = made[at : at + length] * rng.choice([1, 2, 50])


def _move(made: bytearray, at: int, length: int, rng: random.Random) -> None:
    to = rng.randrange(len(made))
    made[to : to + length] = made[at : at + length]


def _number(made: bytearray, at: int, length: int, rng: random.Random) -> None:
    """The digits from here on become another number."""
    while at < len(made) and not 48 <= made[at] <= 57:
        at += 1
    end = at
    while end < len(made) and 48 <= made[end] <= 57:
        end += 1
    made[at:end] = rng.choice(
        [b"0", b"1", b"-1", b"9" * 30, b"9" * 400, b"1e999", b"nan", b"00", b"65536", b"4294967296"]
    )


_BYTE_CHANGES: tuple[Callable[[bytearray, int, int, random.Random], None], ...] = (
    _flip, _flip, _put, _put, _cut, _remove, _double, _move, _number, _number,
)  # fmt: skip


def spliced(first: bytes, second: bytes, rng: random.Random) -> bytes:
    return first[: rng.randrange(len(first) + 1)] + second[rng.randrange(len(second) + 1) :]


def enlarged(data: bytes, power: float, rng: random.Random) -> bytes:
    """About 2 ** power bytes: a piece of the input, or one of its lines, is repeated where it is."""
    lines = data.split(b"\n")
    at = rng.randrange(len(data) + 1)
    piece = rng.choice(
        [
            data,
            data[at : at + 16],
            data[at : at + 4096],
            rng.choice(lines),
            rng.choice(lines) + b"\n",
        ]
    )
    count = int(2**power) // max(len(piece), 1)
    return data[:at] + piece * count + data[at:]
