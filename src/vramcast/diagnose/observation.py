"""What one printed message or log line says about memory, in torch's words.

In: nothing; the readers fill these records. Out: Observation, and its Ledger with origin `measured`. Does not know
how any text is worded.
"""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.ledger import Category, Entry, Ledger, Level, Origin, Word

OBSERVED = "observed"  # the only phase of a measured ledger: the moment that the text describes


class Moment(Word):
    """When the figures held."""

    FAILURE = "failure"  # an allocation was refused, or the process was killed
    NOW = "now"  # a counter, read while the job ran
    PEAK = "peak"  # the highest a counter had been
    THEORY = "theory"  # another tool's estimate: printed, but not measured


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUse:
    """Memory of one process on the device; None where the text does not say."""

    pid: int | None
    nbytes: int | None
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A printed number for which Observation has no field."""

    label: str
    value: int | float
    unit: str = "B"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Numbers as printed; None where the text does not say. `derived` names those that follow by definition."""

    kind: str
    moment: Moment
    line: int = 0
    place: str | None = None
    requested_bytes: int | None = None
    capacity_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    unallocated_bytes: int | None = None
    process_bytes: int | None = None
    other_processes: tuple[ProcessUse, ...] | None = None
    allowed_bytes: int | None = None  # a cap below the capacity, set by the user or by the backend
    used_bytes: int | None = None  # by all processes on the device or host
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    # Smallest and largest size that is printed as the request was printed.
    requested_range_bytes: tuple[int, int] | None = None
    figures: tuple[Figure, ...] = ()
    derived: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()  # facts without a number: truncated, wddm, memcg, hint names
    rank: int | None = None
    count: int = 1
    excerpt: str = ""

    def figure(self, label: str) -> int | float | None:
        return next((figure.value for figure in self.figures if figure.label == label), None)

    def is_failure(self) -> bool:
        return self.moment is Moment.FAILURE

    def is_host(self) -> bool:
        return self.place in ("host", "shm")


def ledger_of(observation: Observation) -> Ledger:
    """What PyTorch allocated, what it cached, the rest of this process, and the other processes."""
    if observation.moment is Moment.THEORY:
        return Ledger(entries=())
    place = observation.place or "cuda"
    entries = (
        _entry(
            "allocated by PyTorch",
            Category.UNKNOWN,
            Level.ALLOCATED,
            place,
            observation.allocated_bytes,
        ),
        _entry(
            "reserved by PyTorch but unallocated",
            Category.SLACK,
            Level.RESERVED,
            place,
            cached_bytes(observation),
        ),
        _entry(
            "this process outside PyTorch",
            Category.CONTEXT,
            Level.PROCESS,
            place,
            outside_bytes(observation),
        ),
        *(_entry_of_other_process(use, place) for use in observation.other_processes or ()),
    )
    return Ledger(entries=tuple(entry for entry in entries if entry is not None))


def _entry_of_other_process(use: ProcessUse, place: str) -> Entry | None:
    return _entry(
        f"process {use.pid or use.name}",
        Category.UNKNOWN,
        Level.PROCESS,
        f"other processes on {place}",
        use.nbytes,
    )


def cached_bytes(observation: Observation) -> int | None:
    if observation.unallocated_bytes is not None:
        return observation.unallocated_bytes
    return _difference(observation.reserved_bytes, observation.allocated_bytes)


def outside_bytes(observation: Observation) -> int | None:
    """Context, NCCL and libraries: memory of this process that PyTorch's allocator does not count."""
    return _difference(observation.process_bytes, observation.reserved_bytes)


def _difference(larger: int | None, smaller: int | None) -> int | None:
    if larger is None or smaller is None:
        return None
    return max(0, larger - smaller)  # printed figures are rounded: a zero may come out negative


def _entry(
    component: str, category: Category, level: Level, place: str, nbytes: int | None
) -> Entry | None:
    if nbytes is None:
        return None
    return Entry(
        category=category,
        component=component,
        place=place,
        phases=(OBSERVED,),
        nbytes=nbytes,
        origin=Origin.MEASURED,
        level=level,
    )
