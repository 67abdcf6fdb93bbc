"""The one currency: a Ledger of Entries. Formula, trace and measurement all produce it.

Totals, peaks and groupings are derived from the entries, so they cannot disagree with the lines.
Knows nothing about models, GPUs or screens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from vramcast.errors import InvariantError


class Word(StrEnum):
    """A closed set of words that prints as itself."""


class Origin(Word):
    """How a figure is known."""

    FORMULA = "formula"  # computed from the job
    TRACED = "traced"  # seen while the script ran on the virtual GPU
    SIMULATED = "simulated"  # produced by replaying the allocator
    MEASURED = "measured"  # read off real hardware
    ASSUMED = "assumed"  # a default with a source; the report says so


class Level(Word):
    """The first of torch's counters that includes the bytes; each counter includes the ones before."""

    ALLOCATED = "allocated"
    RESERVED = "reserved"
    PROCESS = "process"


class Category(Word):
    """What kind of thing holds the bytes."""

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer states"
    MASTER = "master weights"
    COPIES = "weight copies"
    ACTIVATIONS = "activations"
    LOGITS = "logits and loss"
    TEMPORARY = "temporaries"
    COMPANION = "companion models"
    CACHE = "kv cache"
    INPUT = "inputs"
    COMMUNICATION = "communication buffers"
    WORKSPACE = "library workspaces"
    SLACK = "allocator slack"
    CONTEXT = "cuda context"
    LIBRARIES = "interpreter and libraries"
    LOADING = "model load"
    DATA = "data pipeline"
    UNKNOWN = "unattributed"


# Phases in the order of time. The first optimizer step creates the optimizer's states, so it differs from
# the steps after it; those carry "next".
LOAD, FORWARD, LOSS, BACKWARD, STEP = "load", "forward", "loss", "backward", "step"
NEXT_FORWARD, NEXT_LOSS = "next forward", "next loss"
NEXT_BACKWARD, NEXT_STEP = "next backward", "next step"
ROLLOUT, EDIT, EVAL, SAVE = "rollout", "edit", "eval", "save"
RESUME, GATING = (
    "resume",
    "gating",
)  # loading a checkpoint; a second backward pass, for the gate of a mixture of experts
PREFILL, DECODE = "prefill", "decode"  # of generating without training
SYNC, SCORE, CRITIC = "sync", "score", "critic"  # of reinforcement learning, around the rollout
PROFILE, SERVE = "profile", "serve"  # of a serving engine: its trial pass, then the cache is there
PHASES = (
    LOAD,
    RESUME,
    EDIT,
    FORWARD,
    LOSS,
    BACKWARD,
    STEP,
    SYNC,
    ROLLOUT,
    SCORE,
    CRITIC,
    NEXT_FORWARD,
    NEXT_LOSS,
    NEXT_BACKWARD,
    GATING,
    NEXT_STEP,
    EVAL,
    SAVE,
    PREFILL,
    DECODE,
    PROFILE,
    SERVE,
)

