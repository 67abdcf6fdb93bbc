"""Plans for a model that no formula describes: changes are tried on the virtual GPU, all of a round in one process.

First every change alone, then combinations of those that free something: the free ones together, with each of the
slower ones, with all of them, and with what changes the training. Time has no price here, since nothing counts the
work; each plan was traced as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from vramcast.catalog.gpus import Gpu
from vramcast.forecast import Forecast
from vramcast.forecasting import estimate, estimate_all
from vramcast.job import Job
from vramcast.models.read.source import ModelSource
from vramcast.plan.cost import assumed_speeds
from vramcast.plan.moves import Kind, Move, available
from vramcast.plan.plans import Plan, Plans, Single
from vramcast.plan.ranking import KINDS, Limits, Moves, applied, effort_of, rank_of
from vramcast.setup import complete

WANTED = 4  # plans shown
MOST_CHANGES = 6  # of the training, in combinations


def plan_by_traces(
    job: Job,
    gpu: Gpu,
    source: ModelSource,
    limits: Limits,
    on_estimate: Callable[[int, Plan | None], None] | None,
) -> Plans:
    base = estimate(job, with_scaling=False)
    whole = complete(job)
    moves = available(whole, limits.keep, second_gpu=limits.second_gpu)
    alone = _tried(whole, source, [(move,) for move in moves])
    singles = _singles(base, alone)
    fits = base.verdict().fits is True
    tried = list(alone)
    if not fits:
        if on_estimate is not None:
            on_estimate(len(tried), None)
        useful = [single.move for single in singles if single.frees_bytes]
        tried += _tried(whole, source, _combinations(useful))
    fitting = () if fits else _cheapest(made for made in tried if made.fits)
    smallest = min(tried, key=_peak_bytes, default=None)
    return Plans(
        base=base,
        cost=None,
        speeds=assumed_speeds(whole, gpu),
        fitting=fitting,
        fewest=min(fitting, key=lambda made: len(made.moves), default=None),
        singles=singles,
        front=(),
        closest=None if fits or fitting else smallest,
        reach=None,
        num_candidates=len(tried),
    )


def _tried(job: Job, source: ModelSource, combinations: Sequence[Moves]) -> list[Plan]:
    """Each combination that applies and can be run."""
    changed = [(moves, applied(job, moves)) for moves in combinations]
    possible = [(moves, after) for moves, after in changed if after is not None]
    forecasts = estimate_all([after for _, after in possible], source)
    return [
        Plan(moves=moves, job=after, forecast=forecast, slowdown=None)
        for (moves, after), forecast in zip(possible, forecasts, strict=True)
        if isinstance(forecast, Forecast)
    ]


def _singles(base: Forecast, alone: Iterable[Plan]) -> tuple[Single, ...]:
    whole = base.verdict().reserved_bytes or base.verdict().highest_bytes
    found = [
        Single(
            move=made.moves[0],
            frees_bytes=max(0, whole - (made.forecast.verdict().reserved_bytes or whole)),
            slowdown=None,
        )
        for made in alone
    ]
    return tuple(sorted(found, key=lambda one: (KINDS.index(one.move.kind), -one.frees_bytes)))


def _combinations(useful: Sequence[Move]) -> list[Moves]:
    """`useful`: what frees something, by kind and then by how much."""
    free = _one_of_each_axis(move for move in useful if move.kind == Kind.FREE)
    slower = _one_of_each_axis(move for move in useful if move.kind == Kind.SLOWER)
    changes = [move for move in useful if move.kind == Kind.CHANGES][:MOST_CHANGES]
    found: list[Moves] = [free]
    found += [(*free, move) for move in slower]
    found += [(*free, *slower)]
    found += [(*_beside(free, move), move) for move in changes]
    found += [(*_beside((*free, *slower), move), move) for move in changes]
    by_names = {tuple(move.name for move in moves): moves for moves in found if len(moves) > 1}
    return list(by_names.values())


def _one_of_each_axis(moves: Iterable[Move]) -> Moves:
    first: dict[str, Move] = {}
    for move in moves:
        first.setdefault(move.axis, move)
    return tuple(first.values())


def _beside(moves: Moves, change: Move) -> Moves:
    return tuple(move for move in moves if move.axis != change.axis)


def _cheapest(found: Iterable[Plan]) -> tuple[Plan, ...]:
    """The classes in their order, in each the least effort; none that contains another one."""
    kept: list[Plan] = []
    for made in sorted(
        found, key=lambda made: (rank_of(made.kind, None), effort_of(made.moves, None))
    ):
        names = {move.name for move in made.moves}
        if not any({move.name for move in known.moves} <= names for known in kept):
            kept.append(made)
    return tuple(kept[:WANTED])


def _peak_bytes(made: Plan) -> int:
    return made.forecast.verdict().highest_bytes
