"""The records that a search for plans answers with. Nothing is computed here but what follows from a record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramcast.forecast import Forecast
from vramcast.job import Job
from vramcast.plan.cost import AssumedSpeeds, StepCost
from vramcast.plan.moves import Kind, Move
from vramcast.plan.ranking import Moves, fits_surely, kind_of

if TYPE_CHECKING:  # both need NumPy, which jobs on many GPUs do without
    from vramcast.plan.headroom import Reach
    from vramcast.plan.table import Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A combination that was estimated from scratch."""

    moves: Moves
    job: Job
    forecast: Forecast
    slowdown: tuple[float, float] | None  # None: no price on time

    @property
    def kind(self) -> Kind:
        return kind_of(self.moves)

    @property
    def fits(self) -> bool:
        return fits_surely(self.forecast)


@dataclass(frozen=True, slots=True, kw_only=True)
class Single:
    """One change alone: what it frees of allocated bytes (of reserved ones, where it is the allocator's setting)."""

    move: Move
    frees_bytes: int
    slowdown: tuple[float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans:
    """Plans that fit, cheapest first; single moves with what they free; and how much was looked at."""

    base: Forecast
    cost: StepCost | None
    speeds: AssumedSpeeds  # that seconds were computed with
    fitting: tuple[Plan, ...]
    fewest: Plan | None  # of the fitting ones, the one with the fewest changes
    singles: tuple[Single, ...]  # free, slower, changes the training; in each most freed first
    front: tuple[Candidate, ...]  # memory against time, priced only
    closest: Plan | None  # where nothing fits: the smallest that was found
    reach: Reach | None
    num_candidates: int
