"""The gap between a job as described and a failure: which variants of the job agree with everything observed.

In: the Job as its owner describes it, and Evidence. Out: a Gap: explanations, the most plausible first; contrasts,
which say what the job would have needed without one of its ingredients; and the one measurement that tells the
explanations apart. Does not know the text that was printed.
"""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.diagnose.job_gap.agreement import FRAGMENTATION, Agreement, agree, can_reach
from vramcast.diagnose.job_gap.contrasts import Contrast, list_contrasts
from vramcast.diagnose.job_gap.deviations import apply_proved
from vramcast.diagnose.job_gap.explanation import Explanation
from vramcast.diagnose.job_gap.measurement import choose_measurement
from vramcast.diagnose.job_gap.priced_job import PricedJob
from vramcast.diagnose.job_gap.seen_peak import SeenPeak
from vramcast.diagnose.job_gap.tensors import is_telling, matches_of, tensors_of
from vramcast.diagnose.job_gap.variants import (
    LEAST_SHARE,
    Prices,
    Variant,
    check_has_layers,
    on_card,
    search_explanations,
    with_released_outputs,
)
from vramcast.diagnose.rules.evidence import Evidence
from vramcast.diagnose.rules.findings import DRIVER_MARGIN_BYTES
from vramcast.job import Job
from vramcast.setup import complete

# How much less plausible an explanation is if it also takes fragmentation.
FRAGMENTED = 0.4
# How much less plausible it is if no tensor of the phase has the requested size.
NO_SUCH_TENSOR = 0.25
# A request below this share of the card does not tell why the card was full.
SMALL_REQUEST_SHARE = 1 / 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    described: PricedJob
    evidence: Evidence
    explanations: tuple[Explanation, ...]
    contrasts: tuple[Contrast, ...]
    decide: str | None  # what to measure to tell the explanations apart: see `measurement`
    num_variants: int
    seen: SeenPeak | None = None  # if nothing failed: the peak that is explained instead


def explain_gap(job: Job, evidence: Evidence, *, least_share: float = LEAST_SHARE) -> Gap:
    """Raises a VramcastError if the engine cannot price the job as described.

    `least_share`: how plausible an explanation must be relative to the best one."""
    check_has_layers(job)
    job = complete(job)
    job = with_released_outputs(on_card(job, evidence.capacity_bytes))
    prices = Prices()
    described = prices.of(job)
    explanations: tuple[Explanation, ...] = ()
    contrasts: tuple[Contrast, ...] = ()
    if _can_be_explained(job, evidence):
        explanations = _explain_failure(job, evidence, prices, least_share)
    if explanations:
        contrasts = tuple(list_contrasts(explanations[0], evidence, prices))
    return Gap(
        described=described,
        evidence=evidence,
        explanations=explanations,
        contrasts=contrasts,
        decide=choose_measurement(explanations),
        num_variants=prices.num_looked_at,
    )


def _can_be_explained(job: Job, evidence: Evidence) -> bool:
    """Not if enough memory was free, and not if neither the card nor the failing code is known."""
    free, requested = evidence.observation.free_bytes, evidence.observation.requested_bytes
    if free is not None and requested is not None and free >= requested + DRIVER_MARGIN_BYTES:
        return False
    return job.gpu is not None or evidence.here_bytes is not None or evidence.phases is not None


def _explain_failure(
    job: Job, evidence: Evidence, prices: Prices, least_share: float
) -> tuple[Explanation, ...]:
    def can_be_peak(peak_bytes: int) -> bool:
        return can_reach(peak_bytes, evidence)

    def explain(variant: Variant) -> Explanation | None:
        priced = prices.of_peak(variant.job, can_be_peak)
        agreement = agree(priced, evidence) if priced is not None else None
        if priced is None or agreement is None:
            return None
        return _explanation(variant, priced, agreement, evidence)

    job, proved = apply_proved(job, evidence.traces)
    return search_explanations(
        job, evidence, prices, explain, proved=proved, least_share=least_share
    )


def _explanation(
    variant: Variant, priced: PricedJob, agreement: Agreement, evidence: Evidence
) -> Explanation:
    weight = variant.prior
    if agreement.because == FRAGMENTATION:
        weight *= FRAGMENTED
    tensors = tensors_of(variant.job) if is_telling(evidence.observation) else ()
    matches = matches_of(evidence.observation, tensors, agreement.phase)
    if tensors and not matches:
        weight *= NO_SUCH_TENSOR
    return Explanation(
        changes=variant.changes,
        priced=priced,
        agreement=agreement,
        weight=weight,
        matches=matches,
        is_small_request=_is_small_request(evidence),
    )


def _is_small_request(evidence: Evidence) -> bool:
    requested, card = evidence.observation.requested_bytes, evidence.capacity_bytes
    if requested is None or card is None:
        return False
    return requested < card * SMALL_REQUEST_SHARE
