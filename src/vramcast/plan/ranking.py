"""What the searches share: the user's limits, and how a combination of moves is applied and ranked."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from vramcast.engine import TooLarge
from vramcast.errors import VramcastError
from vramcast.forecast import Forecast
from vramcast.job import Job
from vramcast.plan.moves import Kind, Move

Moves = tuple[Move, ...]

KINDS = tuple(Kind)
# What a combination costs beside its class, in the unit of `Move.price`: time counts most, each change a little.
SLOWDOWN_PRICE, COSTLY_PRICE, FREE_PRICE = 4.0, 0.2, 0.1
MUCH_SLOWER = (
    2.0  # the same training at more than this many times the time is no better than a changed one
)
KEPT_FREE = 0.9  # of a card, where reserved memory is not modelled


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the user wants kept as it is, and what there is."""

    keep: frozenset[str] = frozenset()
    max_slowdown: float | None = None
    second_gpu: bool = False  # another card of the same kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Does this combination fit? Asked by a search, which goes on with the answer."""

    moves: Moves
    job: Job
    slowdown: tuple[
        float, float
    ]  # time per token against the job as given, at both ends of the assumptions
    allocated_bytes: int = 0  # at least, as far as it is known


# An error: the engine does not model it.
Answer = Forecast | TooLarge | VramcastError
Questions = Generator[Question, Answer, None]


class Applied:
    """A job after moves; what combinations have in common is done once."""

    def __init__(self, job: Job) -> None:
        self._jobs: dict[tuple[str, ...], Job | None] = {(): job}

    def __call__(self, moves: Moves) -> Job | None:
        """None where one of the moves does not apply any more."""
        key = tuple(move.name for move in moves)
        if key not in self._jobs:
            before = self(moves[:-1])
            self._jobs[key] = None if before is None else moves[-1].apply(before)
        return self._jobs[key]


def applied(job: Job, moves: Moves) -> Job | None:
    return Applied(job)(moves)


def move_effort(move: Move) -> float:
    return move.price + (FREE_PRICE if move.kind == Kind.FREE else COSTLY_PRICE)


def kind_of(moves: Moves) -> Kind:
    return max((move.kind for move in moves), key=KINDS.index, default=Kind.FREE)


def rank_of(kind: Kind, slowdown: tuple[float, float] | None) -> int:
    """In which order classes come: a plan that is much slower is shown among those that change the training."""
    much = slowdown is not None and max(slowdown) > MUCH_SLOWER
    return KINDS.index(Kind.CHANGES if kind == Kind.SLOWER and much else kind)


def effort_of(moves: Moves, slowdown: tuple[float, float] | None) -> float:
    time = max(slowdown) - 1 if slowdown is not None else 0.0
    return SLOWDOWN_PRICE * time + sum(map(move_effort, moves))


def fits_surely(forecast: Forecast) -> bool:
    """By the safe limit, below which 98 of 100 such jobs stayed: a plan should not fail by a hair.
    Where only allocated bytes are modelled, a tenth of the card stays free for context and cached blocks."""
    verdict = forecast.verdict()
    capacity = verdict.capacity_bytes or 0
    if verdict.process_bytes is None:
        return verdict.fits is not False and verdict.highest_bytes <= KEPT_FREE * capacity
    return verdict.fits is True and (verdict.safe_bytes or verdict.highest_bytes) <= capacity


def is_plan(answer: Answer) -> bool:
    return isinstance(answer, Forecast) and fits_surely(answer)


def allocated_part(forecast: Forecast) -> float:
    """Of what is reserved."""
    verdict = forecast.verdict()
    return (
        (verdict.allocated_bytes or 0) / verdict.reserved_bytes if verdict.reserved_bytes else 1.0
    )
