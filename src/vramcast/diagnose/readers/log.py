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
from vramcast.diagnose.readers import host, killed, torch_oom, xla
from vramcast.diagnose.readers import nvidia_smi as smi
from vramcast.diagnose.readers import other_runtimes as runtimes
from vramcast.diagnose.readers import torch_tables as tables
from vramcast.diagnose.readers.frames import Frame, frames_of
from vramcast.diagnose.readers.reader import Read, Reader
from vramcast.diagnose.readers.stream import (
    SAMPLED_CHUNKS,
    Head,
    Line,
    Passage,
    Readable,
    Vocabulary,
    clean,
    hits,
    without_prefix,
)
from vramcast.diagnose.readers.told import told_failure

READERS: tuple[Reader, ...] = (
    torch_oom.READER,
    torch_oom.NAME_READER,
    *library.READERS,
    *runtimes.READERS,
    *xla.READERS,
    *host.READERS,
    *killed.READERS,
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
    "/torch_",
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
    "out_of_dev",
    "error_out_of",
    "cl_out_of",
    "allocation_f",
    "reached zero",
    "out of resource",
    "shared data",
    "too many resou",
    "misaligned",
    "device-side",
    "cannot malloc",
    "] assertion",
    "no space left",
    "quota exc",
    "outofdevice",
    "kernel ",
    "memlimit",
    "pbs: job",
    "oom on dev",
    "dispatched",
    "offloaded",
    "cudnn algo",
    "an engine",
    "ancdata",
    "open files",
    "errno ",
    "emfile",
    "os error",
    "paging f",
    "页面文件",
    "exited unex",
    "sighup",
    "sigbus",
    "sigterm",
    "sigint",
    "got signal",
    "death signal",
    "keyboardint",
    "due to ",
    "returncode",
    "crashed",
    "abruptly",
    "oom killer",
    "signal: ",
    "退出",
    "可用的",
    "崩溃",
    "cudasuccess",
    "isn't enough",
    "segmentation f",
    "sigsegv",
    "sigabrt",
    "sigill",
    "sigfpe",
    "core dumped",
    "illegal instr",
    "段错误",
    "段錯誤",
    *killed.KILLED_ABROAD,
)
# word → the readers that asked for it, in their order.
_ASKED = {
    word: [index for index, reader in enumerate(READERS) if word in reader.words] for word in WORDS
}
KEPT_PER_KIND = 32
# A reader that has read so many observations, or been given so much text, is asked about every 64th line only.
FLOOD_READS = 4_000
FLOOD_CHARS = 8_000_000
# Given to all readers: then the same holds for each that is asked often.
FLOOD_CHARS_TOGETHER = 24_000_000
# A reader that was given no more is always asked: what it knows is rare in this log.
RARE_CHARS = 50_000
FLOOD_STRIDE = 64
ASKING_CHARS = 150  # asking costs about as much as reading so many characters
# After so much text with any word in it, the words of flooded readers are looked for in a sample of the chunks.
THINNING_CHARS = 8_000_000
MAX_HEAD_LINES, MAX_SURROUNDING_CHARS = 400, 1000
MAX_LOOKS = 8  # failures whose surroundings are searched for a traceback
MAX_CONTEXT_LINES, MAX_LINES_BELOW, MAX_CONTEXT_CHARS = 16, 4, 400
LINES_SEARCHED_BELOW = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    observations: tuple[Observation, ...]
    frames: tuple[Frame, ...] = ()  # the last frames before the first failure, outermost first
    context: tuple[
        str, ...
    ] = ()  # the last lines before it (or the first below), for pastes without frames
    omitted: tuple[tuple[str, int], ...] = ()  # kind → observations read but not kept
    progress: int | None = None  # how many steps the last counter beside the first failure showed
    surroundings: tuple[str, ...] = ()  # the first lines of the text, and those around the failure


def read_text(text: str) -> Reading:
    return read_stream(io.BytesIO(text.encode("utf-8", "surrogatepass")))


