"""What the searches share: the user's limits, and how a combination of moves is applied and ranked."""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.job import Job
from vramcast.plan.moves import Kind, Move

Moves = tuple[Move, ...]

KINDS = tuple(Kind)
# What a combination costs beside its class, in the unit of `Move.price`: time counts most, each change a little.
SLOWDOWN_PRICE, COSTLY_PRICE, FREE_PRICE = 4.0, 0.2, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the user wants kept as it is, and what there is."""

    keep: frozenset[str] = frozenset()
    max_slowdown: float | None = None
    second_gpu: bool = False  # another card of the same kind


def applied(job: Job, moves: Moves) -> Job | None:
    """The job after the moves; None where one of them does not apply any more."""
    for move in moves:
        changed = move.apply(job)
        if changed is None:
            return None
        job = changed
    return job


def move_effort(move: Move) -> float:
    return move.price + (FREE_PRICE if move.kind == Kind.FREE else COSTLY_PRICE)


def kind_of(moves: Moves) -> Kind:
    return max((move.kind for move in moves), key=KINDS.index, default=Kind.FREE)
