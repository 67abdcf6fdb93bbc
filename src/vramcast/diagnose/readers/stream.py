"""A byte stream of any size and content as clean lines, a few at a time.

In: a binary stream and a Vocabulary. Out: Hits, one per line that contains a word of the vocabulary; a Hit gives its
Passage, the line with the lines before and after it. Memory is bounded by the window, time is linear: parts of a log
without any such word are skipped whole, and a passage gives out a bounded number of characters. Does not know what the
words mean.
"""

from __future__ import annotations

import codecs
import json
import re
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import cycle, islice, pairwise, repeat
from typing import NamedTuple, Protocol

CHUNK_BYTES = 1 << 20
_HOLE = bytes(CHUNK_BYTES)
MAX_JSON_CHARS = 262_144
MAX_LINE_CHARS = 16_384  # longer lines are cut; the readers join the pieces again
LINES_BEFORE = 48
LINES_AFTER = 160
MAX_GIVEN_CHARS = 65_536  # of the lines before or after: far more than the longest table has
READ_AHEAD = 512
# What is kept, as context, of a chunk without any word.
_HEAD_BYTES = 64 << 10
_TAIL_BYTES = 32 << 10
_CUT_OVERLAP_CHARS = 120  # longer than any word
CHUNKS_AT_END = 2
SAMPLED_CHUNKS = 16  # words that were seen too often are looked for in one of so many chunks
# The first line of a collected sample says where it is from, not what happened.
_PROVENANCE = "# source:"

# Terminal escapes: CSI, OSC (ended by BEL or ST) and the two-character ones.
_ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,2000}(?:\x07|\x1b\\)?|[PX^_][^\x1b]{0,2000}(?:\x1b\\)?|.)?"
)
# Control characters, and the invisible ones that reorder or hide text.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufffd]+")
# Colours and cursor movements alone: they may stand inside a word.
_COLOUR = re.compile(rb"\x1b\[[0-?]{0,40}[ -/]{0,4}[@-~]")
# What editors and notebooks number, if they number every line.
_NUMBERED = re.compile(rb"^[ \t]{0,8}(\d{1,6})(?:[:|.)]|\xe2\x94\x82)?(?:[ \t]|$)", re.MULTILINE)
LEAST_NUMBERED = 3
_PREFIX = re.compile(
    r"""^\s*(?:
      \[?(?:rank|default|gpu|worker)\s?\d+\]?\s?:\s?      # [rank2]: [default0]: Rank 0:
    | \[\d+,\d+\]<std(?:err|out)>:\s?                      # mpirun
    | \(\w+\s+pid=\d+[^)]{0,60}\)\s?                       # ray
    | [\w.-]+-\d+\s+\|(?:\s|$)                            # docker compose
    | \d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,\d]*(?:Z|[+-]\d\d:?\d\d)?(?:\s+|$)  # timestamps
    | std(?:out|err)\s[FP](?:\s|$)                            # Kubernetes
    | \[?(?:INFO|ERROR|WARNING)\]?\s\d\d-\d\d\s\d\d:\d\d:\d\d\s          # vLLM
    | -\s[\w.]{1,80}\s-\s(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\s-\s   # logging, behind its time
    | [A-Z][a-z]{2}\s+\d{1,2}\s\d\d:\d\d:\d\d\s\S{1,80}\s[^\s\[]{1,80}\[\d+\]:\s?  # syslog, journald
    | \d{1,4}:\s(?!\d+x)                                         # srun --label
    | E\s{2,} | >+(?:\s|$) | [│┃║]\s?                            # pytest, quoted mail, rich boxes
    )""",
    re.VERBOSE | re.IGNORECASE,
)


class Readable(Protocol):
    """What is read of a stream."""

    def read(self, size: int, /) -> bytes: ...


