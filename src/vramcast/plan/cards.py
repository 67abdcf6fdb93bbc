"""On which cards does a job fit, and how many of them does it take? Each size and generation of card is tried once.

A count above one shards weights, gradients and states over the cards (FSDP2, or the job's own strategy); the
micro-batch per card stays, so the global batch grows with the count. Prices are the user's own: none are known here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from vramcast.catalog.gpus import Gpu, all_gpus
from vramcast.engine import RankPrices
from vramcast.errors import VramcastError
from vramcast.forecast import Answer, Forecast
from vramcast.forecasting import estimate, estimate_all, find_undescribed
from vramcast.job import Job
from vramcast.models.read.source import ModelSource
from vramcast.plan.ranking import fits_surely
from vramcast.setup import complete, model_of, resolve
from vramcast.setup.tasks import ONE_PASS

CardKind = tuple[int, tuple[int, int] | None]  # capacity in bytes, compute capability


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A card, so many of it, and the fullest one's peak. `fits` is false where even the most that were tried do not."""

    gpu: Gpu
    count: int = 1
    process_bytes: int
    headroom_bytes: int
    answer: Answer | None
    surely: bool = False  # with what is assumed at its upper end too
    price: float | None = None  # of all cards, in the user's unit

    @property
    def fits(self) -> bool:
        return self.answer in (Answer.FITS, Answer.TIGHT)

    @property
    def total_bytes(self) -> int:
        return self.count * self.gpu.capacity_bytes()


def cards_for(
    job: Job,
    most: int = 1,
    prices: Mapping[str, float] | None = None,
    tell: Callable[[str, int, int], None] | None = None,
) -> list[Card]:
    """Every card whose capacity is known. Alone: smallest first. In numbers, the fewest of each that do: cheapest
    first, by price where all have one, else by the memory that is bought; what does not fit comes last. `tell` hears of
    each card before it is tried: its name, how many were before it, and how many there are."""
    known = _known_cards(prices)
    tried = _fewest_of_each_kind(job, known, most, tell)
    found = [_priced(replace(tried[_kind(gpu)], gpu=gpu), prices) for gpu in known]
    return found if most == 1 and not prices else sorted(found, key=_cost)


def _known_cards(prices: Mapping[str, float] | None) -> list[Gpu]:
    """NVIDIA's cards with a known capacity, smallest first; where prices are given, those that have one."""
    known = [gpu for gpu in all_gpus() if gpu.total_bytes and gpu.vendor == "nvidia"]
    if prices:
        known = [gpu for gpu in known if gpu.name in prices]
    return sorted(known, key=lambda gpu: gpu.total_bytes or 0)


def _kind(gpu: Gpu) -> CardKind:
    """Size and generation: cards that share both answer the same."""
    return gpu.capacity_bytes(), gpu.compute_capability


def _fewest_of_each_kind(
    job: Job, known: list[Gpu], most: int, tell: Callable[[str, int, int], None] | None
) -> dict[CardKind, Card]:
    """The answer of the first card of every kind."""
    source = find_undescribed(job)
    if source is not None and most == 1:
        return _traced_on_each_kind(job, known, source)
    tried: dict[CardKind, Card] = {}
    for number, gpu in enumerate(known):
        if _kind(gpu) not in tried:
            if tell is not None:
                tell(gpu.name, number, len(known))
            tried[_kind(gpu)] = _fewest(job, gpu, most)
    return tried


def _traced_on_each_kind(job: Job, known: list[Gpu], source: ModelSource) -> dict[CardKind, Card]:
    """For a model that no formula describes: cards of one generation share a trace, and all traces one process."""
    firsts: dict[CardKind, Gpu] = {}
    for gpu in known:
        firsts.setdefault(_kind(gpu), gpu)
    forecasts = estimate_all([_on(job, gpu, 1) for gpu in firsts.values()], source)
    found = {}
    for (kind, gpu), forecast in zip(firsts.items(), forecasts, strict=True):
        if isinstance(forecast, VramcastError):
            raise forecast
        found[kind] = _card_of(forecast, gpu, 1)
    return found


def _cost(card: Card) -> tuple[bool, float, int, int]:
    return (not card.fits, card.price or 0.0, card.total_bytes, card.count)


def _priced(card: Card, prices: Mapping[str, float] | None) -> Card:
    return card if not prices else replace(card, price=card.count * prices[card.gpu.name])


def _fewest(job: Job, gpu: Gpu, most: int) -> Card:
    """One, two, four, … of the card: the first number that fits, or the last that was tried. Numbers whose sharded
    weights and states alone exceed the card are not estimated."""
    if job.engine is not None:
        return _fewest_served(job, gpu, most)
    trains = job.model is not None and job.task not in ("generate", *ONE_PASS)
    source = model_of(complete(job)) if trains else None
    known = source is not None and source.is_described and find_undescribed(job) is None
    prices = RankPrices(source.config, gpu) if known and source and source.config else None
    count = 1
    while 2 * count <= most and prices is not None and _is_too_much(_on(job, gpu, count), prices):
        count *= 2
    card = _card(_on(job, gpu, count), gpu, count)
    while not card.fits and 2 * count <= most:
        count *= 2
        card = _card(_on(job, gpu, count), gpu, count)
    return card


def _fewest_served(job: Job, gpu: Gpu, most: int) -> Card:
    """A serving engine divides its model over tensor-parallel ranks, llama.cpp its layers."""
    count, changed = 1, replace(job, gpu=gpu.name)
    while True:
        if count > 1 and job.engine == "llama.cpp":
            changed = replace(changed, gpus=count)
        elif count > 1:
            changed = replace(changed, tp=count)
        card = _card(changed, gpu, max(changed.gpus, changed.tp * job.pp))
        if card.fits or 2 * count > most:
            return card
        count *= 2


def _on(job: Job, gpu: Gpu, count: int) -> Job:
    if count == 1:
        return replace(job, gpu=gpu.name)
    return replace(job, gpu=gpu.name, gpus=count, strategy=job.strategy or "fsdp2")


def _is_too_much(job: Job, prices: RankPrices) -> bool:
    try:
        return prices.resting(resolve(job)).persistent_bytes > prices.gpu.capacity_bytes()
    except VramcastError:
        return False  # the estimate will say why


def _card(job: Job, gpu: Gpu, count: int) -> Card:
    return _card_of(estimate(job, with_scaling=False), gpu, count)


def _card_of(forecast: Forecast, gpu: Gpu, count: int) -> Card:
    verdict = forecast.verdict()
    return Card(
        gpu=gpu,
        count=count,
        process_bytes=verdict.process_bytes or 0,
        headroom_bytes=verdict.headroom_bytes or 0,
        answer=verdict.answer,
        surely=fits_surely(forecast),
    )