def read_stream(stream: BinaryIO) -> Reading:
    """One pass over the stream; what surrounds the first failure is read with it."""
    head = Head(stream)
    scan = _Scan(head)
    kept: dict[str, _Kept] = {}
    failure = _FirstFailure()
    for passage, observation in scan.observations():
        if observation.is_failure():
            failure.consider(passage)
        kept.setdefault(observation.kind, _Kept()).add(observation)
    if failure.passage is None and head.is_whole():
        warned = any(
            xla.NOT_A_FAILURE in item.marks for group in kept.values() for item in group.chosen()
        )
        for passage, observation in () if warned else told_failure(head.lines()):
            failure.consider(passage)
            kept.setdefault(observation.kind, _Kept()).add(observation)
    chosen = [item for group in kept.values() for item in group.chosen()]
    chosen.sort(key=lambda item: item.line)
    reading = Reading(
        observations=tuple(chosen),
        omitted=tuple(_omitted(kept, scan.passed_over)),
        surroundings=_surroundings(head, failure.passage),
    )
    if failure.passage is None:
        return reading
    return replace(
        reading,
        frames=frames_of(failure.passage),
        context=_context_of(failure.passage),
        progress=progress_of(failure.passage),
    )


def _surroundings(head: Head, failure: Passage | None) -> tuple[str, ...]:
    """Where a log says what was started, and where it says what failed; each line once."""
    around = () if failure is None else (*failure.before, failure.line, *failure.after)
    near = [_plain(line.raw[:MAX_SURROUNDING_CHARS]) for line in around]
    first = [_plain(line[:MAX_SURROUNDING_CHARS]) for line in head.lines()[:MAX_HEAD_LINES]]
    return tuple(line for line in dict.fromkeys((*first, *near)) if line)


def _omitted(kept: dict[str, _Kept], passed_over: Counter[str]) -> Iterator[tuple[str, int]]:
    """Kinds of which observations were read but not kept, or passed over, and how many."""
    for kind, group in kept.items():
        count = group.omitted() + passed_over[kind]
        if count:
            yield kind, count


def _context_of(failure: Passage) -> tuple[str, ...]:
    """The last lines before a failure and its own; the first after it where a paste quotes the message first."""
    before, after = (
        [line for line in lines if without_prefix(clean(line.raw))]
        for lines in (failure.before, failure.after[:LINES_SEARCHED_BELOW])
    )
    # A listing below the message is read as frames: of its lines only one failed.
    below = [] if frames_of(failure) else after[:MAX_LINES_BELOW]
    around = before[-MAX_CONTEXT_LINES:] or below
    return tuple(_plain(line.raw)[:MAX_CONTEXT_CHARS] for line in (*around, failure.line))


def _plain(raw: str) -> str:
    """A line without what loggers put before it; a worker's name in brackets says who wrote it, and stays."""
    text = clean(raw)
    return text if text.startswith("(") else without_prefix(text)


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

    def __init__(self, stream: Readable) -> None:
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
        is_much_together = self._given_chars >= FLOOD_CHARS_TOGETHER
        return budget.is_spent() or (is_much_together and budget.chars >= RARE_CHARS)

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
    r"load|shard|download|map\b|token|cach|fetch|extract|convert|compil|slurm|srun|cgroup",
    re.IGNORECASE,
)
_LINES_AFTER_FAILURE = 3


def progress_of(passage: Passage) -> int | None:
    """Steps done before the failure, by the last counter printed above it, or just below where bars "
    "are drawn late."""
    above = (*passage.before[-MAX_CONTEXT_LINES:], passage.line)
    for line in (*reversed(above), *passage.after[:_LINES_AFTER_FAILURE]):
        text = clean(line.raw)[:MAX_CONTEXT_CHARS]
        if not _NOT_STEPS.search(text) and (match := _PROGRESS.search(text)) is not None:
            return int(next(filter(None, match.groups())))
    return None