class Head:
    """A stream that keeps a copy of its beginning."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self._start = b""

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(size)
        if len(self._start) < _HEAD_BYTES:
            self._start += data[: _HEAD_BYTES - len(self._start)]
        return data

    def is_whole(self) -> bool:
        """Was that all there is?"""
        return len(self._start) < _HEAD_BYTES

    def lines(self) -> list[str]:
        """As the readers see them: without colours and line numbers, and the texts of JSON entries."""
        text = self._start.decode(_encoding_of(self._start), "replace")
        plain = _without_line_numbers(_COLOUR.sub(b"", text.encode("utf-8", "replace")))
        lines = plain.decode("utf-8", "replace").splitlines()
        return [part for line in lines for part in _entry_texts(line)]


# Not a dataclass: a large log makes millions, and a tuple is made four times as fast.
class Line(NamedTuple):
    number: int
    raw: str
    was_cut: bool = False
    words: tuple[str, ...] = ()  # which words of the vocabulary may be in it

    def clean(self) -> str:
        return clean(self.raw)


@dataclass(slots=True)
class Meter:
    """How many characters of the lines around it readers have taken: what they cost."""

    chars: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A line that may matter, with its surroundings."""

    line: Line
    before: tuple[Line, ...]
    after: tuple[Line, ...]
    meter: Meter = field(default_factory=Meter)

    def text(self) -> str:
        return self.line.clean()

    def lines(self, limit: int) -> Iterator[Line]:
        """The line itself and those after it."""
        yield self.line
        yield from self.following(limit - 1)

    def following(self, limit: int) -> Iterator[Line]:
        return self._metered(self.after[: max(0, limit)])

    def preceding(self, limit: int) -> Iterator[Line]:
        return self._metered(self.before[max(0, len(self.before) - limit) :])

    def _metered(self, lines: Iterable[Line]) -> Iterator[Line]:
        given = 0
        for line in lines:
            if given >= MAX_GIVEN_CHARS:
                return
            given += len(line.raw)
            self.meter.chars += len(line.raw)
            yield line


@lru_cache(maxsize=512)  # every reader that is asked about a line cleans it
def clean(text: str) -> str:
    """Printable text on one line: no escapes, no control characters, single blanks."""
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    if not (text.isascii() and text.isprintable()):
        text = _CONTROL.sub(" ", text)
    return " ".join(text.split())


def without_prefix(text: str) -> str:
    """Take away what loggers and launchers put before each line, however many of them."""
    for _ in range(4):
        shorter = _PREFIX.sub("", text, count=1)
        if shorter == text:
            break
        text = shorter
    return text


class Vocabulary:
    """The lower-case words that readers ask for. Each contains one of the gates, which are few and hold no digits:
    where no gate is, no word is looked for."""

    def __init__(self, words: Sequence[str], gates: Sequence[str]) -> None:
        self._gates = {
            gate.encode(): [
                (word, _without_digits(word.encode())) for word in words if gate in word
            ]
            for gate in gates
        }
        self._rare = self._gates

    def thin(self, frequent: Container[str]) -> None:
        """From now on these words are looked for in every SAMPLED_CHUNKS-th chunk only."""
        self._rare = {
            gate: rare
            for gate, words in self._gates.items()
            if (rare := [item for item in words if item[0] not in frequent])
        }

    def words_by_line(self, body: bytes, *, is_sampled: bool) -> list[tuple[str, ...]]:
        """For every line the words that may be in it; nothing at all where no line has any. Lines that differ in digits
        only are looked at once."""
        gates = self._gates if is_sampled else self._rare
        shapes = _without_digits(body).split(b"\n")
        distinct = set(shapes)
        together = b"\n".join(distinct)
        present = [(gate, words) for gate, words in gates.items() if gate in together]
        if not present:
            return []
        words_of = {shape: _words_in(shape, present) for shape in distinct}
        return [words_of[shape] for shape in shapes]


def _without_digits(text: bytes) -> bytes:
    return text.lower().translate(None, b"0123456789")


