"""Bytes as text and text as numbers. Bytes are ints everywhere else."""

from __future__ import annotations

import re

from vramcast.errors import InputError

KiB = 1024
MiB = 1024 * KiB
GiB = 1024 * MiB
TiB = 1024 * GiB

MOST_BYTES = 2**60  # beyond these a number is a typing mistake
MOST_THINGS = 10**18

_SUFFIX = {
    "b": 1,
    "kib": KiB,
    "mib": MiB,
    "gib": GiB,
    "tib": TiB,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_COUNT_SUFFIX = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


def format_bytes(nbytes: int) -> str:
    """The largest binary unit that keeps the figure at or above one."""
    sign, size = ("-", -nbytes) if nbytes < 0 else ("", nbytes)
    for unit, scale in (("TiB", TiB), ("GiB", GiB), ("MiB", MiB), ("KiB", KiB)):
        if size >= scale:
            return f"{sign}{size / scale:.2f} {unit}"
    return f"{sign}{size} B"


def format_gib(nbytes: int) -> str:
    """GiB with two decimals: the one unit in which bills are compared."""
    return f"{nbytes / GiB:,.2f} GiB"


def format_gib_and_gb(nbytes: int) -> str:
    """Both units, for readers who come from a source that used powers of ten."""
    return f"{nbytes / GiB:,.2f} GiB ({nbytes / 1e9:,.2f} GB)"


def round_up(nbytes: int, multiple: int) -> int:
    return -(-nbytes // multiple) * multiple


def parse_bytes(text: str) -> int:
    """`24GiB`, `80 GB`, `512MiB`, or a bare number of bytes."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", text)
    scale = _SUFFIX.get(match.group(2).lower() or "b") if match else None
    if match is None or scale is None:
        raise InputError(f"{text!r} is not a size. Write it like 24GiB, 80GB or 512MiB.")
    nbytes = float(match.group(1)) * scale
    if nbytes > MOST_BYTES:
        raise InputError(
            f"{text[:40]!r} is more memory than any machine has. Write it like 24GiB, 80GB or 512MiB."
        )
    return int(nbytes)


def parse_count(text: str) -> int:
    """`7e9`, `7B`, `350M` or `7000000000`: a number of things, exact when written as an integer."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?(?:[eE]\+?[0-9]{1,2})?)\s*([kKmMbBtT]?)\s*", text)
    if match is None:
        raise InputError(f"{text!r} is not a count. Write it like 7e9, 7B or 350M.")
    number, scale = match.group(1), _COUNT_SUFFIX[match.group(2).lower()]
    if float(number) * scale > MOST_THINGS:
        raise InputError(f"{text[:40]!r} is too large a count. Write it like 7e9, 7B or 350M.")
    return int(number) * scale if number.isdigit() else round(float(number) * scale)
