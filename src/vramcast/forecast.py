"""What a question about memory is answered with: a Ledger, the job and card it is about, and what was assumed."""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.catalog.gpus import Gpu
from vramcast.catalog.residuals import residual_range
from vramcast.job import Job
from vramcast.ledger import Ledger, Level, Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSummary:
    name: str
    params_total: int
    params_trainable: int
    family: str | None = None
    num_layers: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPeak:
    """The peak of ranks that hold alike, where a job has many."""

    name: str
    ranks: int
    allocated_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Does it fit? None where the card or a level is unknown."""

    fits: bool | None
    peak: Moment
    allocated_bytes: int | None
    reserved_bytes: int | None
    process_bytes: int | None
    capacity_bytes: int | None
    headroom_bytes: int | None
    range_bytes: tuple[int, int] | None

    @property
    def highest_bytes(self) -> int:
        """The peak at the highest level that is modelled: process, else reserved, else allocated."""
        levels = (self.process_bytes, self.reserved_bytes, self.allocated_bytes)
        return next((level for level in levels if level is not None), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """What one more token of length adds to what is kept for backward, for the whole batch."""

    linear_bytes: int  # per token
    quadratic_bytes: float  # per token²
    crossover_seq: (
        int | None
    )  # the length from which the quadratic part is the larger one; None: there is none
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    model: ModelSummary | None
    job: Job | None
    gpu: Gpu | None
    ledger: Ledger
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    ranks: tuple[RankPeak, ...] = ()  # of a job on many GPUs; the ledger is that of the fullest
    nodes: int = 1  # host lines are for one node
    notes: tuple[str, ...] = ()  # comparisons that the job invites: padding, loops
    scaling: Scaling | None = None

    def verdict(self, place: str | None = None) -> Verdict:
        """The fullest device against the card's capacity as CUDA reports it."""
        places = (place,) if place else self.ledger.devices()
        peak = max(
            (self.ledger.peak(device) for device in places), key=lambda moment: moment.process_bytes
        )
        known = self._known_levels(peak)
        capacity = self.gpu.capacity_bytes() if self.gpu else None
        highest = next(
            (value for value in reversed(known) if value is not None), peak.allocated_bytes
        )
        return Verdict(
            fits=self._fits(highest, capacity),
            peak=peak,
            allocated_bytes=known[0],
            reserved_bytes=known[1],
            process_bytes=known[2],
            capacity_bytes=capacity,
            headroom_bytes=None if capacity is None else capacity - highest,
            range_bytes=self._range(peak, highest),
        )

    def _known_levels(self, peak: Moment) -> list[int | None]:
        """Allocated, reserved and process bytes; None for the levels that are not modelled."""
        complete = list(Level).index(self.ledger.top_level)
        levels = [peak.allocated_bytes, peak.reserved_bytes, peak.process_bytes]
        return [value if index <= complete else None for index, value in enumerate(levels)]

    def _fits(self, highest: int, capacity: int | None) -> bool | None:
        """None where there is no card, or what is not modelled decides."""
        if capacity is None:
            return None
        if highest > capacity:
            return False
        return True if self.ledger.top_level == list(Level)[-1] else None

    def assumed_most_bytes(self) -> int:
        """The peak with every assumed line (context, workspaces) at its upper end."""
        verdict = self.verdict()
        highest = verdict.process_bytes or verdict.reserved_bytes or verdict.allocated_bytes or 0
        found = _open_range(self.ledger, verdict.peak, highest)
        return found[1] if found else highest

    def _range(self, peak: Moment, highest: int) -> tuple[int, int] | None:
        """What the open lines leave room for, and where comparable jobs were measured: the wider of both."""
        ranges = [_open_range(self.ledger, peak, highest)]
        if (
            self.job is not None
            and self.job.model is not None
            and self.ledger.top_level != Level.ALLOCATED
        ):
            ranges.append(residual_range(self.job, self.ledger.top_level, highest))
        known = [found for found in ranges if found is not None]
        return (min(low for low, _ in known), max(high for _, high in known)) if known else None


def _open_range(ledger: Ledger, peak: Moment, highest: int) -> tuple[int, int] | None:
    """Lower and upper sums over lines whose origin leaves room."""
    open_lines = [entry for entry in ledger.alive(peak.phase, peak.place) if entry.range_bytes]
    if not open_lines:
        return None
    low = sum(entry.nbytes - entry.range_bytes[0] for entry in open_lines if entry.range_bytes)
    high = sum(entry.range_bytes[1] - entry.nbytes for entry in open_lines if entry.range_bytes)
    return (highest - low, highest + high)
