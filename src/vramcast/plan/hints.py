"""What would help a job that does not fit, in a few milliseconds: single changes and two stronger combinations.

Whole numbers only, no allocator: prices are allocated bytes. The search over all combinations is `plan.search`.
"""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.catalog.gpus import Gpu
from vramcast.engine import Recording, context_bytes, kv_cache, sizes_of
from vramcast.errors import VramcastError
from vramcast.forecast import Forecast
from vramcast.job import Job
from vramcast.ledger import Level
from vramcast.models.read.config import Config
from vramcast.models.record.program import Sizes
from vramcast.plan.moves import CHANGES, FREE, SLOWER, Kind, Move
from vramcast.setup import complete, model_of, resolve

SHOWN = 4
WORTH = 0.02  # a change that frees less than this share of what is short is not worth a line
NAMES = (  # one or two of each class: each costs a few milliseconds
    "fused optimizer",
    "outputs deleted before backward",
    "SDPA attention",
    "zero_grad before forward",
    "reference log-probabilities precomputed",
    "reference model on the CPU",
    "checkpointing",
    "8-bit AdamW",
    "LoRA",
)
MOVES = {move.name: move for move in (*FREE, *SLOWER, *CHANGES)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """One change, or several that belong together, and what the card would hold then in addition to cached blocks."""

    moves: tuple[Move, ...]
    frees_bytes: int
    fits: bool  # allocated bytes and context against the card; fragmentation is not in it

    @property
    def kind(self) -> Kind:
        return max((move.kind for move in self.moves), key=list(Kind).index)


def hints(forecast: Forecast) -> tuple[Hint, ...]:
    """The cheapest single changes, and the first of two combinations that would do; nothing for a job that fits."""
    verdict = forecast.verdict()
    prices = _prices(forecast) if verdict.fits is False else None
    if prices is None:
        return ()
    short_bytes = -(verdict.headroom_bytes or 0)
    singles = _worthwhile_singles(prices, short_bytes)[:SHOWN]
    if any(hint.fits for hint in singles):
        return tuple(singles)
    combined = _first_fitting_combination(prices)
    return tuple(singles) if combined is None else (*singles, combined)


def _prices(forecast: Forecast) -> _Prices | None:
    """Prices of changes to a job on one GPU; None where hints are not given."""
    job, gpu = forecast.job, forecast.gpu
    if job is None or gpu is None or job.model is None or forecast.is_traced:
        return None
    if job.gpus > 1 or job.edit:
        return None
    config = model_of(complete(job)).config
    if config is None or forecast.ledger.top_level != Level.PROCESS:
        return None
    return _Prices(job, config, gpu)


def _worthwhile_singles(prices: _Prices, short_bytes: int) -> list[Hint]:
    """Single changes that fit or free enough of what is short: by class, then those that fit, then by size."""
    singles = [prices.hint((MOVES[name],)) for name in NAMES]
    worth = [
        hint
        for hint in singles
        if hint is not None and (hint.fits or hint.frees_bytes > WORTH * short_bytes)
    ]
    order = list(Kind)
    worth.sort(key=lambda hint: (order.index(hint.kind), not hint.fits, -hint.frees_bytes))
    return worth


def _first_fitting_combination(prices: _Prices) -> Hint | None:
    """The milder combination where it fits, else the stronger one where that does."""
    for moves in _combinations():
        hint = prices.hint(moves)
        if hint is not None and hint.fits:
            return hint
    return None


def _combinations() -> tuple[tuple[Move, ...], ...]:
    """Everything free and checkpointing; with adapters on 4-bit weights."""
    free = tuple(
        move
        for move in FREE
        if move.name not in ("optimizer step inside backward", "chunked cross entropy")
    )
    slower = (*free, MOVES["checkpointing"])
    return slower, (*slower, MOVES["QLoRA"])


class _Prices:
    def __init__(self, job: Job, config: Config, gpu: Gpu) -> None:
        self.job, self.config, self.gpu = job, config, gpu
        self.recordings: dict[object, Recording] = {}
        self.room = gpu.capacity_bytes() - context_bytes(job, gpu)
        self.base = self.allocated(job)

    def hint(self, moves: tuple[Move, ...]) -> Hint | None:
        """Moves that do not apply are left out; None where none does, or where the engine refuses the result."""
        job, used = self.job, []
        for move in moves:
            changed = move.apply(job)
            if changed is not None:
                job = changed
                used.append(move)
        if not used:
            return None
        try:
            nbytes = self.allocated(job)
        except VramcastError:
            return None
        return Hint(
            moves=tuple(used), frees_bytes=max(self.base - nbytes, 0), fits=nbytes <= self.room
        )

    def allocated(self, job: Job) -> int:
        key = (
            job.precision,
            job.adapter,
            job.lora_rank,
            job.quantize,
            job.freeze,
            job.attention,
            job.loss,
            kv_cache(resolve(job), self.config),
            job.checkpointing == "none",
        )
        if key not in self.recordings:
            named = sizes_of(resolve(job).data, self.config)
            tokens = None if named.image_tokens is None else int(named.image_tokens)
            sizes = Sizes(
                batch=int(named.batch),
                seq=int(named.seq),
                target_seq=int(named.target_seq),
                images=int(named.images),
                image_tokens=tokens,
            )
            self.recordings[key] = Recording(resolve(job), self.config, self.gpu, sizes)
        return int(self.recordings[key].peak(resolve(job)))
