"""Names of phases. The first optimizer step creates the optimizer's states, so later steps have phases of their own."""

from __future__ import annotations

from vramcast.ledger import GATING
from vramcast.report.words import say
from vramcast.report.words.forecast import LABELS, PHASES


def is_later_step(phase: str) -> bool:
    return phase.startswith("next ") or phase == GATING


def phase_name(phase: str, lang: str) -> str:
    """For a cell of a table: `forward`, `forward (step 2+)`."""
    name = say(PHASES, phase, lang)
    return say(LABELS, "step_2", lang, phase=name) if is_later_step(phase) else name
