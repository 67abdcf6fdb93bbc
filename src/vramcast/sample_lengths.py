"""A file with the tokens of every sample: one number per line, in the order of training.

Knows nothing of batches or padding. Blank lines are skipped; anything else that is not a count is named with its line.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

from vramcast.errors import InputError
from vramcast.files import read_text

MOST_BYTES = 64 * 1024 * 1024  # ten million samples
MOST_TOKENS = 10**9  # beyond this a line is something else than a length


# Lines that hold a number or nothing. All files look like this; a line that does not is sought and named.
PLAIN_LINES = re.compile(r"(?:[ \t]*[0-9]{0,10}[ \t\r]*\n)*")
PIECE_CHARACTERS = 1 << 20


def read_sample_lengths(path: str) -> tuple[int, ...]:
    try:
        known = Path(path).stat()
    except (OSError, ValueError):
        return _read(path, None)
    return _read(path, (known.st_size, known.st_mtime_ns))


@functools.lru_cache(maxsize=1)  # the report asks again for what the estimate has read
def _read(path: str, version: tuple[int, int] | None) -> tuple[int, ...]:
    """`version` tells a changed file from one that was read before."""
    try:
        text = read_text(path, MOST_BYTES)
    except InputError as error:
        raise InputError(f"lengths {error}") from None
    lengths: list[int] = []
    first_line = 1
    for piece in _pieces(text):
        lengths += _plain_counts(piece) or _counts(path, piece, first_line)
        first_line += piece.count("\n")
    if not lengths:
        raise InputError(
            f"lengths {path}: no sample in it. One line per sample, each the number of its tokens."
        )
    return tuple(lengths)


def _pieces(text: str) -> Iterator[str]:
    """The text in pieces of whole lines, so that ten million numbers are never there as text and as numbers at once."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + PIECE_CHARACTERS) + 1 or len(text)
        yield text[start:end]
        start = end


def _plain_counts(piece: str) -> list[int]:
    """All numbers of the piece, or none if one of its lines is anything else than a number of tokens."""
    if PLAIN_LINES.fullmatch(piece if piece.endswith("\n") else f"{piece}\n") is None:
        return []
    counts = list(map(int, piece.split()))
    is_in_bounds = bool(counts) and min(counts) > 0 and max(counts) <= MOST_TOKENS
    return counts if is_in_bounds else []


def _counts(path: str, piece: str, first_line: int) -> Iterator[int]:
    """Line by line, to name the one that is wrong."""
    for number, line in enumerate(piece.split("\n"), first_line):
        text = line.strip()
        if not text:
            continue
        is_short = text.isascii() and text.isdigit() and len(text) <= len(str(MOST_TOKENS))
        if not is_short or not 0 < int(text) <= MOST_TOKENS:
            shown = text if len(text) <= 40 else f"{text[:40]}…"
            raise InputError(
                f"lengths {path}, line {number}: {shown!r} is no number of tokens. One number per line."
            )
        yield int(text)
