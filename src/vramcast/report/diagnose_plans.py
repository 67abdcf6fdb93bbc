"""What to do, from the planner: the fewest and the cheapest changes to the job that really ran, each with its forecast.

In: a Diagnosis with a gap. Out: PlannedSteps. Nothing is planned where nothing failed, or where the job itself is not
too large: then somebody else's memory, or fragmentation, is what to change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vramcast.diagnose.diagnosis import Diagnosis
from vramcast.errors import VramcastError
from vramcast.report.words.diagnose import word
from vramcast.report.words.diagnose_gap import HEADINGS
from vramcast.report.words.plan import plan_word
from vramcast.units import format_bytes

if TYPE_CHECKING:  # the planner needs numpy, and most diagnoses do not need the planner
    from vramcast.plan.search import Plan

MAX_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """Moves that make the job fit, and what it takes then."""

    moves: tuple[str, ...]
    kind: str
    how: tuple[str, ...]
    process_bytes: int
    allocated_bytes: int
    capacity_bytes: int


def planned_steps(diagnosis: Diagnosis) -> tuple[PlannedStep, ...]:
    gap = diagnosis.gap
    best = gap.explanations[0] if gap is not None and gap.explanations else None
    nothing_failed = gap is not None and gap.seen is not None
    if best is None or nothing_failed or best.agreement.because or best.job.gpu is None:
        return ()
    from vramcast.plan.search import plan

    try:
        plans = plan(best.job)
    except VramcastError:
        return ()
    fewest = (plans.fewest,) if plans.fewest is not None else ()
    chosen = {tuple(move.name for move in found.moves): found for found in (*fewest, *plans.fitting)}
    return tuple(_step(found, best.job.framework) for found in list(chosen.values())[:MAX_STEPS])


def _step(found: Plan, framework: str) -> PlannedStep:
    written_for = "trainer" if framework in ("hf", "trl") else "torch"
    verdict = found.forecast.verdict()
    return PlannedStep(
        moves=tuple(move.name for move in found.moves),
        kind=str(found.kind),
        how=tuple(move.how.get(written_for) or next(iter(move.how.values()), "") for move in found.moves),
        process_bytes=verdict.process_bytes or 0,
        allocated_bytes=verdict.allocated_bytes or 0,
        capacity_bytes=verdict.capacity_bytes or 0,
    )


def step_text(step: PlannedStep, lang: str) -> str:
    text = word(HEADINGS, "plan", lang).format(
        moves=" + ".join(plan_word(name, lang) for name in step.moves), process=format_bytes(step.process_bytes),
        capacity=format_bytes(step.capacity_bytes),
    )  # fmt: skip
    return f"{text} ({plan_word(step.kind, lang)}; {'; '.join(filter(None, step.how))})"


def step_json(step: PlannedStep, lang: str) -> dict[str, Any]:
    return {
        "step": "plan",
        "because": "planner",
        "text": step_text(step, lang),
        "moves": list(step.moves),
        "kind": step.kind,
        "how": list(step.how),
        "process_bytes": step.process_bytes,
        "allocated_bytes": step.allocated_bytes,
        "capacity_bytes": step.capacity_bytes,
    }
