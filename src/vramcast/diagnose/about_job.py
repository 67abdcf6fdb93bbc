"""What a job adds to a diagnosis: the job that the user describes, or the one that the log itself names.

In: a Case, and the Job if one was given. Out: AboutJob: findings, and the Gap where the job can be set against the
numbers of a failure. A job that the engine cannot price is a finding if the user gave it; what was read from a log is
then left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vramcast.catalog.gpus import find_gpu
from vramcast.diagnose.logged_job import LoggedJob, logged_job, size_in_name
from vramcast.diagnose.readers.log import Reading
from vramcast.diagnose.rules.case import Case
from vramcast.diagnose.rules.evidence import Evidence, evidence_of
from vramcast.diagnose.rules.findings import Finding, fact, limit_bytes
from vramcast.diagnose.rules.processes import ROUNDING_BYTES, neighbours
from vramcast.errors import VramcastError
from vramcast.job import job_from
from vramcast.units import GiB

if TYPE_CHECKING:  # the engine is loaded only if there is a job
    from vramcast.diagnose.job_gap.gap import Gap
    from vramcast.diagnose.job_gap.seen_peak import SeenPeak
    from vramcast.job import Job


# A rank's share of the parameters in fp32: not below this size, and that close to it, where the catalog knows the
# number of parameters or only the model's name says it.
PARTITION_MIN_BYTES, EXACT, ROUNDED = GiB, 0.015, 0.04
SHARES = (2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class AboutJob:
    findings: tuple[Finding, ...] = ()
    gap: Gap | None = None
    is_given: bool = False  # by the user
    logged: LoggedJob | None = None  # what the log says, if the user gave nothing


def facts_about_job(case: Case, job: Job | None) -> AboutJob:
    reading = case.reading
    if job is not None:
        gap, findings = _explain_given(reading, job)
        return AboutJob(findings=tuple(findings), gap=gap, is_given=True)
    if not case.failed_on_device():
        return AboutJob()
    logged = logged_job(reading)
    if case.is_inference():
        return AboutJob(findings=tuple(_weigh_served(case, logged)), logged=logged)
    try:
        gap, findings = _explain_logged(case, logged)
    except VramcastError:  # nobody asked for this job to be priced
        return AboutJob(logged=logged)
    return AboutJob(findings=tuple(findings), gap=gap, logged=logged)


def _explain_given(reading: Reading, job: Job) -> tuple[Gap | None, list[Finding]]:
    try:
        return _explain(reading, job)
    except VramcastError as error:
        return None, [fact("job_not_priced", error=str(error)), *_weigh_by_name(reading, job)]


def _weigh_by_name(reading: Reading, job: Job) -> list[Finding]:
    """A model that nobody knows, whose name says how large it is: what it holds at rest."""
    params = size_in_name(job.model) if job.model is not None else None
    evidence = evidence_of(reading)
    if params is None or evidence is None:
        return []
    try:
        weighed = _weigh_states(replace(job, model=None, params=params), evidence)
    except VramcastError:
        return []
    return [fact("size_from_name", name=job.model or "", billions=f"{params / 1e9:g}"), *weighed]


def _explain(reading: Reading, job: Job) -> tuple[Gap | None, list[Finding]]:
    from vramcast.diagnose.job_gap.gap import explain_gap
    from vramcast.diagnose.job_gap.peak_gap import explain_peak
    from vramcast.diagnose.job_gap.seen_peak import seen_peak

    evidence, seen = evidence_of(reading), seen_peak(reading)
    if evidence is not None and job.model is None:
        return None, _weigh_states(job, evidence)
    if evidence is not None:
        gap = explain_gap(job, evidence)
        return gap, [*_states_too_large(gap), *_facts_about_failure(gap)]
    if seen is not None:
        gap = explain_peak(job, seen)
        return gap, _facts_about_peak(gap, seen)
    return None, [fact("job_without_failure")]


def _explain_logged(case: Case, logged: LoggedJob) -> tuple[Gap | None, list[Finding]]:
    reading = case.reading
    evidence = evidence_of(reading)
    if evidence is None:
        return None, []
    partition = _partition_of_model(case, logged, evidence)
    if logged.job is None:
        weighed = _weigh_if_whole(case, logged, evidence)
        return None, [*partition, *_long_sequence(logged), *weighed]
    named = fact("job_from_log", said=_in_words(logged))
    job = _on_printed_card(logged.job, evidence)
    if logged.is_whole():
        gap, findings = _explain(reading, job)
        return gap, [named, *partition, *findings]
    weighed = _weigh_states(job, evidence)
    if not case.seen("full_training") and not logged.says_adapters():
        # Adapters told in words: how much of the model they leave frozen is not said.
        spoken_of = case.seen("adapters")
        weighed = [] if spoken_of else [_if_all_is_trained(item) for item in weighed]
    return None, [named, *partition, *_long_sequence(logged), *weighed]


LONG_SEQUENCE = 16_384  # tokens


def _long_sequence(logged: LoggedJob) -> list[Finding]:
    """A length that takes much memory whatever the model is."""
    tokens = int(logged.said.get("seq", "0"))
    return [fact("long_sequence", tokens=tokens)] if tokens >= LONG_SEQUENCE else []


def _on_printed_card(job: Job, evidence: Evidence) -> Job:
    """What a message prints of the card counts more than the name that somebody gives it."""
    return replace(job, gpu=None) if evidence.capacity_bytes is not None else job


def _if_all_is_trained(finding: Finding) -> Finding:
    """Nothing says whether the parameters or only adapters are trained."""
    is_much = finding.rule in ("states_exceed_card", "states_fill_card")
    return replace(finding, rule=f"{finding.rule}_if_full") if is_much else finding


def _partition_of_model(case: Case, logged: LoggedJob, evidence: Evidence) -> list[Finding]:
    """One request of four bytes for every parameter of the model that the log names, or for a rank's share of them."""
    requested, params = evidence.observation.requested_bytes, logged.params
    if requested is None or params is None or requested < PARTITION_MIN_BYTES:
        return []
    said = int(logged.said.get("gpus", "1"))
    shares = {1, said, *(SHARES if case.seen("divides") else ())}
    tolerance = EXACT if logged.job is not None else ROUNDED
    for share in sorted(shares):
        if abs(requested * share - params * 4) <= params * 4 * tolerance:
            billions = f"{params / 1e9:.3g}"
            return [fact("partition", requested_bytes=requested, billions=billions, share=share)]
    return []


