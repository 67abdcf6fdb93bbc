"""What to do according to the planner: the fewest and the cheapest changes to the job that really ran.

In: a Diagnosis with a gap. Out: PlannedSteps. Nothing is planned where nothing failed, or where the job itself is not
too large: then somebody else's memory, or fragmentation, is what to change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramcast.diagnose.diagnosis import Diagnosis
from vramcast.errors import VramcastError
from vramcast.job import Job

if TYPE_CHECKING:  # the planner needs numpy, and most diagnoses do not need the planner
    from vramcast.plan.moves import Move
    from vramcast.plan.plans import Plan

MAX_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """Changes that make the job fit, and what it needs then."""

    moves: tuple[str, ...]
    kind: str
    how: tuple[str, ...]
    process_bytes: int
    allocated_bytes: int
    capacity_bytes: int


def planned_steps(diagnosis: Diagnosis) -> tuple[PlannedStep, ...]:
    job = _job_to_plan(diagnosis)
    if job is None:
        return ()
    from vramcast.plan.search import plan

    try:
        plans = plan(job)
    except VramcastError:
        return ()
    fewest = (plans.fewest,) if plans.fewest is not None else ()
    chosen = {
        tuple(move.name for move in found.moves): found for found in (*fewest, *plans.fitting)
    }
    return tuple(_step(found, job.framework) for found in list(chosen.values())[:MAX_STEPS])


def _job_to_plan(diagnosis: Diagnosis) -> Job | None:
    """The job that really ran, if it failed on a known card and is itself what is too large."""
    gap = diagnosis.gap
    if gap is None or gap.seen is not None or not gap.explanations:
        return None
    best = gap.explanations[0]
    if best.agreement.because or best.job.gpu is None:
        return None
    return best.job


def _step(found: Plan, framework: str) -> PlannedStep:
    written_for = "trainer" if framework in ("hf", "trl") else "torch"
    verdict = found.forecast.verdict()
    return PlannedStep(
        moves=tuple(move.name for move in found.moves),
        kind=str(found.kind),
        how=tuple(_how(move, written_for) for move in found.moves),
        process_bytes=verdict.process_bytes or 0,
        allocated_bytes=verdict.allocated_bytes or 0,
        capacity_bytes=verdict.capacity_bytes or 0,
    )


def _how(move: Move, written_for: str) -> str:
    """The lines for this framework, else for any other."""
    return move.how.get(written_for) or next(iter(move.how.values()), "")