def _words_in(shape: bytes, gates: list[tuple[bytes, list[tuple[str, bytes]]]]) -> tuple[str, ...]:
    words: dict[str, None] = {}
    for gate, behind_gate in gates:
        if gate in shape:
            for word, code in behind_gate:
                if code in shape:
                    words[word] = None
    return tuple(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A line with words of the vocabulary; its passage can be had until the next hit is asked for."""

    line: Line
    words: frozenset[str]
    preceding: deque[Line]
    following: deque[Line]

    def passage(self) -> Passage:
        after = tuple(islice(self.following, LINES_AFTER))
        return Passage(line=self.line, before=tuple(self.preceding), after=after)


def hits(stream: Readable, vocabulary: Vocabulary) -> Iterator[Hit]:
    """Every line with a word of the vocabulary in it, in order."""
    lines = _lines(stream, vocabulary)
    preceding: deque[Line] = deque(maxlen=LINES_BEFORE)
    following: deque[Line] = deque(islice(lines, READ_AHEAD))
    while following:
        current = following.popleft()
        if len(following) < LINES_AFTER:
            following.extend(islice(lines, READ_AHEAD))
        if current.words:
            text = _lower_case(current, following)
            words = frozenset([word for word in current.words if word in text])
            if words:
                yield Hit(line=current, words=words, preceding=preceding, following=following)
        preceding.append(current)


def _lower_case(line: Line, following: deque[Line]) -> str:
    """The text in which words are looked for; a line that was cut is followed by the rest of its last word."""
    if line.raw.startswith(_PROVENANCE):
        return ""
    if line.was_cut and following:
        return (line.raw + following[0].raw[:_CUT_OVERLAP_CHARS]).lower()
    return line.raw.lower()


def _lines(stream: Readable, vocabulary: Vocabulary) -> Iterator[Line]:
    """Lines, each with the words that may be in it. Of chunks without any word only the edges, as context."""
    number = 1
    was_hot = True
    for coloured in _chunks_of_whole_lines(stream):
        chunk = _without_colours(coloured)
        words = vocabulary.words_by_line(chunk.searched, is_sampled=chunk.is_sampled)
        is_hot = any(words)
        body = chunk.body
        if is_hot or len(body) <= _HEAD_BYTES + _TAIL_BYTES:
            yield from _split(body, number, words, is_open=chunk.is_open)
        else:
            tail = len(body) - _TAIL_BYTES
            if was_hot:
                yield from _split(body[:_HEAD_BYTES], number, ())
            yield from _split(body[tail:], number + body.count(b"\n", 0, tail), ())
        number += body.count(b"\n")
        was_hot = is_hot


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    body: bytes
    searched: bytes  # the body, and what a word that begins in it may end in
    is_open: bool = False  # it ends inside an endless line
    is_sampled: bool = True  # words that were seen too often are looked for in it as well


def _without_colours(chunk: _Chunk) -> _Chunk:
    if b"\x1b" not in chunk.searched:
        return chunk
    body, searched = _COLOUR.sub(b"", chunk.body), _COLOUR.sub(b"", chunk.searched)
    return replace(chunk, body=body, searched=searched)


def _without_line_numbers(text: bytes) -> bytes:
    """The text without the numbers of its lines, if every line has one and each is one more than the last."""
    lines = text.splitlines()
    numbers = [int(match.group(1)) for line in lines if (match := _NUMBERED.match(line))]
    if len(numbers) < max(LEAST_NUMBERED, len(lines)):
        return text
    is_counted = all(after == before + 1 for before, after in pairwise(numbers))
    return _NUMBERED.sub(b"", text) if is_counted else text


def _chunks_of_whole_lines(stream: Readable) -> Iterator[_Chunk]:
    """About a MiB each. The first one and the end are always sampled: what a log ends with matters most."""
    pending: deque[_Chunk] = deque()
    is_sampled = cycle([True] + [False] * (SAMPLED_CHUNKS - 1))
    for chunk in _cut_at_line_ends(stream):
        pending.append(chunk)
        if len(pending) > CHUNKS_AT_END:
            yield replace(pending.popleft(), is_sampled=next(is_sampled))
    yield from pending


def _cut_at_line_ends(stream: Readable) -> Iterator[_Chunk]:
    rest = b""
    for piece in _pieces_of_stream(stream):
        data = rest + piece
        line_end = max(data.rfind(b"\n"), data.rfind(b"\r"))
        if line_end >= 0:
            body, rest = data[: line_end + 1], data[line_end + 1 :]
            yield _Chunk(body=body, searched=body)
        elif len(data) < CHUNK_BYTES:
            rest = data
        else:
            body, rest = data[:-_CUT_OVERLAP_CHARS], data[-_CUT_OVERLAP_CHARS:]
            yield _Chunk(body=body, searched=data, is_open=True)
    yield _Chunk(body=rest, searched=rest)


def _split(
    body: bytes, number: int, words_by_line: Sequence[tuple[str, ...]], *, is_open: bool = False
) -> Iterator[Line]:
    """Lines of a body that ends with a line end, or (`is_open`) in the middle of an endless line."""
    lines = body.decode("utf-8", "replace").split("\n")
    numbered = enumerate(zip(lines, words_by_line or repeat(()), strict=False), start=number)
    for at, (line, words) in numbered:
        if not line:
            continue
        if _may_be_entry(line):
            yield from (Line(at, text, is_open, words) for text in _entry_texts(line))
            continue
        if len(line) <= MAX_LINE_CHARS and "\r" not in line:
            yield Line(at, line, is_open, words)
            continue
        for text in line.split("\r"):  # progress bars overwrite themselves
            yield from _pieces(Line(at, text, is_open, words))


# What a log entry says; its other strings are where and when it was said.
_MESSAGE_KEYS = frozenset(
    ("log", "message", "msg", "text", "event", "error", "exception", "exc_info", "traceback", "stack", "line", "body")
)  # fmt: skip

_MESSAGE = re.compile(rf'"(?i:{"|".join(sorted(_MESSAGE_KEYS))})"\s{{0,4}}:\s{{0,4}}"')
_RANK_KEYS = ("rank", "global_rank", "local_rank", "process_rank")


def _entry_texts(line: str) -> list[str]:
    """The lines in the strings of a log entry written as JSON (docker, Kubernetes, structlog); else the line itself."""
    if not _may_be_entry(line):
        return [line]
    entry = _entry(line)
    strings = {key: value for key, value in entry.items() if isinstance(value, str)}
    said = [value for key, value in strings.items() if key in _MESSAGE_KEYS]
    texts = said or list(strings.values())
    rank = _rank_prefix(entry)
    lines = [rank + text for value in texts for text in value.splitlines() if text.strip()]
    is_blank = bool(said) and not lines
    return [
        text[at : at + MAX_LINE_CHARS]
        for text in ([] if is_blank else lines or [line])
        for at in range(0, len(text), MAX_LINE_CHARS)
    ]


def _may_be_entry(line: str) -> bool:
    """Does it begin like an object that has escapes or a message in it? Configurations and metrics stay as they are."""
    return line.startswith("{") and ("\\" in line or _MESSAGE.search(line) is not None)


def _entry(line: str) -> dict[str, object]:
    """The entry by its keys in small letters; empty where the line is none."""
    entry = None
    if len(line) <= MAX_JSON_CHARS:
        with suppress(ValueError, RecursionError):
            entry = json.loads(line)
    return (
        {str(key).lower(): value for key, value in entry.items()} if isinstance(entry, dict) else {}
    )


def _rank_prefix(entry: Mapping[str, object]) -> str:
    """The rank of an entry in the form in which launchers print it before a line."""
    rank = next((value for key in _RANK_KEYS if type(value := entry.get(key)) is int), None)
    return "" if rank is None else f"[rank{rank}]: "


def _pieces(line: Line) -> Iterator[Line]:
    """An empty line has none."""
    for start in range(0, len(line.raw), MAX_LINE_CHARS):
        end = start + MAX_LINE_CHARS
        was_cut = line.was_cut or end < len(line.raw)
        yield line._replace(raw=line.raw[start:end], was_cut=was_cut)


def _pieces_of_stream(stream: Readable) -> Iterator[bytes]:
    """Pieces of the stream as UTF-8; PowerShell redirects are UTF-16, mostly with a byte order mark."""
    first = stream.read(CHUNK_BYTES)
    encoding = _encoding_of(first)
    if encoding == "utf-8" and len(first) < CHUNK_BYTES:  # somebody's paste
        first = _without_line_numbers(first)
    if encoding == "utf-8":
        while first:
            # A log that was cut while it was written begins with a hole.
            if first != _HOLE[: len(first)]:
                yield first
            first = stream.read(CHUNK_BYTES)
        return
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    while first:
        yield decoder.decode(first).encode("utf-8", "replace")
        first = stream.read(CHUNK_BYTES)


def _has_wide_letters(high_bytes: bytes, sample: bytes) -> bool:
    """Upper halves of letters: of Latin ones nearly all are zero, of Chinese ones some, in what is no UTF-8."""
    if high_bytes.count(0) * 10 >= len(high_bytes) * 9:
        return True
    decoder = codecs.getincrementaldecoder("utf-8")()
    with suppress(UnicodeDecodeError):
        decoder.decode(sample)  # the last letter may be cut
        return False
    return high_bytes.count(0) * 10 >= len(high_bytes)


def _encoding_of(start: bytes) -> str:
    """UTF-16 by its byte order mark, or because every other byte of the beginning is zero."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    sample = start[:400]
    for parity, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        zeros, others = sample[parity::2], sample[1 - parity :: 2]
        if len(zeros) >= 4 and others.count(0) == 0 and _has_wide_letters(zeros, sample):
            return encoding
    return "utf-8"
