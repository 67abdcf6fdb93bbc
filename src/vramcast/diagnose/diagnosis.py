"""From what was printed to what it means, in one call. Start reading the package here.

In: a Reading and, if it is known, the job. Out: a Diagnosis: observations, findings, hypotheses and advice; with a
job also the gap between what the job should need and what was observed. Does not know the planner: `report` adds its
plans.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramcast.diagnose.about_job import facts_about_job
from vramcast.diagnose.next_steps import Advice, advise
from vramcast.diagnose.question import Question, ask
from vramcast.diagnose.readers.log import Reading
from vramcast.diagnose.rules.case import Case, Hypothesis
from vramcast.diagnose.rules.clues import clues_of
from vramcast.diagnose.rules.findings import Finding, fact
from vramcast.diagnose.rules.hypotheses import join_explanations, rank
from vramcast.diagnose.rules.log_findings import find

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
    question: Question | None = None  # where the text alone does not decide
    gap: Gap | None = None
    snapshot: Analysis | None = None  # if the input was a memory snapshot


def diagnose(
    reading: Reading, job: Job | None = None, *, expected_bytes: int | None = None
) -> Diagnosis:
    """`expected_bytes`: what the user had calculated that the job needs."""
    found, clues = find(reading), clues_of(reading)
    about_job = facts_about_job(Case(reading=reading, findings=found, clues=clues), job)
    case = Case(reading=reading, findings=(*found, *about_job.findings), clues=clues)
    gap = about_job.gap
    hypotheses = rank(case)
    if gap is not None:
        hypotheses = join_explanations(hypotheses, gap.explanations)
    compared = (
        () if expected_bytes is None else _compare_with_expected(expected_bytes, reading, gap)
    )
    return Diagnosis(
        reading=reading,
        findings=(*case.findings, *compared),
        hypotheses=hypotheses,
        advice=advise(case, hypotheses),
        question=ask(case, hypotheses, about_job),
        gap=gap,
    )


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
