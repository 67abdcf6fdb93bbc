"""A byte stream of any size and content as clean lines, a few at a time.

In: a binary stream. Out: Passages, one per line that contains a word some reader asked for, each with the lines before
and after it. Memory is bounded by the window, time is linear: parts of a log without any such word are skipped whole.
Does not know what the words mean.
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

CHUNK_BYTES = 1 << 20
MAX_LINE_CHARS = 16_384  # longer lines are cut; the readers join the pieces again
LINES_BEFORE = 48
LINES_AFTER = 160
_HEAD_BYTES, _TAIL_BYTES = 64 << 10, 32 << 10  # what is kept of a chunk without any word, as context
_CUT_OVERLAP_CHARS = 120
_PROVENANCE = "# source:"  # the first line of a collected sample says where it is from, not what happened

# Terminal escapes: CSI, OSC (ended by BEL or ST) and the two-character ones.
_ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,2000}(?:\x07|\x1b\\)?|[PX^_][^\x1b]{0,2000}(?:\x1b\\)?|.)?"
)
# Control characters, and the invisible ones that reorder or hide text.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufffd]+")
_BLANKS = re.compile(r"[\s\u00a0]+")
_PREFIX = re.compile(
    r"""^\s*(?:
      \[?(?:rank|default|gpu|worker)\s?\d+\]?\s?:\s?      # [rank2]: [default0]: Rank 0:
    | \[\d+,\d+\]<std(?:err|out)>:\s?                      # mpirun
    | \(\w+\s+pid=\d+[^)]{0,60}\)\s?                       # ray
    | [\w.-]+-\d+\s+\|\s                                   # docker compose
    | \d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,\d]*(?:Z|[+-]\d\d:?\d\d)?\s+   # timestamps
    | \[?(?:INFO|ERROR|WARNING)\]?\s\d\d-\d\d\s\d\d:\d\d:\d\d\s          # vLLM
    | E\s{2,} | >+\s | [│┃║]\s?                            # pytest, quoted mail, rich boxes
    )""",
    re.VERBOSE | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    number: int
    raw: str
    was_cut: bool = False

    def clean(self) -> str:
        return clean(self.raw)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A line that may matter, with its surroundings."""

    line: Line
    words: frozenset[str]  # which of the asked-for words it contains
    before: tuple[Line, ...]
    after: tuple[Line, ...]

    def text(self) -> str:
        return self.line.clean()

    def lines(self, limit: int) -> Iterator[Line]:
        yield self.line
        yield from self.after[: max(0, limit - 1)]


def clean(text: str) -> str:
    """Printable text on one line: no escapes, no control characters, single blanks."""
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    return _BLANKS.sub(" ", _CONTROL.sub(" ", text)).strip()


def without_prefix(text: str) -> str:
    """Take away what loggers and launchers put before each line, however many of them."""
    for _ in range(4):
        shorter = _PREFIX.sub("", text, count=1)
        if shorter == text:
            break
        text = shorter
    return text


def passages(stream: BinaryIO, wanted: Sequence[str], gates: Sequence[str]) -> Iterator[Passage]:
    """Every line with one of the (lower-case) wanted words in it, in order. Each word contains one of the gates:
    looking for those few first is what makes a large log quick."""
    behind = {gate: tuple(word for word in wanted if gate in word) for gate in gates}
    lines = _lines(stream, tuple(gate.encode() for gate in gates))
    before: deque[Line] = deque(maxlen=LINES_BEFORE)
    window: deque[Line] = deque()
    exhausted = False
    while True:
        while not exhausted and len(window) <= LINES_AFTER:
            line = next(lines, None)
            exhausted = line is None
            if line is not None:
                window.append(line)
        if not window:
            return
        current = window.popleft()
        text = _lowered(current, window)
        found = frozenset(word for gate in gates if gate in text for word in behind[gate] if word in text)
        if found:
            yield Passage(line=current, words=found, before=tuple(before), after=tuple(window))
        before.append(current)


def _lowered(line: Line, following: deque[Line]) -> str:
    if line.raw.startswith(_PROVENANCE):
        return ""
    if line.was_cut and following:
        return (line.raw + following[0].raw[:_CUT_OVERLAP_CHARS]).lower()
    return line.raw.lower()


def _lines(stream: BinaryIO, gates: tuple[bytes, ...]) -> Iterator[Line]:
    number, rest, was_hot = 1, b"", True
    for chunk in _chunks(stream):
        data = rest + chunk
        cut = max(data.rfind(b"\n"), data.rfind(b"\r"))
        if cut < 0 and len(data) < CHUNK_BYTES:
            rest = data
            continue
        body, rest = (data, b"") if cut < 0 else (data[: cut + 1], data[cut + 1 :])
        low = body.lower()
        is_hot = any(gate in low for gate in gates)
        if is_hot or len(body) <= _HEAD_BYTES + _TAIL_BYTES:
            yield from _split(body, number, is_open=cut < 0)
        else:
            tail = len(body) - _TAIL_BYTES
            if was_hot:
                yield from _split(body[:_HEAD_BYTES], number)
            yield from _split(body[tail:], number + body.count(b"\n", 0, tail))
        number += body.count(b"\n")
        was_hot = is_hot
    yield from _split(rest, number)


def _split(body: bytes, number: int, *, is_open: bool = False) -> Iterator[Line]:
    """Lines of a body that ends with a line end, or (`is_open`) in the middle of an endless line."""
    for numbered, line in enumerate(body.split(b"\n"), start=number):
        for part in line.split(b"\r"):  # progress bars overwrite themselves
            text = part.decode("utf-8", "replace")
            for start in range(0, len(text), MAX_LINE_CHARS):
                end = start + MAX_LINE_CHARS
                yield Line(number=numbered, raw=text[start:end], was_cut=is_open or end < len(text))


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    """Pieces of the stream as UTF-8; PowerShell redirects are UTF-16 with a byte order mark."""
    first = stream.read(CHUNK_BYTES)
    if not first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        while first:
            yield first
            first = stream.read(CHUNK_BYTES)
        return
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    while first:
        yield decoder.decode(first).encode("utf-8", "replace")
        first = stream.read(CHUNK_BYTES)
