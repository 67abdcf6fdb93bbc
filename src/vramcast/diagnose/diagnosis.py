"""One call from what was printed to what it means.

In: a Reading and, where it is known, the job. Out: a Diagnosis: observations, findings, hypotheses, advice; with a job
also the gap between what it should take and what was seen. What the planner advises is added by the reports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramcast.diagnose.next_steps import Advice, advise
from vramcast.diagnose.readers.log import Reading
from vramcast.diagnose.rules.findings import ROUNDING_BYTES, Finding, fact, neighbours
from vramcast.diagnose.rules.host_findings import find
from vramcast.diagnose.rules.hypotheses import Case, Hypothesis, joined, rank
from vramcast.errors import VramcastError

if TYPE_CHECKING:  # the formula engine is loaded only where a job is given
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
    snapshot: Analysis | None = None  # where the input was a memory snapshot


def diagnose(reading: Reading, job: Job | None = None, *, expected_bytes: int | None = None) -> Diagnosis:
    """`expected_bytes`: what the owner had reckoned the job to need."""
    case = Case(reading=reading, findings=find(reading))
    hypotheses = rank(case)
    gap, more = _gap(reading, job) if job is not None else (None, ())
    if gap is not None:
        hypotheses = joined(hypotheses, gap.explanations)
    return Diagnosis(
        reading=reading,
        findings=(*case.findings, *more, *_expected(reading, expected_bytes, gap)),
        hypotheses=hypotheses,
        advice=advise(case, hypotheses),
        gap=gap,
    )


def _gap(reading: Reading, job: Job) -> tuple[Gap | None, tuple[Finding, ...]]:
    """A job that cannot be priced is a finding: the rest of the diagnosis still holds."""
    from vramcast.diagnose.job_gap.gap import explain_gap
    from vramcast.diagnose.job_gap.seen_peak import explain_peak, seen_peak
    from vramcast.diagnose.rules.evidence import evidence_of

    evidence, seen = evidence_of(reading), seen_peak(reading)
    if evidence is None and seen is None:
        return None, (fact("job_without_failure"),)
    try:
        if evidence is None and seen is not None:
            gap = explain_peak(job, seen)
            return gap, tuple(_peak_facts(gap, seen))
        assert evidence is not None  # one of both, see above
        gap = explain_gap(job, evidence)
    except VramcastError as error:
        return None, (fact("job_not_priced", error=str(error)),)
    return gap, tuple(_job_facts(gap))


def _peak_facts(gap: Gap, seen: SeenPeak) -> list[Finding]:
    """What the job as described comes to on the level that was seen, and how far that is from it."""
    from vramcast.diagnose.job_gap.seen_peak import level_bytes
    from vramcast.ledger import Level

    levels = {str(level): level_bytes(gap.described, level) for level in Level}
    known = {f"{name}_bytes": size for name, size in levels.items() if size is not None}
    facts = [fact("peak_levels", **known)] if len(known) == len(levels) else []
    value = levels[str(seen.level)]
    if value is None:
        return [*facts, fact("card_unknown")]
    as_described = any(item.changes == () for item in gap.explanations)
    rule = "peak_as_described" if as_described else "peak_above" if seen.nbytes > value else "peak_below"
    difference = abs(seen.nbytes - value)
    facts.append(
        fact(rule, level=str(seen.level), seen_bytes=seen.nbytes, need_bytes=value, difference_bytes=difference)
    )
    if not gap.explanations and gap.num_variants:
        facts.append(fact("no_explanation", count=gap.num_variants))
    return facts


def _job_facts(gap: Gap) -> list[Finding]:
    from vramcast.diagnose.job_gap.course import card_bytes

    need, fullest = gap.described.need_bytes, gap.described.fullest
    card, allocated = card_bytes(gap.described, gap.evidence), gap.evidence.allocated_bytes
    facts = []
    if card is None:
        facts.append(fact("job_need", need_bytes=need, phase=fullest.phase))
        facts.append(fact("card_unknown"))
    else:
        rule = "job_too_large" if need > card else "job_would_fit"
        facts.append(fact(rule, need_bytes=need, phase=fullest.phase, card_bytes=card))
    if allocated is not None and allocated > need:
        facts.append(fact("more_than_described", allocated_bytes=allocated, need_bytes=need))
    if (shared := _ranks_on_one_card(gap)) is not None:
        facts.append(shared)
    if not gap.explanations and gap.num_variants:
        facts.append(fact("no_explanation", count=gap.num_variants))
    return facts


def _ranks_on_one_card(gap: Gap) -> Finding | None:
    """Other processes beside a job of several ranks: what so many ranks would take together on this card."""
    count = 1 + sum(1 for use in neighbours(gap.evidence.observation) if (use.nbytes or 0) > ROUNDING_BYTES)
    gpu = gap.described.forecast.gpu
    card = gap.evidence.capacity_bytes or (gpu.total_bytes if gpu else None)
    if gap.described.job.gpus < 2 or count < 2 or card is None:
        return None
    rank = gap.described.need_bytes + gap.described.outside_bytes
    return fact("ranks_on_one_card", count=count, rank_bytes=rank, together_bytes=count * rank, card_bytes=card)


def _expected(reading: Reading, expected_bytes: int | None, gap: Gap | None) -> tuple[Finding, ...]:
    if expected_bytes is None:
        return ()
    if gap is not None and gap.seen is not None:
        rule = "expected_exceeded" if gap.seen.nbytes > expected_bytes else "expected_kept"
        return (fact(rule, expected_bytes=expected_bytes, level=str(gap.seen.level), seen_bytes=gap.seen.nbytes),)
    failures = [item for item in reading.observations if item.is_failure() and item.allocated_bytes is not None]
    if failures and (failures[0].allocated_bytes or 0) > expected_bytes:
        allocated = failures[0].allocated_bytes or 0
        refuted = fact("expected_refuted", expected_bytes=expected_bytes, allocated_bytes=allocated)
    else:
        refuted = fact("expected_possible", expected_bytes=expected_bytes)
    if gap is None:
        return (refuted,)
    from vramcast.diagnose.job_gap.course import card_bytes

    card = card_bytes(gap.described, gap.evidence)
    fits = card is not None and expected_bytes <= card
    return (refuted, fact("expected_fits", expected_bytes=expected_bytes, card_bytes=card or 0)) if fits else (refuted,)
