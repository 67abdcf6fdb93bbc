"""The job that explains the numbers, in a few facts.

In: an Explanation. Out: a LikelyJob for reports. In the optimizer step autocast, attention and the batch leave no
trace, so nothing is said about them there.
"""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.diagnose.job_gap.explanation import Explanation
from vramcast.diagnose.rules.evidence import STEPS
from vramcast.setup import resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class LikelyJob:
    weights: str  # dtype
    autocast: str | None  # dtype; None: off, or not to be told from the numbers
    has_adapters: bool
    reference: str | None  # dtype of a reference model on the same GPU
    optimizer: str
    optimizer_impl: str
    attention: str | None
    batch: int | None
    seq: int | None


def describe_likely_job(item: Explanation) -> LikelyJob:
    job, setup = item.job, resolve(item.job)
    dtypes = setup.precision
    is_in_step = item.agreement.phase in STEPS
    has_reference = job.reference == "same"
    return LikelyJob(
        weights=dtypes.weights.name,
        autocast=None if is_in_step or dtypes.autocast is None else dtypes.autocast.name,
        has_adapters=job.has_adapters,
        reference=(job.reference_dtype or dtypes.weights.name) if has_reference else None,
        optimizer=setup.optimizer.name,
        optimizer_impl=setup.optimizer.implementation,
        attention=None if is_in_step else job.attention,
        batch=None if is_in_step else job.batch,
        seq=None if is_in_step else job.longest_seq or job.seq,
    )


def allocated_by_category(item: Explanation) -> dict[str, int]:
    """What is allocated at the largest moment of the failing phase, largest first."""
    sums = item.priced.allocated_by_category(item.agreement.phase)
    largest_first = sorted(sums.items(), key=lambda pair: -pair[1])
    return {str(category): nbytes for category, nbytes in largest_first}
