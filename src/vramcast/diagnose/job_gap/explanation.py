"""A variant of the job that agrees with everything observed, and the cause of the failure under it.

In: what the search found. Out: Explanation, with the name of its cause. Does not know how it was found.
"""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.diagnose.job_gap.agreement import Agreement
from vramcast.diagnose.job_gap.fingerprint import Match
from vramcast.diagnose.job_gap.priced_job import PhaseNeed, PricedJob, allocated_entries
from vramcast.diagnose.job_gap.tensors import has_attention_scores, has_logits
from vramcast.diagnose.rules.evidence import STEPS
from vramcast.job import Job
from vramcast.ledger import (
    EVAL,
    LOAD,
    LOSS,
    NEXT_LOSS,
    RESUME,
    ROLLOUT,
    SAVE,
    Category,
    Entry,
)
from vramcast.setup import resolve

# Plausibility of the job exactly as described, on the scale of `rules.hypotheses`.
AS_DESCRIBED = 85

# Failures outside the training step: the phase is the cause.
_CAUSE_OF_PHASE = {
    LOAD: "loading_the_model",
    RESUME: "resuming_loads_twice",
    SAVE: "saving_gathers",
    EVAL: "evaluation_gathers",
    ROLLOUT: "generation_cache",
}
# Persistent memory: the cause if it is the largest part of what is allocated.
_CAUSE_OF_CATEGORY = {
    Category.OPTIMIZER: "optimizer_states",
    Category.MASTER: "optimizer_states",
    Category.GRADIENTS: "gradients",
    Category.WEIGHTS: "loading_the_model",
    Category.COMPANION: "companion_models",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    changes: tuple[str, ...]  # names of the deviations; none: the job as described
    priced: PricedJob
    agreement: Agreement
    weight: float
    matches: tuple[Match, ...]  # the tensors of that phase that the request can have been
    is_small_request: bool = False  # too small to tell why the memory was full

    @property
    def job(self) -> Job:
        return self.priced.job

    @property
    def need_bytes(self) -> int:
        return self.priced.need_bytes

    @property
    def need_in_phase(self) -> PhaseNeed:
        return self.priced.need_of(self.agreement.phase)

    @property
    def plausibility(self) -> int:
        return round(AS_DESCRIBED * float(self.weight**0.25))

    @property
    def cause(self) -> str:
        """The explanation's name among the causes of `rules.hypotheses`."""
        if self.agreement.because:
            return self.agreement.because
        phase = self.agreement.phase
        if phase in _CAUSE_OF_PHASE:
            return _CAUSE_OF_PHASE[phase]
        if phase in STEPS:
            is_foreach = resolve(self.job).optimizer.implementation == "foreach"
            return "optimizer_foreach" if is_foreach else "optimizer_states"
        return _cause_in_pass(self)


def _cause_in_pass(item: Explanation) -> str:
    """Of a failure in a forward or backward pass, or in the loss."""
    if item.is_small_request:
        persistent = _persistent_cause(item)
        if persistent is not None:
            return persistent
    sums = item.priced.allocated_by_category(item.agreement.phase)
    logits, activations = sums.get(Category.LOGITS, 0), sums.get(Category.ACTIVATIONS, 0)
    if has_logits(item.matches) or logits > activations:
        return "logits"
    if item.job.attention in ("eager", "math") and _scores_decide(item):
        return "attention_scores"
    is_loss = item.agreement.phase in (LOSS, NEXT_LOSS)
    return "logits" if is_loss and not activations else "activations"


def _persistent_cause(item: Explanation) -> str | None:
    """The cause of the largest part of what is allocated; None if the pass itself allocated the largest part."""
    sums: dict[str | None, int] = {}
    for entry in allocated_entries(item.priced.forecast, item.agreement.phase):
        cause = _cause_of_entry(entry)
        sums[cause] = sums.get(cause, 0) + entry.nbytes
    return max(sums, key=lambda cause: sums[cause], default=None)


def _cause_of_entry(entry: Entry) -> str | None:
    if entry.category is Category.COMMUNICATION and "gradients" in entry.component:
        return "gradients"
    return _CAUSE_OF_CATEGORY.get(entry.category)


def _scores_decide(item: Explanation) -> bool:
    was_changed = "eager_attention" in item.changes or "math_attention" in item.changes
    return was_changed or has_attention_scores(item.matches)