HOST, PINNED, SHM = "host", "pinned", "shm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the bill: what, where, when, how many bytes, how it is known and why."""

    category: Category
    component: str
    place: str
    phases: tuple[str, ...]
    nbytes: int
    origin: Origin
    formula: str = ""
    source: str = ""
    needed_by: str = ""
    level: Level = Level.ALLOCATED
    range_bytes: tuple[int, int] | None = (
        None  # what the line could be, where its origin leaves room
    )

    def is_device_memory(self) -> bool:
        return self.place.startswith("cuda")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The sums of the entries alive in one phase at one place."""

    phase: str
    place: str
    allocated_bytes: int
    reserved_bytes: int
    process_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Ledger:
    """Entries, and everything that follows from them.

    >>> import vramcast
    >>> ledger = vramcast.estimate("gpt2", gpu="rtx4090").ledger
    >>> ledger.entries[0].component, ledger.entries[0].nbytes
    ('trained, fp32', 497759232)
    """

    entries: tuple[Entry, ...]
    top_level: Level = (
        Level.PROCESS
    )  # the highest of the GPU's counters that these entries are complete for

    def __repr__(self) -> str:
        peaks = ", ".join(
            f"{place} {self.peak(place).process_bytes:,} bytes" for place in self.places()
        )
        return f"Ledger({len(self.entries)} entries; peaks: {peaks})"

    def check(self) -> None:
        """Raise if an entry is malformed or the sums do not add up."""
        for entry in self.entries:
            _check_entry(entry, self.top_level)
        for place in self.places():
            for phase in self.phases(place):
                moment = self.moment(phase, place)
                grouped = self.grouped(lambda entry: entry.category, phase=phase, place=place)
                if sum(grouped.values()) != moment.process_bytes:
                    raise InvariantError(
                        f"groups of {phase} on {place} do not add up to {moment.process_bytes}"
                    )

    def places(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(entry.place for entry in self.entries))

    def devices(self) -> tuple[str, ...]:
        return tuple(place for place in self.places() if place.startswith("cuda"))

    def phases(self, place: str | None = None) -> tuple[str, ...]:
        """The phases that occur, in the order of time."""
        seen = {
            phase
            for entry in self.entries
            if place in (None, entry.place)
            for phase in entry.phases
        }
        known = tuple(phase for phase in PHASES if phase in seen)
        return known + tuple(sorted(seen.difference(PHASES)))

    def alive(self, phase: str, place: str) -> tuple[Entry, ...]:
        return tuple(
            entry for entry in self.entries if entry.place == place and phase in entry.phases
        )

    def moment(self, phase: str, place: str) -> Moment:
        sums = dict.fromkeys(Level, 0)
        for entry in self.alive(phase, place):
            sums[entry.level] += entry.nbytes
        allocated = sums[Level.ALLOCATED]
        reserved = allocated + sums[Level.RESERVED]
        return Moment(
            phase=phase,
            place=place,
            allocated_bytes=allocated,
            reserved_bytes=reserved,
            process_bytes=reserved + sums[Level.PROCESS],
        )

    def peak(self, place: str) -> Moment:
        """The phase in which the process holds most at this place; among equals the most allocated, then the first."""
        moments = [self.moment(phase, place) for phase in self.phases(place)]
        if not moments:
            raise InvariantError(f"no entries at {place}")
        return max(moments, key=lambda moment: (moment.process_bytes, moment.allocated_bytes))

    def grouped(
        self, key: Callable[[Entry], str], *, phase: str | None = None, place: str | None = None
    ) -> dict[str, int]:
        """Bytes by any property of the entries, in order of first appearance."""
        groups: dict[str, int] = {}
        for entry in self.entries:
            if place in (None, entry.place) and (phase is None or phase in entry.phases):
                groups[key(entry)] = groups.get(key(entry), 0) + entry.nbytes
        return groups

    def extended(self, entries: Iterable[Entry]) -> Ledger:
        return Ledger(entries=(*self.entries, *entries), top_level=self.top_level)


def _check_entry(entry: Entry, top_level: Level) -> None:
    if type(entry.nbytes) is not int or entry.nbytes < 0:
        raise InvariantError(
            f"{entry.component}: bytes must be a non-negative int, not {entry.nbytes!r}"
        )
    if not entry.phases:
        raise InvariantError(f"{entry.component}: alive in no phase")
    levels = list(Level)
    if entry.is_device_memory() and levels.index(entry.level) > levels.index(top_level):
        raise InvariantError(
            f"{entry.component}: level {entry.level} is above what this ledger models"
        )
    if entry.range_bytes and not entry.range_bytes[0] <= entry.nbytes <= entry.range_bytes[1]:
        raise InvariantError(
            f"{entry.component}: {entry.nbytes} lies outside its range {entry.range_bytes}"
        )
