"""Memory against time: combinations of the changes that apply.

With NumPy, as a server has it, they are those of `vramcast plan`: every combination priced, and the plans that fit
estimated whole. A browser has none. There they are estimated from scratch, a few per question: changes alone first;
then those that nothing beats in both memory and time get one more change, again and again, first among changes that
leave the training as it is, then among all. The answer says which of both it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from itertools import islice
from typing import Any

from vramcast.errors import VramcastError
from vramcast.forecast import Forecast
from vramcast.job import Job
from vramcast.plan.advice import Priced, price_job
from vramcast.plan.moves import Kind, Move
from vramcast.plan.ranking import Moves, applied
from vramcast.report.html_front import FrontPoint, front_html, front_of
from vramcast.report.words import say
from vramcast.report.words.page import PAGE
from vramcast.setup.tasks import ONE_PASS
from vramcast.web.changes import (
    WORTH,
    JobKey,
    applicable,
    difference,
    move_label,
    priced_change,
)

ALLOWED = ((Kind.FREE, Kind.SLOWER), tuple(Kind))
MOST_TRIED = 60
ROUNDS, EXTENDED, ADDED = (
    3,
    3,
    4,
)  # rounds; combinations that are extended in each; changes that each is tried with


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    moves: Moves
    job: Job
    point: FrontPoint


def list_front(forecast: Forecast, lang: str, *, count: int) -> tuple[dict[str, Any], bool]:
    """Combinations as a picture and as rows, and whether more are left: all of them by `vramcast plan`, where NumPy is,
    else the first `count` that were tried."""
    job = forecast.job
    if job is None or job.model is None or job.gpu is None or _trains_nothing(job):
        return {"html": "", "points": [], "by": "", "said": say(PAGE, "front_none", lang)}, False
    if find_spec("numpy") is not None:
        return _planned(job, lang), False
    return _tried(forecast, job, lang, count)


def _trains_nothing(job: Job) -> bool:
    return job.engine is not None or job.task in ("generate", *ONE_PASS)


def _planned(job: Job, lang: str) -> dict[str, Any]:
    """What `vramcast plan` finds: its plans, and the front of what it priced, as allocated bytes."""
    from vramcast.plan.search import plan
    from vramcast.report.html_reports import combinations_of, room_of

    plans = plan(job)
    combinations = combinations_of(plans, lang)
    points = [point for point, _ in combinations]
    jobs = [applied(job, moves) if moves else job for _, moves in combinations]
    front = front_of(points)
    rows = [
        _row(point, {} if after is None else difference(job, after), on_front=point in front)
        for point, after in zip(points, jobs, strict=True)
    ]
    html = front_html(points, room_of(plans), lang, what="allocated")
    said = say(PAGE, "by_plan", lang, count=f"{plans.num_candidates:,}")
    return {"html": html, "points": rows, "by": "plan", "said": said}


def _row(point: FrontPoint, values: dict[str, Any], *, on_front: bool) -> dict[str, Any]:
    return {
        "changes": list(point.changes),
        "kind": point.kind,
        "time": point.time,
        "peak_bytes": point.nbytes,
        "fits": point.fits,
        "on_front": on_front,
        "set": values,
    }


def _tried(forecast: Forecast, job: Job, lang: str, count: int) -> tuple[dict[str, Any], bool]:
    given = FrontPoint(
        changes=(),
        kind=str(Kind.FREE),
        time=1.0,
        nbytes=forecast.verdict().highest_bytes,
        fits=forecast.verdict().fits is True,
    )
    found: list[tuple[FrontPoint, dict[str, Any]]] = [(given, {})]
    more = False
    tries = islice(_combinations(forecast, job, lang), MOST_TRIED)
    for number, tried in enumerate(tries):
        if number >= count:
            more = True
            break
        if tried is not None:
            found.append((tried.point, difference(job, tried.job)))
    points = [point for point, _ in found]
    front = front_of(points)
    rows = [_row(point, values, on_front=point in front) for point, values in found]
    html = front_html(points, forecast.verdict().capacity_bytes, lang, what="process")
    said = say(PAGE, "by_tries", lang, count=f"{len(points):,}")
    return {"html": html, "points": rows, "by": "tries", "said": said}, more


def _point(forecast: Forecast, moves: Moves, job: Job, lang: str) -> FrontPoint | None:
    priced = _price(forecast, moves, job)
    if priced is None or priced.forecast is None:
        return None
    verdict = priced.forecast.verdict()
    return FrontPoint(
        changes=tuple(move_label(move, lang) for move in moves),
        kind=str(max((move.kind for move in moves), key=list(Kind).index)),
        time=1.0 if priced.slowdown is None else sum(priced.slowdown) / 2,
        nbytes=verdict.highest_bytes,
        fits=verdict.fits is True,
    )


def _price(forecast: Forecast, moves: Moves, job: Job) -> Priced | None:
    """None where the engine refuses the combination."""
    if len(moves) == 1:
        return priced_change(forecast, moves[0].name)
    try:
        return _cached(JobKey(forecast), job)
    except VramcastError:
        return None


@lru_cache(maxsize=256)
def _cached(key: JobKey, job: Job) -> Priced:
    return price_job(key.forecast, job)


def _combinations(forecast: Forecast, job: Job, lang: str) -> Iterator[Tried | None]:
    """None stands for one that cannot be: it took its time too."""
    moves = applicable(job)
    tried: list[Tried] = []
    seen = {job}

    def attempt(chosen: Moves, changed: Job) -> Tried | None:
        seen.add(changed)
        point = _point(forecast, chosen, changed, lang)
        if point is None:
            return None
        tried.append(Tried(moves=chosen, job=changed, point=point))
        return tried[-1]

    for move in moves:
        after = move.apply(job)
        if after is not None:
            yield attempt((move,), after)
    ranked = _by_worth(forecast, moves)
    for kinds in ALLOWED:
        for _ in range(ROUNDS):
            allowed = [each for each in tried if all(move.kind in kinds for move in each.moves)]
            for combination in _best(allowed)[:EXTENDED]:
                usable = [move for move in ranked if move.kind in kinds]
                for chosen, changed in _extended(combination, usable, seen):
                    yield attempt(chosen, changed)


def _best(tried: list[Tried]) -> list[Tried]:
    """On the front: those that do not fit yet first, since these need another change; then by what they need."""
    front = front_of([each.point for each in tried])
    kept = [each for each in tried if each.point in front]
    return sorted(kept, key=lambda each: (each.point.fits, each.point.nbytes))


def _extended(combination: Tried, moves: list[Move], seen: set[Job]) -> list[tuple[Moves, Job]]:
    """With one change more, of an axis of its own."""
    taken = {move.axis for move in combination.moves}
    found: list[tuple[Moves, Job]] = []
    for move in moves:
        after = None if move.axis in taken else move.apply(combination.job)
        if after is not None and after not in seen and len(found) < ADDED:
            found.append(((*combination.moves, move), after))
    return found


def _by_worth(forecast: Forecast, moves: list[Move]) -> list[Move]:
    """What frees most for the time that it costs; what changes the training last."""
    before = forecast.verdict().highest_bytes
    worth: list[tuple[int, float, Move]] = []
    for move in moves:
        priced = priced_change(forecast, move.name)
        if priced is None or priced.forecast is None:
            continue
        freed = before - priced.forecast.verdict().highest_bytes
        if freed <= WORTH * before:
            continue
        slower = max((sum(priced.slowdown) / 2 - 1) if priced.slowdown else 0.0, 0.0)
        worth.append((list(Kind).index(move.kind), -freed / (0.05 + slower), move))
    return [move for *_, move in sorted(worth, key=lambda item: item[:2])]