def _weigh_if_whole(case: Case, logged: LoggedJob, evidence: Evidence) -> list[Finding]:
    """A model that nobody knows, of which the text says that all of it is trained, and nothing about dividing it: is it
    too large even in 16 bit? Less than that says nothing."""
    if logged.params is None or not case.seen("full_training") or case.seen("divides"):
        return []
    least = job_from({"params": logged.params, "precision": "bf16-true"})
    weighed = _weigh_states(least, evidence)
    billions = f"{logged.params / 1e9:g}"
    sized = fact("size_from_name", name=logged.model or "", billions=billions)
    return [sized, *weighed] if weighed[0].rule == "states_exceed_card" else []


def _in_words(logged: LoggedJob) -> str:
    return ", ".join(f"{key} {value}" for key, value in logged.said.items())


def _weigh_states(job: Job, evidence: Evidence) -> list[Finding]:
    """What is allocated whatever the batch is, against the card and against what was allocated."""
    from vramcast.diagnose.job_gap.states import states_bytes

    states, card = states_bytes(job), evidence.capacity_bytes or _named_card_bytes(job)
    if card is None:
        return [fact("states", states_bytes=states)]
    if states > card:
        return [fact("states_exceed_card", states_bytes=states, card_bytes=card)]
    if filled := _fill_card(states, card):
        return filled
    rest = (evidence.allocated_bytes or card) - states
    return [
        fact("states_leave_room", states_bytes=states, rest_bytes=max(0, rest), card_bytes=card)
    ]


def _named_card_bytes(job: Job) -> int | None:
    return find_gpu(job.gpu).total_bytes if job.gpu is not None else None


def _weigh_served(case: Case, logged: LoggedJob) -> list[Finding]:
    """The weights that a server loads onto one card, against the card."""
    weights = logged.serving_weights_bytes()
    limits = [limit for item in case.failures() if (limit := limit_bytes(item)) is not None]
    if weights is None or not limits or not case.seen("vllm", "sglang"):
        return []
    card, name = limits[0], logged.model or ""
    if weights > card:
        return [fact("weights_exceed_card", model=name, weights_bytes=weights, card_bytes=card)]
    return [fact("served_weights", model=name, weights_bytes=weights, card_bytes=card)]


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


def _facts_about_failure(gap: Gap) -> list[Finding]:
    """What the job as described needs, and whether that fits the card and the numbers of the failure."""
    facts = _compare_with_card(gap)
    need, allocated = gap.described.need_bytes, gap.evidence.allocated_bytes
    if allocated is not None and allocated > need:
        facts.append(fact("more_than_described", allocated_bytes=allocated, need_bytes=need))
    return [*facts, *_ranks_on_one_card(gap), *_no_explanation(gap)]


def _states_too_large(gap: Gap) -> list[Finding]:
    """A job whose states alone exceed the card or take most of it, wherever in its first step it fails."""
    from vramcast.diagnose.job_gap.agreement import card_bytes
    from vramcast.diagnose.job_gap.states import states_bytes

    card = card_bytes(gap.described, gap.evidence)
    if card is None:
        return []
    job = gap.described.job
    states = states_bytes(job)
    if states > card and gap.described.need_bytes > card:
        return [fact("states_exceed_card", states_bytes=states, card_bytes=card)]
    return _fill_card(states, card, is_of_one=job.batch == 1)


MOST_OF_CARD = 0.75


def _fill_card(states_bytes: int, card_bytes: int, *, is_of_one: bool = False) -> list[Finding]:
    """Next to states that take most of the card little else fits; with a batch of one nothing is left to shrink."""
    if not MOST_OF_CARD * card_bytes <= states_bytes <= card_bytes:
        return []
    rule = "states_fill_card_of_one" if is_of_one else "states_fill_card"
    return [fact(rule, states_bytes=states_bytes, card_bytes=card_bytes)]


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
