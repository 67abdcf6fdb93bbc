"""A whole log, of any size, as observations and the traceback frames around its failures.

In: a binary stream (or text). Out: a Reading. Memory is bounded: of a kind that repeats for ever the first, the
highest and the last are kept, and how many there were. Time is linear with a small constant: every reader, and all of
them together, may take so much text; from then on about every 64th line is read.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import BinaryIO

from vramcast.diagnose.observation import Observation
from vramcast.diagnose.readers import cuda_libraries as library
from vramcast.diagnose.readers import framework_logs as logs
from vramcast.diagnose.readers import host, torch_oom, xla
from vramcast.diagnose.readers import nvidia_smi as smi
from vramcast.diagnose.readers import other_runtimes as runtimes
from vramcast.diagnose.readers import torch_tables as tables
from vramcast.diagnose.readers.reader import Read, Reader
from vramcast.diagnose.readers.stream import (
    LINES_BEFORE,
    SAMPLED_CHUNKS,
    Line,
    Passage,
    Vocabulary,
    clean,
    hits,
    without_prefix,
)

READERS: tuple[Reader, ...] = (
    torch_oom.READER,
    *library.READERS,
    *runtimes.READERS,
    *xla.READERS,
    *host.READERS,
    *tables.READERS,
    *smi.READERS,
    *logs.READERS,
)
WORDS = tuple(sorted({word for reader in READERS for word in reader.words}))
# Each word contains one of these.
GATES = (
    "mem",
    "alloc",
    "mib",
    "gib(",
    "kill",
    "exit",
    "nccl",
    "capac",
    "cache",
    "vram",
    "/shm/",
    "</torch",
    "gb_free",
    "limit:",
    "segments",
    "param",
    "winerror",
    "_not_init",
    "resource_ex",
    "return code",
    "signal ",
    "not supported",
    "max_m",
    " hbm",
    " mb",
    "bus error",
    "cuda fail",
    "out_of_me",
    "_bytes.all",
    "of size",
    "handle fail",
    "l: bus",
    "low on res",
    "autobatch",
    "buffer size",
    "_execution_f",
    "_internal_e",
    "best cudnn",
    "ng took",
    "ts took",
    "_gib",
    "_in_bytes",
    "内存",
    *host.KILLED_ABROAD,
)
# word → the readers that asked for it, in their order.
_ASKED = {
    word: [index for index, reader in enumerate(READERS) if word in reader.words] for word in WORDS
}
KEPT_PER_KIND = 32
# A reader that has read so many observations, or been given so much text, is asked about every 64th line only.
FLOOD_READS = 4_000
FLOOD_CHARS = 8_000_000
FLOOD_CHARS_TOGETHER = 24_000_000  # given to all readers: then the same holds for each of them
FLOOD_STRIDE = 64
ASKING_CHARS = 150  # asking costs about as much as reading so many characters
# After so much text with any word in it, the words of flooded readers are looked for in a sample of the chunks.
THINNING_CHARS = 8_000_000
MAX_FRAMES = 8
MAX_LOOKS = 8  # failures whose surroundings are searched for a traceback
MAX_CONTEXT_LINES, MAX_LINES_BELOW, MAX_CONTEXT_CHARS = 16, 4, 400


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
    context: tuple[
        str, ...
    ] = ()  # the last lines before it (or the first below), for pastes without frames
    omitted: tuple[tuple[str, int], ...] = ()  # kind → observations read but not kept
    progress: int | None = None  # how many steps the last counter beside the first failure showed


def read_text(text: str) -> Reading:
    return read_stream(io.BytesIO(text.encode("utf-8", "surrogatepass")))


def read_stream(stream: BinaryIO) -> Reading:
    """One pass over the stream; what surrounds the first failure is read with it."""
    scan = _Scan(stream)
    kept: dict[str, _Kept] = {}
    failure = _FirstFailure()
    for passage, observation in scan.observations():
        if observation.is_failure():
            failure.consider(passage)
        kept.setdefault(observation.kind, _Kept()).add(observation)
    chosen = [item for group in kept.values() for item in group.chosen()]
    chosen.sort(key=lambda item: item.line)
    reading = Reading(observations=tuple(chosen), omitted=tuple(_omitted(kept, scan.passed_over)))
    if failure.passage is None:
        return reading
    return replace(
        reading,
        frames=frames_of(failure.passage),
        context=_context_of(failure.passage),
        progress=progress_of(failure.passage),
    )


def _omitted(kept: dict[str, _Kept], passed_over: Counter[str]) -> Iterator[tuple[str, int]]:
    """Kinds of which observations were read but not kept, or passed over, and how many."""
    for kind, group in kept.items():
        count = group.omitted() + passed_over[kind]
        if count:
            yield kind, count


def _context_of(failure: Passage) -> tuple[str, ...]:
    """The last lines before a failure and its own; the first after it where a paste quotes the message first."""
    around = failure.before[-MAX_CONTEXT_LINES:] or failure.after[:MAX_LINES_BELOW]
    return tuple(clean(line.raw)[:MAX_CONTEXT_CHARS] for line in (*around, failure.line))


@dataclass(slots=True)
class _FirstFailure:
    """The first failure that has a traceback, else the last of the first few."""

    passage: Passage | None = None
    looked: int = 0

    def consider(self, failure: Passage) -> None:
        if self.looked >= MAX_LOOKS:
            return
        if self.passage is None or not frames_of(self.passage):
            self.passage = failure
            self.looked += 1


@lru_cache(maxsize=4096)
def _readers_of(words: frozenset[str]) -> tuple[int, ...]:
    return tuple(sorted({index for word in words for index in _ASKED[word]}))


class _Scan:
    """One pass over a stream. Of a flood of lines that wake one reader, only every so many are read."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._vocabulary = Vocabulary(WORDS, GATES)
        self._budgets = [_Budget() for _ in READERS]
        self._given_chars = 0
        self._hit_chars = 0
        self._thinned = 0
        self._read_until = [0] * len(READERS)
        self._last_kind = [""] * len(READERS)
        self.passed_over: Counter[str] = Counter()

    def observations(self) -> Iterator[tuple[Passage, Observation]]:
        for hit in hits(self._stream, self._vocabulary):
            self._count(hit.line)
            passage: Passage | None = None
            understood = False
            for index in _readers_of(hit.words):
                reader = READERS[index]
                if reader.is_fallback and understood:
                    continue
                if self._read_until[index] >= hit.line.number or self._is_passed_over(index):
                    understood = True
                    continue
                passage = passage or hit.passage()
                for read in self._ask(index, passage):
                    understood = True
                    yield passage, read.observation

    def _is_passed_over(self, index: int) -> bool:
        budget = self._budgets[index]
        budget.turns += 1
        if not self._is_flooded(budget) or budget.turns % self._stride() == 0:
            return False
        if self._last_kind[index]:
            self.passed_over[self._last_kind[index]] += 1
        return True

    def _is_flooded(self, budget: _Budget) -> bool:
        return budget.is_spent() or self._given_chars >= FLOOD_CHARS_TOGETHER

    def _stride(self) -> int:
        """Grows with what was given, so that a log of any size takes little more than a large one."""
        stride = FLOOD_STRIDE // SAMPLED_CHUNKS if self._thinned else FLOOD_STRIDE
        return stride * max(1, self._given_chars // FLOOD_CHARS_TOGETHER)

    def _ask(self, index: int, passage: Passage) -> Iterator[Read]:
        budget = self._budgets[index]
        taken_before = passage.meter.chars
        for read in READERS[index].read(passage):
            self._read_until[index] = max(self._read_until[index], read.last_line)
            self._last_kind[index] = read.observation.kind
            budget.reads += 1
            yield read
        chars = ASKING_CHARS + len(passage.line.raw) + passage.meter.chars - taken_before
        budget.chars += chars
        self._given_chars += chars

    def _count(self, line: Line) -> None:
        """Every so many characters with words in them, look which words have become too frequent."""
        self._hit_chars += ASKING_CHARS + len(line.raw)
        if self._hit_chars < THINNING_CHARS * (1 + self._thinned):
            return
        self._thinned += 1
        flooded = {index for index, budget in enumerate(self._budgets) if self._is_flooded(budget)}
        frequent = {word for word, indices in _ASKED.items() if flooded.issuperset(indices)}
        self._vocabulary.thin(frequent)


@dataclass(slots=True)
class _Budget:
    """What one reader was given and what it read."""

    turns: int = 0
    chars: int = 0
    reads: int = 0

    def is_spent(self) -> bool:
        return self.reads >= FLOOD_READS or self.chars >= FLOOD_CHARS


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


def _identity(item: Observation) -> object:
    """Everything that was said, without where it was said."""
    return (
        item.kind,
        item.place,
        item.moment,
        item.requested_bytes,
        item.capacity_bytes,
        item.free_bytes,
        item.allocated_bytes,
        item.reserved_bytes,
        item.unallocated_bytes,
        item.process_bytes,
        item.other_processes,
        item.allowed_bytes,
        item.used_bytes,
        item.peak_allocated_bytes,
        item.peak_reserved_bytes,
        item.figures,
        item.marks,
    )


def _height(observation: Observation) -> int:
    candidates = (
        observation.peak_reserved_bytes,
        observation.reserved_bytes,
        observation.peak_allocated_bytes,
        observation.allocated_bytes,
        observation.used_bytes,
        observation.requested_bytes,
    )
    return max((value for value in candidates if value is not None), default=0)


# tqdm's counter, one in brackets, and a word before a number.
_PROGRESS = re.compile(
    r"\b(\d{1,9})/ ?\d{1,9} \[\d|\[ ?(\d{1,9})/ ?\d{1,9}\]|\b(?:iter|iteration|step):? +(\d{1,9})\b",
    re.I,
)
_NOT_STEPS = re.compile(
    r"load|shard|download|map\b|token|cach|fetch|extract|convert|compil", re.IGNORECASE
)
_LINES_AFTER_FAILURE = 3


def progress_of(passage: Passage) -> int | None:
    """Steps done before the failure, by the last counter printed above it, or just below where bars are drawn late."""
    above = (*passage.before[-MAX_CONTEXT_LINES:], passage.line)
    for line in (*reversed(above), *passage.after[:_LINES_AFTER_FAILURE]):
        text = clean(line.raw)[:MAX_CONTEXT_CHARS]
        if not _NOT_STEPS.search(text) and (match := _PROGRESS.search(text)) is not None:
            return int(next(filter(None, match.groups())))
    return None


# Python's own traceback, rich's, IPython's, pytest's.
_FRAMES = (
    re.compile(r'File "([^"]{1,400})", line (\d{1,9}), in ([\w<>.]{1,120})'),
    re.compile(r"^(/?[\w./\\~-]{1,300}\.py):(\d{1,9}) in ([\w<>.]{1,120})"),
    re.compile(r"^File ([\w./\\~<>-]{1,300}):(\d{1,9}), in ([\w<>.]{1,120})"),
    re.compile(r"^([\w./\\~-]{1,300}\.py):(\d{1,9}): in ([\w<>.]{1,120})"),
)
# Older IPython and Colab name no line; it stands before the source: `---> 88     result = ...`.
_CELL_FRAME = re.compile(r"^\[?([\w./\\~<>-]{1,300})(?:\]\(\S{1,80}\))? in ([\w<>.]{1,120})\(")
_ARROW = re.compile(r"^-{1,6}> (\d{1,9}) ?(.{0,200})")
# A virtual GPU raises below the line that asked; its own frames say nothing about the job.
_VIRTUAL = re.compile(r"[/\\]vramcast[/\\]virtual[/\\]")
_UNDERLINE = re.compile(r"^[\^~ ]*$")


def frames_of(passage: Passage) -> tuple[Frame, ...]:
    """The frames printed just before a failure, the innermost last; some loggers print the message first."""
    frames = _frames((*passage.before, passage.line))
    follows = any("Traceback" in line.raw for line in passage.after[:3])
    return frames if frames or not follows else _frames(passage.after[:LINES_BEFORE])


def _frames(lines: Iterable[Line]) -> tuple[Frame, ...]:
    """Frames in the order in which they were printed, each with the source line that follows it."""
    frames: list[Frame] = []
    pending = ""  # the first half of a frame that a terminal wrapped
    for line in lines:
        text = without_prefix(clean(line.raw))
        match = _frame_in(text) or (_frame_in(pending + text) if pending else None)
        pending = text if 'File "' in text and match is None else ""
        if match is not None:
            frames.append(
                Frame(file=match.group(1), line=int(match.group(2)), function=match.group(3))
            )
        elif (cell := _CELL_FRAME.match(text)) is not None:
            frames.append(Frame(file=cell.group(1), line=0, function=cell.group(2)))
        elif frames:
            frames[-1] = _with_source(frames[-1], text, is_half_a_frame=bool(pending))
    return _innermost_of_job(frames)


def _with_source(frame: Frame, text: str, *, is_half_a_frame: bool) -> Frame:
    """The frame with a source line: one that an arrow marks, else the first that is no underline."""
    arrow = _ARROW.match(text)
    if arrow is not None:
        return replace(frame, line=int(arrow.group(1)), source=arrow.group(2).strip())
    if frame.source or is_half_a_frame or _UNDERLINE.match(text):
        return frame
    return replace(frame, source=text[:200])


def _innermost_of_job(frames: list[Frame]) -> tuple[Frame, ...]:
    """The last frames, without the virtual GPU's own."""
    own = [frame for frame in frames if not _VIRTUAL.search(frame.file)]
    return tuple(own[-MAX_FRAMES:])


def _frame_in(text: str) -> re.Match[str] | None:
    return next((match for pattern in _FRAMES if (match := pattern.search(text))), None)
