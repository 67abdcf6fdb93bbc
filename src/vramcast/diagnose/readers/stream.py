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
from functools import lru_cache
from itertools import islice, repeat
from typing import BinaryIO, NamedTuple

CHUNK_BYTES = 1 << 20
_HOLE = bytes(CHUNK_BYTES)
MAX_LINE_CHARS = 16_384  # longer lines are cut; the readers join the pieces again
LINES_BEFORE = 48
LINES_AFTER = 160
READ_AHEAD = 512
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


class Line(NamedTuple):  # not a dataclass: a large log makes millions, and a tuple is made four times as fast
    number: int
    raw: str
    was_cut: bool = False
    words: tuple[str, ...] = ()  # which of the wanted words may stand in it

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


@lru_cache(maxsize=64)  # every reader that is asked about a line cleans it
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A line with wanted words; its surroundings can be had until the next one is asked for."""

    line: Line
    words: frozenset[str]
    before: deque[Line]
    following: deque[Line]

    def passage(self) -> Passage:
        after = tuple(islice(self.following, LINES_AFTER))
        return Passage(line=self.line, words=self.words, before=tuple(self.before), after=after)


def hits(stream: BinaryIO, wanted: Sequence[str], gates: Sequence[str]) -> Iterator[Hit]:
    """Every line with one of the (lower-case) wanted words in it, in order. Each word contains one of the gates, which
    hold no digits: where no gate can stand, no word is looked for."""
    lines = _lines(stream, tuple(wanted), {gate: [word for word in wanted if gate in word] for gate in gates})
    before: deque[Line] = deque(maxlen=LINES_BEFORE)
    window: deque[Line] = deque(islice(lines, READ_AHEAD))
    while window:
        current = window.popleft()
        if len(window) < LINES_AFTER:
            window.extend(islice(lines, READ_AHEAD))
        if current.words:
            text = _lowered(current, window)
            found = [word for word in current.words if word in text]
            if found:
                yield Hit(line=current, words=frozenset(found), before=before, following=window)
        before.append(current)


def _lowered(line: Line, following: deque[Line]) -> str:
    if line.raw.startswith(_PROVENANCE):
        return ""
    if line.was_cut and following:
        return (line.raw + following[0].raw[:_CUT_OVERLAP_CHARS]).lower()
    return line.raw.lower()


def _lines(stream: BinaryIO, wanted: tuple[str, ...], behind: dict[str, list[str]]) -> Iterator[Line]:
    """Lines, each with the words that may stand in it; of parts of the log without any only the edges."""
    encoded = {gate.encode(): [(word, _shape(word.encode())) for word in words] for gate, words in behind.items()}
    number, rest, was_hot = 1, b"", True
    for chunk in _chunks(stream):
        data = rest + chunk
        cut = max(data.rfind(b"\n"), data.rfind(b"\r"))
        if cut < 0 and len(data) < CHUNK_BYTES:
            rest = data
            continue
        body, rest = (data, b"") if cut < 0 else (data[: cut + 1], data[cut + 1 :])
        # The words of a line that was cut may begin here and end in the next part.
        possible = _possible(body, encoded) if cut >= 0 else [wanted]
        is_hot = any(possible)
        if is_hot or len(body) <= _HEAD_BYTES + _TAIL_BYTES:
            yield from _split(body, number, possible, is_open=cut < 0)
        else:
            tail = len(body) - _TAIL_BYTES
            if was_hot:
                yield from _split(body[:_HEAD_BYTES], number, ())
            yield from _split(body[tail:], number + body.count(b"\n", 0, tail), ())
        number += body.count(b"\n")
        was_hot = is_hot
    yield from _split(rest, number, [wanted] * (1 + rest.count(b"\n")))


def _shape(text: bytes) -> bytes:
    return text.lower().translate(None, b"0123456789")


def _possible(body: bytes, words: dict[bytes, list[tuple[str, bytes]]]) -> list[tuple[str, ...]]:
    """For every line the words that may stand in it. Lines that differ in digits only are looked at once."""
    shapes = _shape(body).split(b"\n")
    distinct = set(shapes)
    together = b"\n".join(distinct)
    found = [gate for gate in words if gate in together]
    known = {
        shape: tuple({word: None for gate in found if gate in shape for word, code in words[gate] if code in shape})
        for shape in distinct
    }
    return [known[shape] for shape in shapes]


def _split(body: bytes, number: int, possible: Sequence[tuple[str, ...]], *, is_open: bool = False) -> Iterator[Line]:
    """Lines of a body that ends with a line end, or (`is_open`) in the middle of an endless line."""
    lines = body.decode("utf-8", "replace").split("\n")
    for numbered, (line, words) in enumerate(zip(lines, possible or repeat(()), strict=False), start=number):
        if line and len(line) <= MAX_LINE_CHARS and "\r" not in line:
            yield Line(numbered, line, is_open, words)
            continue
        for text in line.split("\r"):  # progress bars overwrite themselves
            for start in range(0, len(text), MAX_LINE_CHARS):
                end = start + MAX_LINE_CHARS
                yield Line(numbered, text[start:end], is_open or end < len(text), words)


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    """Pieces of the stream as UTF-8; PowerShell redirects are UTF-16 with a byte order mark."""
    first = stream.read(CHUNK_BYTES)
    if not first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        while first:
            if first != _HOLE[: len(first)]:  # a log that was cut while it was written begins with one
                yield first
            first = stream.read(CHUNK_BYTES)
        return
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    while first:
        yield decoder.decode(first).encode("utf-8", "replace")
        first = stream.read(CHUNK_BYTES)
