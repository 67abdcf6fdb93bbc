"""From what was printed to what it means, in one call. Start reading the package here.

In: a Reading and, if it is known, the job. Out: a Diagnosis: observations, findings, hypotheses and advice; with a
job also the gap between what the job should need and what was observed. Does not know the planner: `report` adds its
plans.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramcast.diagnose.next_steps import Advice, advise
from vramcast.diagnose.readers.log import Reading
from vramcast.diagnose.rules.findings import Finding, fact
from vramcast.diagnose.rules.hypotheses import Case, Hypothesis, join_explanations, rank
from vramcast.diagnose.rules.log_findings import find
from vramcast.diagnose.rules.processes import ROUNDING_BYTES, neighbours
from vramcast.errors import VramcastError

if TYPE_CHECKING:  # the engine is loaded only if a job is given
    from vramcast.diagnose.job_gap.gap import Gap
    from vramcast.diagnose.job_gap.seen_peak import SeenPeak
    from vramcast.job import Job
    from vramcast.snapshot.analysis import Analysis


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    reading: Reading
    findings: tuple[Finding, ...]
    hypotheses: tuple[Hypothesis, ...]
    advice: tuple[Advice, ...]
    gap: Gap | None = None
    snapshot: Analysis | None = None  # if the input was a memory snapshot


def diagnose(
    reading: Reading, job: Job | None = None, *, expected_bytes: int | None = None
) -> Diagnosis:
    """`expected_bytes`: what the user had calculated that the job needs."""
    case = Case(reading=reading, findings=find(reading))
    hypotheses = rank(case)
    gap: Gap | None = None
    findings = list(case.findings)
    if job is not None:
        gap, job_facts = _explain_with_job(reading, job)
        findings += job_facts
    if gap is not None:
        hypotheses = join_explanations(hypotheses, gap.explanations)
    if expected_bytes is not None:
        findings += _compare_with_expected(expected_bytes, reading, gap)
    return Diagnosis(
        reading=reading,
        findings=tuple(findings),
        hypotheses=hypotheses,
        advice=advise(case, hypotheses),
        gap=gap,
    )


def _explain_with_job(reading: Reading, job: Job) -> tuple[Gap | None, list[Finding]]:
    """A job that the engine cannot price is a finding: everything else in the diagnosis still holds."""
    from vramcast.diagnose.job_gap.gap import explain_gap
    from vramcast.diagnose.job_gap.peak_gap import explain_peak
    from vramcast.diagnose.job_gap.seen_peak import seen_peak
    from vramcast.diagnose.rules.evidence import evidence_of

    evidence, seen = evidence_of(reading), seen_peak(reading)
    try:
        if evidence is not None:
            gap = explain_gap(job, evidence)
            return gap, _facts_about_job(gap)
        if seen is not None:
            gap = explain_peak(job, seen)
            return gap, _facts_about_peak(gap, seen)
    except VramcastError as error:
        return None, [fact("job_not_priced", error=str(error))]
    return None, [fact("job_without_failure")]


def _facts_about_peak(gap: Gap, seen: SeenPeak) -> list[Finding]:
    """What the job as described needs on the level of the peak that was seen, and how far that is from it."""
    from vramcast.diagnose.job_gap.peak_gap import level_bytes
    from vramcast.ledger import Level

    facts = []
    levels = {level: level_bytes(gap.described, level) for level in Level}
    known = {f"{level}_bytes": nbytes for level, nbytes in levels.items() if nbytes is not None}
    if len(known) == len(levels):
        facts.append(fact("peak_levels", **known))
    need = levels[seen.level]
    if need is None:
        return [*facts, fact("card_unknown")]
    facts.append(_compare_peak(gap, seen, need))
    return [*facts, *_no_explanation(gap)]


def _compare_peak(gap: Gap, seen: SeenPeak, need_bytes: int) -> Finding:
    if any(not item.changes for item in gap.explanations):
        rule = "peak_as_described"
    elif seen.nbytes > need_bytes:
        rule = "peak_above"
    else:
        rule = "peak_below"
    return fact(
        rule,
        level=str(seen.level),
        seen_bytes=seen.nbytes,
        need_bytes=need_bytes,
        difference_bytes=abs(seen.nbytes - need_bytes),
    )


def _no_explanation(gap: Gap) -> list[Finding]:
    if gap.explanations or not gap.num_variants:
        return []
    return [fact("no_explanation", count=gap.num_variants)]


def _facts_about_job(gap: Gap) -> list[Finding]:
    """What the job as described needs, and whether that fits the card and the numbers of the failure."""
    facts = _compare_with_card(gap)
    need, allocated = gap.described.need_bytes, gap.evidence.allocated_bytes
    if allocated is not None and allocated > need:
        facts.append(fact("more_than_described", allocated_bytes=allocated, need_bytes=need))
    return [*facts, *_ranks_on_one_card(gap), *_no_explanation(gap)]


def _compare_with_card(gap: Gap) -> list[Finding]:
    from vramcast.diagnose.job_gap.agreement import card_bytes

    need, phase = gap.described.need_bytes, gap.described.fullest.phase
    card = card_bytes(gap.described, gap.evidence)
    if card is None:
        return [fact("job_need", need_bytes=need, phase=phase), fact("card_unknown")]
    rule = "job_too_large" if need > card else "job_would_fit"
    return [fact(rule, need_bytes=need, phase=phase, card_bytes=card)]


def _ranks_on_one_card(gap: Gap) -> list[Finding]:
    """A job of several ranks, and other processes on this card: what so many ranks would need together on it."""
    others = [use.nbytes or 0 for use in neighbours(gap.evidence.observation)]
    count = 1 + sum(nbytes > ROUNDING_BYTES for nbytes in others)
    gpu = gap.described.forecast.gpu
    card = gap.evidence.capacity_bytes or (gpu.total_bytes if gpu else None)
    if gap.described.job.gpus < 2 or count < 2 or card is None:
        return []
    rank_bytes = gap.described.need_bytes + gap.described.outside_bytes
    shared = fact(
        "ranks_on_one_card",
        count=count,
        rank_bytes=rank_bytes,
        together_bytes=count * rank_bytes,
        card_bytes=card,
    )
    return [shared]


def _compare_with_expected(expected_bytes: int, reading: Reading, gap: Gap | None) -> list[Finding]:
    if gap is not None and gap.seen is not None:
        return [_compare_expected_with_peak(expected_bytes, gap.seen)]
    facts = [_compare_expected_with_failure(expected_bytes, reading)]
    if gap is None:
        return facts
    from vramcast.diagnose.job_gap.agreement import card_bytes

    card = card_bytes(gap.described, gap.evidence)
    if card is not None and expected_bytes <= card:
        facts.append(fact("expected_fits", expected_bytes=expected_bytes, card_bytes=card))
    return facts


def _compare_expected_with_peak(expected_bytes: int, seen: SeenPeak) -> Finding:
    rule = "expected_exceeded" if seen.nbytes > expected_bytes else "expected_kept"
    return fact(rule, expected_bytes=expected_bytes, level=str(seen.level), seen_bytes=seen.nbytes)


def _compare_expected_with_failure(expected_bytes: int, reading: Reading) -> Finding:
    """The job needs at least what was allocated when it failed."""
    failures = [item for item in reading.observations if item.is_failure()]
    sizes = [item.allocated_bytes for item in failures if item.allocated_bytes is not None]
    allocated = sizes[0] if sizes else 0
    if allocated > expected_bytes:
        return fact("expected_refuted", expected_bytes=expected_bytes, allocated_bytes=allocated)
    return fact("expected_possible", expected_bytes=expected_bytes)
