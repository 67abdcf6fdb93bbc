"""What the job would have needed without one of its ingredients.

In: the best Explanation and the Evidence. Out: Contrasts. Does not know whether the job can be changed that way: that
is for the planner.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from vramcast.diagnose.job_gap.agreement import agree, card_bytes
from vramcast.diagnose.job_gap.explanation import Explanation
from vramcast.diagnose.job_gap.job_facts import has_fp32_weights
from vramcast.diagnose.job_gap.priced_job import PricedJob
from vramcast.diagnose.job_gap.variants import Prices
from vramcast.diagnose.rules.evidence import Evidence
from vramcast.job import Job, Precision
from vramcast.ledger import SAVE, Category
from vramcast.setup import resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """The job of the best explanation without one ingredient: what it would have needed, and whether it fits."""

    name: str
    need_bytes: int
    agrees: bool  # it would have failed just as observed
    fits: bool | None  # None: the card is unknown


def list_contrasts(best: Explanation, evidence: Evidence, prices: Prices) -> Iterator[Contrast]:
    for name, job in _without_one_ingredient(best.job):
        priced = prices.of_possible(job)
        if priced is not None:
            yield _contrast(name, priced, evidence)
    if _trains_fp32_weights(best.job):
        textbook = prices.of_possible(replace(best.job, precision=Precision.BF16_MASTER))
        if textbook is not None:
            yield _textbook_contrast(textbook, evidence)


def _contrast(name: str, priced: PricedJob, evidence: Evidence) -> Contrast:
    observed = (evidence.allocated_bytes or 0) + evidence.least_request_bytes
    is_as_high = priced.need_bytes >= observed
    return Contrast(
        name=name,
        need_bytes=priced.need_bytes,
        agrees=is_as_high and agree(priced, evidence) is not None,
        fits=_fits(priced.need_bytes, priced, evidence),
    )


def _textbook_contrast(priced: PricedJob, evidence: Evidence) -> Contrast:
    """Textbooks count 16-bit weights and gradients and fp32 states, and forget the master copy of the weights."""
    master = priced.allocated_by_category(SAVE).get(Category.MASTER, 0)
    need = priced.need_bytes - master
    return Contrast(
        name="textbook",
        need_bytes=need,
        agrees=False,
        fits=_fits(need, priced, evidence),
    )


def _fits(need_bytes: int, priced: PricedJob, evidence: Evidence) -> bool | None:
    card = card_bytes(priced, evidence)
    return None if card is None else need_bytes <= card


def _trains_fp32_weights(job: Job) -> bool:
    return has_fp32_weights(job) and not job.has_adapters


def _without_one_ingredient(job: Job) -> Iterator[tuple[str, Job]]:
    if _trains_fp32_weights(job):
        yield "weights in 16 bit", replace(job, precision=Precision.BF16_TRUE)
    if job.reference == "same":
        yield "reference on the CPU", replace(job, reference="cpu")
    if resolve(job).optimizer.implementation == "foreach":
        yield "fused optimizer", replace(job, optimizer_impl="fused")
    if job.attention in ("eager", "math"):
        yield "fused attention", replace(job, attention="sdpa")
    if job.checkpointing == "none":
        yield "checkpointing", replace(job, checkpointing="full")
