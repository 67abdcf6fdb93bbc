"""On which cards does a job fit? Each size and generation of card is estimated once."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vramcast.catalog.gpus import Gpu, all_gpus
from vramcast.formulas.estimate import estimate
from vramcast.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    gpu: Gpu
    process_bytes: int
    headroom_bytes: int
    fits: bool


def cards_for(job: Job) -> list[Card]:
    """Every card whose capacity is known, smallest first."""
    known = sorted(
        (gpu for gpu in all_gpus() if gpu.total_bytes and gpu.vendor == "nvidia"), key=lambda g: g.total_bytes or 0
    )
    tried: dict[tuple[int, tuple[int, int] | None], Card] = {}
    for gpu in known:
        key = (gpu.capacity_bytes(), gpu.compute_capability)
        if key not in tried:
            tried[key] = _card(job, gpu)
    return [replace(tried[gpu.capacity_bytes(), gpu.compute_capability], gpu=gpu) for gpu in known]


def _card(job: Job, gpu: Gpu) -> Card:
    verdict = estimate(replace(job, gpu=gpu.name)).verdict()
    return Card(
        gpu=gpu, process_bytes=verdict.process_bytes or 0, headroom_bytes=verdict.headroom_bytes or 0,
        fits=verdict.fits is True,
    )  # fmt: skip
