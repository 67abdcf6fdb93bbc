"""The gap between theory and practice, explained: which variants of a job agree with everything that was observed.

In: the Job as its owner describes it, and Evidence. Out: a Gap: explanations, the most plausible first; contrasts (what
the same job would have needed without one of its ingredients); and the one measurement that decides between the rest.
Combinations of deviations are priced by the formula engine in the order of their plausibility, each at most once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import prod
from typing import TYPE_CHECKING

from vramcast.diagnose.job_gap.course import (
    Agreement,
    Course,
    agree,
    can_reach,
    card_bytes,
    course_of,
    quick_need_bytes,
)
from vramcast.diagnose.job_gap.deviations import (
    BY_DEFAULT,
    BY_MISTAKE,
    DEVIATIONS,
    OF_STATES,
    OTHER_LENGTH,
    Deviation,
    kind_of,
    seen_in_code,
    sequence_of,
)
from vramcast.diagnose.job_gap.fingerprint import Match
from vramcast.diagnose.job_gap.tensors import is_telling, lengths_of, matches_of, tensors_of
from vramcast.diagnose.rules.evidence import STEPS, Evidence
from vramcast.diagnose.rules.findings import DRIVER_MARGIN_BYTES
from vramcast.engine.lines.optimizers import implementation
from vramcast.engine.recording.precision import RECIPES
from vramcast.engine.recording.record import DEVICE
from vramcast.errors import InputError, VramcastError
from vramcast.job import Job, Precision
from vramcast.ledger import EVAL, LOAD, LOSS, NEXT_LOSS, RESUME, ROLLOUT, SAVE, Category, Level
from vramcast.models.record.tape import F32

if TYPE_CHECKING:
    from vramcast.diagnose.job_gap.seen_peak import SeenPeak

MAX_DEVIATIONS = 4
MAX_LOOKED_AT, MAX_PRICED = 150, 16  # variants; a look takes a hundredth of a second, a price a tenth
# One in twenty of the best: the usual level below which a possibility is left out.
LEAST_SHARE = 0.05
# A length that is solved from the request: the failing code names logits or scores, or it does not.
LENGTH_NAMED, LENGTH_GUESSED = BY_DEFAULT, BY_MISTAKE
MAX_EXPLANATIONS = 6
# How much an explanation loses: numbers that need fragmentation too, a request that is no tensor of that phase.
FRAGMENTED, NO_SUCH_TENSOR = 0.4, 0.25
AS_DESCRIBED = 85  # plausibility of the job just as described, on the scale of `hypotheses`

AXES = {item.name: item.axis for item in DEVIATIONS} | {OTHER_LENGTH: "tokens", "loop_step": "optimizer"}
PHASE = "phase"
LAST_STRAW_SHARE = 64
# What was there before the failing phase → cause, where most of the memory is that.
_FILLED_WITH = {
    Category.OPTIMIZER: "optimizer_states", Category.MASTER: "optimizer_states", Category.GRADIENTS: "gradients",
    Category.WEIGHTS: "loading_the_model", Category.COMPANION: "companion_models",
}  # fmt: skip
_BY_PHASE = {
    LOAD: "loading_the_model", RESUME: "resuming_loads_twice", SAVE: "saving_gathers", EVAL: "evaluation_gathers",
    ROLLOUT: "generation_cache",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A variant of the job that agrees with all numbers."""

    changes: tuple[str, ...]  # deviations by name; none: the job as described
    course: Course
    agreement: Agreement
    weight: float
    matches: tuple[Match, ...]  # what the request was, in that phase
    is_last_straw: bool = False  # the request was so small that what it was says nothing about why

    @property
    def job(self) -> Job:
        return self.course.job

    @property
    def need_bytes(self) -> int:
        return self.course.need_bytes

    @property
    def plausibility(self) -> int:
        return round(AS_DESCRIBED * float(self.weight**0.25))

    @property
    def cause(self) -> str:
        """The explanation's name among the causes: what was being made when it failed."""
        return self.agreement.because or _BY_PHASE.get(self.agreement.phase) or _cause_of_step(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """The best explanation with one ingredient taken away: what it would have needed, and whether it had failed."""

    name: str
    need_bytes: int
    agrees: bool
    fits: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    described: Course
    evidence: Evidence
    explanations: tuple[Explanation, ...]
    contrasts: tuple[Contrast, ...]
    decide: str | None  # the deviation's axis whose measurement tells the explanations apart
    num_variants: int
    seen: SeenPeak | None = None  # where nothing failed: the peak that is explained instead


def explain_gap(job: Job, evidence: Evidence, *, least_share: float = LEAST_SHARE) -> Gap:
    """Raises a VramcastError where the engine cannot price the job as described. `least_share`: how much less plausible
    than the best an explanation may be."""
    if job.params is not None:
        raise InputError("a number of parameters has no layers to explain anything with: give --model")
    job = _on_the_card(job, evidence)
    prices = Prices()
    described = prices.of(least(job))
    found = _explanations(job, evidence, prices, least_share) if _can_tell(job, evidence) else []
    explanations = tuple(found[:MAX_EXPLANATIONS])
    contrasts = tuple(_contrasts(explanations[0], evidence, prices)) if explanations else ()
    return Gap(
        described=described, evidence=evidence, explanations=explanations, contrasts=contrasts,
        decide=decide(explanations), num_variants=prices.num_looked_at,
    )  # fmt: skip


def _can_tell(job: Job, evidence: Evidence) -> bool:
    """Not where memory was free when it was refused, nor where neither the card nor the failing code is known."""
    free, requested = evidence.observation.free_bytes, evidence.observation.requested_bytes
    if free is not None and requested is not None and free >= requested + DRIVER_MARGIN_BYTES:
        return False
    return job.gpu is not None or evidence.here_bytes is not None or evidence.phases is not None


def _on_the_card(job: Job, evidence: Evidence) -> Job:
    if job.gpu is None and evidence.capacity_bytes is not None:
        return replace(job, gpu=f"{evidence.capacity_bytes}B")
    return job


def least(job: Job) -> Job:
    """Where nobody said whether outputs are held, they are not: the need is then a lower bound."""
    return replace(job, keep_outputs=False) if job.keep_outputs is None else job


class Prices:
    """Courses by job, each priced once, and only if its peak is as high as what was seen."""

    def __init__(self) -> None:
        self.known: dict[Job, Course] = {}
        self.num_looked_at = 0

    @property
    def is_spent(self) -> bool:
        return len(self.known) >= MAX_PRICED or self.num_looked_at >= MAX_LOOKED_AT

    def of(self, job: Job) -> Course:
        if job not in self.known:
            self.known[job] = course_of(job)
        return self.known[job]

    def maybe(self, job: Job) -> Course | None:
        """None where the engine knows no such job."""
        try:
            return self.of(job)
        except VramcastError:
            return None

    def within(self, job: Job, low_bytes: int, high_bytes: int) -> Course | None:
        """None also where the job's peak is lower or higher than these."""
        self.num_looked_at += 1
        try:
            need = quick_need_bytes(job)
        except VramcastError:
            return None
        return self.maybe(job) if need is None or low_bytes <= need <= high_bytes else None

    def reaching(self, job: Job, evidence: Evidence) -> Course | None:
        """None also where the job never takes as much as was seen."""
        self.num_looked_at += 1
        try:
            need = quick_need_bytes(job)
        except VramcastError:
            return None
        return self.maybe(job) if need is None or can_reach(need, evidence) else None


def _explanations(job: Job, evidence: Evidence, prices: Prices, least_share: float) -> list[Explanation]:
    found: list[Explanation] = []
    job, proven = seen_in_code(least(job), evidence.traces)
    for chosen in combinations_of(job, evidence):
        weight = prod(deviation.prior for deviation in chosen)
        best = max((item.weight for item in found), default=0.0)
        if weight < best * least_share or prices.is_spent:
            break
        names = (*proven, *(deviation.name for deviation in chosen))
        if is_covered(names, found):
            continue
        changed = applied(job, chosen)
        course = prices.reaching(changed, evidence) if changed else None
        agreement = agree(course, evidence) if course else None
        if course is not None and agreement is not None:
            found.append(_explanation(names, course, agreement, weight, evidence))
    return sorted(found, key=lambda item: -item.weight)


def is_covered(names: tuple[str, ...], found: Sequence[Explanation]) -> bool:
    """A smaller explanation does already, or the same one in another way."""
    return any(
        set(item.changes) == set(names) or (set(item.changes) <= set(names) and not item.agreement.because)
        for item in found
    )


def combinations_of(job: Job, evidence: Evidence) -> Iterator[tuple[Deviation, ...]]:
    """None, then combinations of deviations that apply, the most plausible first."""
    known = (*DEVIATIONS, *_lengths(job, evidence))
    usable = [deviation for deviation in known if deviation.apply(job) is not None and _matters(deviation, evidence)]
    many = (chosen for count in range(MAX_DEVIATIONS + 1) for chosen in combinations(usable, count))
    apart = (chosen for chosen in many if len({deviation.axis for deviation in chosen}) == len(chosen))
    return iter(sorted(apart, key=lambda chosen: (-prod(item.prior for item in chosen), len(chosen))))


def _lengths(job: Job, evidence: Evidence) -> Iterator[Deviation]:
    named = re.search(r"logit|cross_entropy|lm_head|softmax|att", evidence.code)
    believed = job.longest_seq or job.seq or 1
    for length in lengths_of(evidence.observation, job):
        yield sequence_of(length, (LENGTH_NAMED if named else LENGTH_GUESSED) * float((believed / length) ** 0.1))


def _matters(deviation: Deviation, evidence: Evidence) -> bool:
    """Evaluation is only thought of where the failing code evaluates, a fused step where the code shows no other, and
    the step does not know about activations."""
    if deviation.name == "evaluation":
        return evidence.phases is not None and EVAL in evidence.phases
    if deviation.name == "fused_step":  # a fused step has no such frames
        return not any(re.search(r"_foreach_|_multi_tensor_|_single_tensor_", text) for text in evidence.traces)
    only_states = evidence.phases is not None and set(evidence.phases) <= {*STEPS, LOAD}
    return deviation.axis in OF_STATES or not only_states


def applied(job: Job, chosen: Iterable[Deviation]) -> Job | None:
    for deviation in chosen:
        changed = deviation.apply(job)
        if changed is None:
            return None
        job = changed
    return job


def _explanation(
    changes: tuple[str, ...], course: Course, agreement: Agreement, prior: float, evidence: Evidence
) -> Explanation:
    telling = is_telling(evidence.observation)
    tensors = tensors_of(course.job) if telling else ()
    matches = matches_of(evidence.observation, tensors, agreement.phase)
    weight = prior * (FRAGMENTED if agreement.because == "fragmentation" else 1)
    weight *= NO_SUCH_TENSOR if tensors and not matches else 1
    return Explanation(
        changes=changes, course=course, agreement=agreement, weight=weight, matches=matches,
        is_last_straw=_is_last_straw(evidence),
    )  # fmt: skip


def _is_last_straw(evidence: Evidence) -> bool:
    asked, card = evidence.observation.requested_bytes, evidence.capacity_bytes
    return asked is not None and card is not None and asked * LAST_STRAW_SHARE < card


def _cause_of_step(item: Explanation) -> str:
    if item.agreement.phase in STEPS:
        return "optimizer_foreach" if implementation(item.job) == "foreach" else "optimizer_states"
    sums = item.course.forecast.ledger.grouped(
        lambda entry: str(entry.category), phase=item.agreement.phase, place=DEVICE
    )
    if item.is_last_straw and (name := _filled_with(item)):
        return name
    logits, activations = sums.get(str(Category.LOGITS), 0), sums.get(str(Category.ACTIVATIONS), 0)
    if any("logits" in match.candidate.name for match in item.matches) or logits > activations:
        return "logits"
    if item.job.attention in ("eager", "math") and _scoresdecide(item):
        return "attention_scores"
    return "logits" if item.agreement.phase in (LOSS, NEXT_LOSS) and not activations else "activations"


def _filled_with(item: Explanation) -> str | None:
    """The cause behind most of the memory of that phase; None where the phase itself made it."""
    sums: dict[str | None, int] = {}
    for entry in item.course.forecast.ledger.alive(item.agreement.phase, DEVICE):
        if entry.level == Level.ALLOCATED:
            is_gradient = entry.category is Category.COMMUNICATION and "gradients" in entry.component
            name = "gradients" if is_gradient else _FILLED_WITH.get(entry.category)
            sums[name] = sums.get(name, 0) + entry.nbytes
    return max(sums, key=lambda name: sums[name], default=None)


def _scoresdecide(item: Explanation) -> bool:
    if any(word in match.candidate.name for match in item.matches for word in ("score", "softmax", "attention")):
        return True
    return bool({"eager_attention", "math_attention"}.intersection(item.changes))


# ---- what it would have been without


def _contrasts(best: Explanation, evidence: Evidence, prices: Prices) -> Iterator[Contrast]:
    for name, without in _without(best.job):
        course = prices.maybe(without)
        if course is not None:
            yield _contrast(name, course, evidence, course.need_bytes)
    textbook = prices.maybe(replace(best.job, precision=Precision.BF16_MASTER)) if _is_fp32(best.job) else None
    if textbook is not None:
        master = textbook.forecast.ledger.grouped(lambda entry: str(entry.category), phase=SAVE, place=DEVICE)
        need = textbook.need_bytes - master.get(str(Category.MASTER), 0)
        yield _contrast("textbook", textbook, evidence, need)


def _contrast(name: str, course: Course, evidence: Evidence, need: int) -> Contrast:
    card = card_bytes(course, evidence)
    reached = need >= (evidence.allocated_bytes or 0) + evidence.least_request_bytes
    return Contrast(
        name=name, need_bytes=need, agrees=name != "textbook" and agree(course, evidence) is not None and reached,
        fits=None if card is None else need <= card,
    )  # fmt: skip


def _is_fp32(job: Job) -> bool:
    return RECIPES[job.precision].weights == F32 and job.lora_rank is None


def _without(job: Job) -> Iterator[tuple[str, Job]]:
    """The ingredients of a job that may be taken away, one at a time."""
    if _is_fp32(job):
        yield "weights in 16 bit", replace(job, precision=Precision.BF16_TRUE)
    if job.reference == "same":
        yield "reference on the CPU", replace(job, reference="cpu")
    if implementation(job) == "foreach":
        yield "fused optimizer", replace(job, optimizer_impl="fused")
    if job.attention in ("eager", "math"):
        yield "fused attention", replace(job, attention="sdpa")
    if job.checkpointing == "none":
        yield "checkpointing", replace(job, checkpointing="full")


# ---- what to measure


def decide(explanations: Sequence[Explanation]) -> str | None:
    """What to look at: the axis, or the phase, on which the explanations differ most."""
    axes = dict.fromkeys(AXES[kind_of(name)] for item in explanations for name in item.changes)
    shares = {axis: _differing(explanations, axis) for axis in (*axes, PHASE)}
    best = max(shares, key=lambda axis: shares[axis])
    return best if shares[best] > 0 else None


def _differing(explanations: Sequence[Explanation], axis: str) -> float:
    """The weight of all explanations that do not agree with the largest group on this axis."""
    groups: dict[object, float] = {}
    for item in explanations:
        said: object = tuple(name for name in item.changes if AXES[kind_of(name)] == axis)
        if axis == PHASE:
            said = item.agreement.phase.removeprefix("next ")
        groups[said] = groups.get(said, 0.0) + item.weight
    return sum(groups.values()) - max(groups.values(), default=0.0)
