"""A file with the tokens of every sample: one number per line, in the order of training.

Knows nothing of batches or padding. Blank lines are skipped; anything else that is not a count is named with its line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import StringIO

from vramcast.errors import InputError
from vramcast.files import read_text

MOST_BYTES = 64 * 1024 * 1024  # ten million samples
MOST_TOKENS = 10**9  # beyond this a line is something else than a length


def read_sample_lengths(path: str) -> tuple[int, ...]:
    try:
        text = read_text(path, MOST_BYTES)
    except InputError as error:
        raise InputError(f"lengths {error}") from None
    lengths = tuple(_counts(path, StringIO(text)))
    if not lengths:
        raise InputError(
            f"lengths {path}: no sample in it. One line per sample, each the number of its tokens."
        )
    return lengths


def _counts(path: str, lines: Iterable[str]) -> Iterator[int]:
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text:
            continue
        if not (
            text.isascii()
            and text.isdigit()
            and len(text) <= len(str(MOST_TOKENS))
            and int(text) > 0
        ):
            shown = text if len(text) <= 40 else f"{text[:40]}…"
            raise InputError(
                f"lengths {path}, line {number}: {shown!r} is no number of tokens. One number per line."
            )
        yield int(text)
