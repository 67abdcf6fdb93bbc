"""The search for variants of a job that explain what was observed.

In: a Job, Evidence, and how to judge one variant. Out: Explanations, the most plausible first. Combinations of
deviations are tried in the order of their plausibility, each is priced at most once, and their number is bounded.
Does not know how a variant is judged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import prod

from vramcast.diagnose.job_gap.deviations import (
    AXES_OF_STATES,
    BY_DEFAULT,
    BY_MISTAKE,
    DEVIATIONS,
    Deviation,
    evaluation,
    fused_step,
    other_length,
)
from vramcast.diagnose.job_gap.explanation import Explanation
from vramcast.diagnose.job_gap.job_facts import quick_peak_bytes
from vramcast.diagnose.job_gap.priced_job import PricedJob, price
from vramcast.diagnose.job_gap.tensors import lengths_of
from vramcast.diagnose.rules.evidence import STEPS, Evidence
from vramcast.errors import InputError, VramcastError
from vramcast.job import Job
from vramcast.ledger import EVAL, LOAD

MAX_DEVIATIONS = 4
MAX_EXPLANATIONS = 6
# Variants. A quick peak takes a hundredth of a second, a whole estimate a tenth.
MAX_LOOKED_AT, MAX_PRICED = 150, 16
# An explanation must be at least this plausible relative to the best one: the usual level of one in twenty.
LEAST_SHARE = 0.05
# Prior of a length that is inferred from the request, if the failing code names logits or scores, and if not.
LENGTH_NAMED, LENGTH_GUESSED = BY_DEFAULT, BY_MISTAKE


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """The job with some deviations."""

    changes: tuple[str, ...]
    job: Job
    prior: float


class Prices:
    """Priced jobs, each computed once, and a count of the variants that were looked at."""

    def __init__(self) -> None:
        self.known: dict[Job, PricedJob] = {}
        self.num_looked_at = 0

    @property
    def is_spent(self) -> bool:
        return len(self.known) >= MAX_PRICED or self.num_looked_at >= MAX_LOOKED_AT

    def of(self, job: Job) -> PricedJob:
        if job not in self.known:
            self.known[job] = price(job)
        return self.known[job]

    def of_possible(self, job: Job) -> PricedJob | None:
        """None if the engine knows no such job."""
        try:
            return self.of(job)
        except VramcastError:
            return None

    def of_peak(self, job: Job, is_peak_wanted: Callable[[int], bool]) -> PricedJob | None:
        """None also if the job's peak is not a wanted one, which is quickly known for most jobs."""
        self.num_looked_at += 1
        try:
            peak = quick_peak_bytes(job)
        except VramcastError:
            return None
        if peak is not None and not is_peak_wanted(peak):
            return None
        return self.of_possible(job)


def search_explanations(
    job: Job,
    evidence: Evidence,
    prices: Prices,
    explain: Callable[[Variant], Explanation | None],
    *,
    proved: tuple[str, ...] = (),
    least_share: float = LEAST_SHARE,
) -> tuple[Explanation, ...]:
    """`proved`: deviations that `job` already has."""
    found: list[Explanation] = []
    for chosen in _combine_deviations(job, evidence):
        prior = _prior(chosen)
        best = max((item.weight for item in found), default=0.0)
        if prior < best * least_share or prices.is_spent:
            break
        changes = (*proved, *(deviation.name for deviation in chosen))
        changed = _apply_all(job, chosen)
        if changed is None or _is_covered(changes, found):
            continue
        explanation = explain(Variant(changes=changes, job=changed, prior=prior))
        if explanation is not None:
            found.append(explanation)
    most_plausible_first = sorted(found, key=lambda item: -item.weight)
    return tuple(most_plausible_first[:MAX_EXPLANATIONS])


def check_has_layers(job: Job) -> None:
    if job.params is not None:
        raise InputError(
            "a number of parameters has no layers to explain anything with: give --model"
        )


def on_card(job: Job, capacity_bytes: int | None) -> Job:
    """The job on a card of the observed size, if it names none."""
    if job.gpu is not None or capacity_bytes is None:
        return job
    return replace(job, gpu=f"{capacity_bytes}B")


def with_released_outputs(job: Job) -> Job:
    """If nobody said whether the outputs are held, they are not: the need is then a lower bound."""
    if job.keep_outputs is not None:
        return job
    return replace(job, keep_outputs=False)


def _is_covered(changes: tuple[str, ...], found: Sequence[Explanation]) -> bool:
    """Does a smaller explanation suffice, or is the same one already found in another way?"""
    wanted = set(changes)
    for item in found:
        known = set(item.changes)
        suffices = known <= wanted and not item.agreement.because
        if suffices or known == wanted:
            return True
    return False


def _combine_deviations(job: Job, evidence: Evidence) -> list[tuple[Deviation, ...]]:
    """First none, then all combinations of deviations that apply, the most plausible first."""
    known = (*DEVIATIONS, *_other_lengths(job, evidence))
    applicable = [deviation for deviation in known if deviation.apply(job) is not None]
    usable = [deviation for deviation in applicable if _is_relevant(deviation, evidence)]
    found: list[tuple[Deviation, ...]] = []
    for count in range(MAX_DEVIATIONS + 1):
        found += filter(_are_compatible, combinations(usable, count))
    return sorted(found, key=lambda chosen: (-_prior(chosen), len(chosen)))


def _prior(chosen: Iterable[Deviation]) -> float:
    return prod((deviation.prior for deviation in chosen), start=1.0)


def _are_compatible(chosen: Sequence[Deviation]) -> bool:
    return len({deviation.axis for deviation in chosen}) == len(chosen)


def _other_lengths(job: Job, evidence: Evidence) -> Iterator[Deviation]:
    """Lengths that would explain the size of the request. The longer, the less plausible."""
    is_named = re.search(r"logit|cross_entropy|lm_head|softmax|att", evidence.code) is not None
    prior = LENGTH_NAMED if is_named else LENGTH_GUESSED
    described = job.longest_seq or job.seq or 1
    for length in lengths_of(evidence.observation, job):
        yield other_length(length, prior * float((described / length) ** 0.1))


def _is_relevant(deviation: Deviation, evidence: Evidence) -> bool:
    """Could the deviation matter, judging by the failing code?"""
    if deviation is evaluation:
        return evidence.phases is not None and EVAL in evidence.phases
    if deviation is fused_step:  # a fused step has no such frames
        unfused = re.compile(r"_foreach_|_multi_tensor_|_single_tensor_")
        return not any(unfused.search(text) for text in evidence.traces)
    is_in_step_or_load = evidence.phases is not None and set(evidence.phases) <= {*STEPS, LOAD}
    return deviation.axis in AXES_OF_STATES or not is_in_step_or_load


def _apply_all(job: Job, chosen: Iterable[Deviation]) -> Job | None:
    """None if one of them changes nothing after the others."""
    for deviation in chosen:
        changed = deviation.apply(job)
        if changed is None:
            return None
        job = changed
    return job
