"""A whole log, of any size, as observations and the traceback frames around its failures.

In: a binary stream (or text). Out: a Reading. Memory is bounded: of a kind that repeats for ever the first, the
highest and the last are kept, and how many there were.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO

from vramcast.diagnose import host, library, logs, smi, tables, torch_oom, xla
from vramcast.diagnose.observation import Observation
from vramcast.diagnose.reader import Reader
from vramcast.diagnose.stream import Passage, clean, passages, without_prefix

READERS: tuple[Reader, ...] = (
    torch_oom.READER, *library.READERS, *xla.READERS, *host.READERS, *tables.READERS, *smi.READERS, *logs.READERS,
)  # fmt: skip
WORDS = tuple(sorted({word for reader in READERS for word in reader.words}))
KEPT_PER_KIND = 32
MAX_FRAMES = 8
MAX_CONTEXT_LINES, MAX_CONTEXT_CHARS = 16, 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One frame of a Python traceback: where, and the source line if it was printed."""

    function: str
    file: str
    line: int
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    observations: tuple[Observation, ...]
    frames: tuple[Frame, ...] = ()  # the last frames before the first failure, outermost first
    context: tuple[str, ...] = ()  # the last lines before it, for pastes without frames
    omitted: tuple[tuple[str, int], ...] = ()  # kind → observations read but not kept


def read_text(text: str) -> Reading:
    return read_stream(io.BytesIO(text.encode("utf-8", "surrogatepass")))


def read_stream(stream: BinaryIO) -> Reading:
    kept: dict[str, _Kept] = {}
    first: Passage | None = None
    for passage, observation in _observations(stream):
        if observation.is_failure() and (first is None or not frames_of(first)):
            first = passage
        kept.setdefault(observation.kind, _Kept()).add(observation)
    chosen = sorted((item for group in kept.values() for item in group.chosen()), key=lambda item: item.line)
    omitted = tuple((kind, group.omitted()) for kind, group in kept.items() if group.omitted())
    if first is None:
        return Reading(observations=tuple(chosen), omitted=omitted)
    context = tuple(clean(line.raw)[:MAX_CONTEXT_CHARS] for line in (*first.before[-MAX_CONTEXT_LINES:], first.line))
    return Reading(observations=tuple(chosen), omitted=omitted, frames=frames_of(first), context=context)


def _observations(stream: BinaryIO) -> Iterator[tuple[Passage, Observation]]:
    read_until = dict.fromkeys(range(len(READERS)), 0)
    for passage in passages(stream, WORDS):
        number, understood = passage.line.number, False
        for index, reader in enumerate(READERS):
            if passage.words.isdisjoint(reader.words) or (reader.is_fallback and understood):
                continue
            if read_until[index] >= number:
                understood = True
                continue
            for read in reader.read(passage):
                understood, read_until[index] = True, max(read_until[index], read.last_line)
                yield passage, read.observation


class _Kept:
    """The first observations of a kind, then only the highest and the last; equal ones are counted, not repeated."""

    def __init__(self) -> None:
        self._first: dict[object, Observation] = {}
        self._later: list[Observation] = []  # the highest and the last
        self._total = 0

    def add(self, observation: Observation) -> None:
        self._total += 1
        key = _identity(observation)
        if key in self._first:
            same = self._first[key]
            self._first[key] = replace(same, count=same.count + 1)
        elif len(self._first) < KEPT_PER_KIND:
            self._first[key] = observation
        else:
            highest = max((*self._later[:1], observation), key=_height)
            self._later = [highest, observation]

    def chosen(self) -> Iterable[Observation]:
        later = {id(item): item for item in self._later}
        return (*self._first.values(), *later.values())

    def omitted(self) -> int:
        return self._total - sum(item.count for item in self.chosen())


def _identity(observation: Observation) -> object:
    """Everything that was said, without where it was said."""
    return replace(observation, line=0, excerpt="", rank=None, count=1)


def _height(observation: Observation) -> int:
    candidates = (
        observation.peak_reserved_bytes, observation.reserved_bytes, observation.peak_allocated_bytes,
        observation.allocated_bytes, observation.used_bytes, observation.requested_bytes,
    )  # fmt: skip
    return max((value for value in candidates if value is not None), default=0)


_FRAME = re.compile(r'File "([^"]{1,400})", line (\d{1,9}), in ([\w<>.]{1,120})')
_RICH_FRAME = re.compile(r"^\s*(/?[\w./\\-]{1,300}\.py):(\d{1,9}) in ([\w<>.]{1,120})")


def frames_of(passage: Passage) -> tuple[Frame, ...]:
    """The frames printed just before a failure, the innermost last."""
    frames: list[Frame] = []
    for line in (*passage.before, passage.line):
        text = without_prefix(clean(line.raw))
        match = _FRAME.search(text) or _RICH_FRAME.search(text)
        if match:
            frames.append(Frame(file=match.group(1), line=int(match.group(2)), function=match.group(3)))
        elif frames and not frames[-1].source and not text.startswith(("^", "~")):
            frames[-1] = replace(frames[-1], source=text[:200])
    return tuple(frames[-MAX_FRAMES:])
