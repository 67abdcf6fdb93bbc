"""A job with its forecast, and what it needs phase by phase.

In: a Job. Out: a PricedJob. Figures are torch's "allocated" bytes. Does not know what was observed.
"""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.diagnose.rules.evidence import BACKWARDS, STEPS
from vramcast.engine import DEVICE, estimate
from vramcast.forecast import Forecast
from vramcast.job import Job
from vramcast.ledger import LOAD, LOSS, NEXT_LOSS, RESUME, STEP, Category, Entry, Level
from vramcast.units import MiB

# How far forecast and reality may be apart if the library versions are known (see docs/accuracy.md).
TOLERANCE, MIN_TOLERANCE_BYTES = 0.02, 128 * MiB

# Categories of what a forward or backward pass allocates.
MADE_BY_A_PASS = (
    Category.ACTIVATIONS,
    Category.LOGITS,
    Category.TEMPORARY,
    Category.COPIES,
    Category.CACHE,
)
MADE_BY_THE_LOSS = (Category.LOGITS, Category.TEMPORARY)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseNeed:
    """What one phase needs: at least `start_bytes` when it begins, and at most `peak_bytes`."""

    phase: str
    start_bytes: int
    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedJob:
    job: Job
    forecast: Forecast
    needs: tuple[PhaseNeed, ...]  # in the order of the phases

    @property
    def need_bytes(self) -> int:
        return self.fullest.peak_bytes

    @property
    def fullest(self) -> PhaseNeed:
        return max(self.needs, key=lambda need: need.peak_bytes)

    @property
    def outside_bytes(self) -> int:
        """What the forecast says that the process needs outside PyTorch."""
        entries = self.forecast.ledger.alive(self.fullest.phase, DEVICE)
        return sum(entry.nbytes for entry in entries if entry.level == Level.PROCESS)

    def need_of(self, phase: str) -> PhaseNeed:
        return next(need for need in self.needs if need.phase == phase)

    def allocated_by_category(self, phase: str) -> dict[Category, int]:
        """What is allocated at the largest moment of a phase."""
        sums: dict[Category, int] = {}
        for entry in allocated_entries(self.forecast, phase):
            sums[entry.category] = sums.get(entry.category, 0) + entry.nbytes
        return sums


def price(job: Job) -> PricedJob:
    """Raises a VramcastError if the engine knows no such job."""
    forecast = estimate(job)
    needs = [_need_of_phase(forecast, phase) for phase in forecast.ledger.phases(DEVICE)]
    return PricedJob(job=job, forecast=forecast, needs=tuple(needs))


def tolerance(nbytes: int) -> int:
    return max(int(nbytes * TOLERANCE), MIN_TOLERANCE_BYTES)


def allocated_entries(forecast: Forecast, phase: str) -> list[Entry]:
    alive = forecast.ledger.alive(phase, DEVICE)
    return [entry for entry in alive if entry.level == Level.ALLOCATED]


def _need_of_phase(forecast: Forecast, phase: str) -> PhaseNeed:
    entries = allocated_entries(forecast, phase)
    return PhaseNeed(
        phase=phase,
        start_bytes=sum(entry.nbytes for entry in entries if _is_there_at_start(entry, phase)),
        peak_bytes=sum(entry.nbytes for entry in entries),
    )


def _is_there_at_start(entry: Entry, phase: str) -> bool:
    """Is this entry surely allocated when the phase begins?"""
    if phase in (LOAD, RESUME):
        return False
    if phase == STEP and entry.category is Category.OPTIMIZER:
        return False  # the first step allocates the states one by one
    if phase in STEPS:
        return entry.category is not Category.TEMPORARY
    if phase in BACKWARDS:
        return entry.category not in (*MADE_BY_A_PASS, Category.GRADIENTS)
    made_here = MADE_BY_THE_LOSS if phase in (LOSS, NEXT_LOSS) else MADE_BY_A_PASS
    return entry.category not in made_here and not _is_forward_of_companion(entry)


def _is_forward_of_companion(entry: Entry) -> bool:
    """A companion's weights are there since loading; what its forward allocates is not."""
    return entry.category is Category.COMPANION and LOAD not in entry.phases
