"""Why it happened: the causes with any evidence, the most plausible first.

In: a Case. Out: Hypotheses. The table of causes is in `causes`; `join_explanations` adds the explanations that
`job_gap` found for a job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vramcast.diagnose.rules.case import PROVEN, Case, Hypothesis
from vramcast.diagnose.rules.causes import CAUSES
from vramcast.diagnose.rules.host_causes import NOT_MEMORY
from vramcast.diagnose.rules.job_causes import UNDECIDED

if TYPE_CHECKING:  # the engine is loaded only if a job is given
    from vramcast.diagnose.job_gap.explanation import Explanation


# What a program that only runs a model cannot have.
ONLY_IN_TRAINING = (
    "optimizer_flat_copy",
    "optimizer_foreach",
    "optimizer_temporary",
    "optimizer_states",
    "gradients",
    "model_states",
    "activations",
)


NO_MEMORY = tuple(NOT_MEMORY.values())  # where one of them is proven, nothing else is looked for


def rank(case: Case) -> tuple[Hypothesis, ...]:
    """The causes with any evidence, the most plausible first; equal ones keep the order of CAUSES."""
    results = [rule(case) for rule in CAUSES]
    impossible = ONLY_IN_TRAINING if case.is_inference() else ()
    found = [
        hypothesis
        for hypothesis in results
        if hypothesis is not None and hypothesis.name not in impossible
    ]
    no_memory = [item for item in found if item.name in NO_MEMORY and item.plausibility >= PROVEN]
    strongest: dict[str, Hypothesis] = {}
    for hypothesis in _sort_by_plausibility(no_memory or found):
        strongest.setdefault(hypothesis.name, hypothesis)  # two rules may find one cause
    return tuple(strongest.values())


def _sort_by_plausibility(hypotheses: Iterable[Hypothesis]) -> list[Hypothesis]:
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis.plausibility)


def join_explanations(
    hypotheses: Sequence[Hypothesis], explanations: Sequence[Explanation]
) -> tuple[Hypothesis, ...]:
    """One list of the causes found in the text and of the explanations of the job. A cause in both appears once, with
    the evidence of both."""
    if not explanations:
        return tuple(_sort_by_plausibility(hypotheses))
    from_text = {item.name: item for item in hypotheses}
    for name in UNDECIDED:  # the explanations say why it needs more
        if name in from_text and not from_text[name].evidence:
            del from_text[name]
    joined = []
    for explanation in explanations:
        # A changed job that fails only because of another process does not explain that process.
        stands_alone = bool(explanation.agreement.because and explanation.changes)
        same_cause = None if stands_alone else from_text.pop(explanation.cause, None)
        joined.append(_join(explanation, same_cause))
    return tuple(_sort_by_plausibility((*joined, *from_text.values())))


def _join(explanation: Explanation, same_cause: Hypothesis | None) -> Hypothesis:
    alone = Hypothesis(
        name=explanation.cause, plausibility=explanation.plausibility, explanation=explanation
    )
    if same_cause is None:
        return alone
    plausibility = max(explanation.plausibility, same_cause.plausibility)
    return replace(alone, plausibility=plausibility, evidence=same_cause.evidence)
