"""The cheapest changes that make a job fit. Start reading the planner here.

Every combination of moves is priced in a table; the cheapest are estimated from scratch, the allocator included,
before they are called fitting. What is skipped without an estimate allocates more than the card has.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, TypeVar

from vramcast.catalog.gpus import Gpu, find_gpu
from vramcast.deadline import OutOfTime, check_time, until
from vramcast.errors import InputError, VramcastError
from vramcast.forecast import Forecast
from vramcast.formulas.drafts import Drafts
from vramcast.formulas.estimate import estimate, estimate_if_it_may_fit, least_left
from vramcast.formulas.lengths import has_many_lengths
from vramcast.formulas.on_card import replayed_on_card
from vramcast.formulas.overheads import context_entries
from vramcast.formulas.recorded import DEVICE, sizes_of
from vramcast.job import Job
from vramcast.models.config import Config
from vramcast.models.read import read_model
from vramcast.plan.ahead import Asked, Foreseen, Here, started
from vramcast.plan.cost import StepCost, slowdown_of
from vramcast.plan.moves import EXPANDABLE, Kind, Move
from vramcast.plan.order import (
    KEPT_FREE,
    KINDS,
    Answer,
    Clock,
    Limits,
    Moves,
    Question,
    Questions,
    allocated_part,
    applied,
    effort_of,
    fits_surely,
    is_plan,
    kind_of,
    rank_of,
)

if TYPE_CHECKING:  # one kind of job needs NumPy, the other what is known of many GPUs: each is loaded where it is used
    from vramcast.plan.cluster import Search
    from vramcast.plan.reach import Reach
    from vramcast.plan.table import Candidate, Table

Made = TypeVar("Made")
WANTED = 4  # plans shown
# Candidates estimated in their order; from then on those that allocate as much as a refused one, with the allocator set
# alike, are skipped. Runs of many lengths take ten times as long to play.
EXACT, EXACT_OF_RUNS = 24, 4
TRIED = 60
# Answers for which time is kept while nothing is found: one that probably fits, and half another. Those of runs take
# twice as long if they fit.
LAST, LAST_OF_RUNS = 1.5, 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A combination that was estimated from scratch."""

    moves: Moves
    job: Job
    forecast: Forecast
    slowdown: tuple[float, float] | None  # None: no price on time

    @property
    def kind(self) -> Kind:
        return kind_of(self.moves)

    @property
    def fits(self) -> bool:
        return fits_surely(self.forecast)


@dataclass(frozen=True, slots=True, kw_only=True)
class Single:
    """One change alone: what it frees of allocated bytes (of reserved ones, where it is the allocator's setting)."""

    move: Move
    frees_bytes: int
    slowdown: tuple[float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans:
    """Plans that fit, cheapest first; single moves with what they free; and how much was looked at."""

    base: Forecast
    cost: StepCost | None
    fitting: tuple[Plan, ...]
    fewest: Plan | None  # of the fitting ones, the one with the fewest changes
    singles: tuple[Single, ...]  # free, slower, changes the training; in each most freed first
    front: tuple[Candidate, ...]  # memory against time, priced only
    closest: Plan | None  # where nothing fits: the smallest that was found
    reach: Reach | None
    num_candidates: int
    complete: bool  # or did the time for the search end before all that are shown were found?


def plan(job: Job, limits: Limits | None = None) -> Plans:
    limits = limits or Limits()
    clock = Clock(limits.seconds)
    gpu, config = about(job)
    job = _with_length(job, config)
    drafts = Drafts(config, gpu)
    if job.gpus > 1 or job.edit:
        with clock.timing():
            base = estimate(job, with_scaling=False)
        return _by_estimates(job, base, gpu, config, limits, clock)
    return _by_table(job, gpu, drafts, limits, clock)


def _by_table(job: Job, gpu: Gpu, drafts: Drafts, limits: Limits, clock: Clock) -> Plans:
    """For jobs on one GPU: all combinations are priced together."""
    from vramcast.plan.reach import reach_of
    from vramcast.plan.table import Table

    config = drafts.config
    room = gpu.capacity_bytes() - sum(entry.nbytes for entry in context_entries(job, gpu, DEVICE))
    with clock.timing():
        made = _base(job, drafts)
        with clock.saving(0.5):  # what is shown beside plans takes about half as long
            table = Table(job, config, gpu, limits, most_bytes=room)
        base = made.result()
    fits = base.verdict().fits
    reaches = [(base, reach_of(base, config, room))] if fits else []  # of what was the first to fit
    found: list[Plan] = []
    questions = _cheapest(base, table, least_left(job, gpu), clock)
    for each in () if fits else _fitting(questions, clock, drafts):
        reaches = reaches or [(each.forecast, reach_of(each.forecast, config, room))]
        found.append(each)
    cached_less, fitting = started(lambda: _cached_less(base, drafts)), _uncovered(_cheapest_first(found))
    first = fitting[0].forecast if fitting else base
    reach = next((reach for forecast, reach in reaches if forecast is first), None)
    nothing = not (fits or fitting)
    if nothing and not clock.stopped:  # then what the weights forbid is of interest too: how close can it get?
        table = Table(job, config, gpu, limits, known=table)
    return Plans(
        base=base, cost=table.base, fitting=fitting, num_candidates=table.num_candidates,
        fewest=min(fitting, key=lambda each: len(each.moves), default=None),
        closest=_smallest(table, clock, drafts) if nothing else None,
        singles=_singles(table, cached_less, clock), front=_in_time(lambda: tuple(table.front(room)), clock) or (),
        reach=_in_time(reach.result, clock) if reach else None,
        complete=not clock.stopped and len(fitting) == len(found),
    )  # fmt: skip


def _base(job: Job, drafts: Drafts) -> Here[Forecast]:
    """The job as it is: where that takes long, in a process of its own."""
    make = partial(estimate, job, with_scaling=False, drafts=drafts)
    others = (job.reference, job.reward, job.critic, job.teacher)
    if has_many_lengths(job) or "same" in others:
        return started(make)
    forecast = make()
    return Here(lambda: forecast)


def _cheapest_first(found: Iterable[Plan]) -> list[Plan]:
    def order(made: Plan) -> tuple[int, float]:
        return rank_of(made.kind, made.slowdown), round(effort_of(made.moves, made.slowdown), 3)

    return sorted(found, key=order)


def _uncovered(found: Iterable[Plan]) -> tuple[Plan, ...]:
    """What came while time was short may be covered by something cheaper that came later."""
    kept: list[Plan] = []
    for made in found:
        if not _covered(made.moves, [plan.moves for plan in kept]):
            kept.append(made)
    return tuple(kept)


def _in_time(make: Callable[[], Made], clock: Clock) -> Made | None:
    """What is shown beside the plans, where there is time for it."""
    try:
        with until(clock.end_of_all):
            return make()
    except OutOfTime:
        return None


def _by_estimates(job: Job, base: Forecast, gpu: Gpu, config: Config, limits: Limits, clock: Clock) -> Plans:
    """For jobs on many GPUs and for editing: one combination after the other, in the order of the changes' prices."""
    from vramcast.plan.cluster import Search
    from vramcast.plan.rank_prices import RankPrices, edit_cost

    prices = RankPrices(config, gpu)
    cost = prices.cost(job) if job.gpus > 1 else edit_cost(job, config, gpu)
    search = Search(base, cost, prices, limits)
    moves: list[Moves] = []
    questions = search.questions(moves, lambda more: _covered(more, moves), clock)
    found = () if base.verdict().fits else tuple(_cheapest_first(_fitting(questions, clock)))
    return Plans(
        base=base, cost=cost, fitting=found, singles=(), front=(), reach=None,
        num_candidates=search.num_priced, fewest=min(found, key=lambda made: len(made.moves), default=None),
        closest=None if found else _closest(search), complete=not clock.stopped,
    )  # fmt: skip


def _closest(search: Search) -> Plan | None:
    if search.smallest is None:
        return None
    moves, job, cost = search.smallest.moves, search.smallest.job, search.smallest.cost
    slowdown = None if cost is None else slowdown_of(cost, search.cost)
    return Plan(moves=moves, job=job, forecast=estimate(job, with_scaling=False), slowdown=slowdown)


def _singles(table: Table, cached_less: Here[int], clock: Clock) -> tuple[Single, ...]:
    whole, found = table.at(0).allocated_bytes, []
    for alone in table.singles():
        freed: int | None = max(whole - alone.allocated_bytes, 0)
        if alone.moves[0] is EXPANDABLE:
            freed = _in_time(cached_less.result, clock)
        if freed is not None:
            found.append(Single(move=alone.moves[0], frees_bytes=freed, slowdown=alone.slowdown))
    cached_less.drop()
    return tuple(sorted(found, key=lambda one: (KINDS.index(one.move.kind), -one.frees_bytes)))


def _cached_less(base: Forecast, drafts: Drafts) -> int:
    """Cached blocks do not show in a price: what the setting saves takes the allocator."""
    assert base.job is not None
    with_it = EXPANDABLE.apply(base.job)
    if with_it is None or base.gpu is None:
        return 0
    less = replayed_on_card(drafts.of(with_it).script, base.gpu, with_it).peak_reserved_bytes
    return max((base.verdict().reserved_bytes or 0) - less, 0)


def about(job: Job) -> tuple[Gpu, Config]:
    if job.gpu is None:
        raise InputError("a plan needs a card: give --gpu")
    if job.model is None:
        raise InputError("a plan needs a model: a count of parameters has no activations to save")
    config = read_model(job.model).config
    if config is None:
        raise InputError(f"{job.model}: only a parameter table is known; a plan needs its config")
    return find_gpu(job.gpu), config


def _with_length(job: Job, config: Config) -> Job:
    return job if job.seq or job.longest_seq else replace(job, seq=int(sizes_of(job, config).seq))


# ---- the cheapest that fit


def _fitting(questions: Questions, clock: Clock, drafts: Drafts | None = None) -> Iterator[Plan]:
    """The first that fit when estimated whole."""
    answer = partial(_answer, drafts=drafts)
    with Foreseen[Answer]() as foreseen:
        question, num_found, foreseen_from = next(questions, None), 0, 0
        while question is not None:
            try:
                with until(question.until), clock.timing():
                    is_known, wanted = foreseen.has(question.number), WANTED - num_found
                    if not is_known and wanted > 1 and not (foreseen.is_at_work and foreseen_from == num_found):
                        foreseen_from = num_found  # plans that are known by now say more of what will be asked
                        foreseen.begin(partial(_look_ahead, questions, answer, wanted))
                    forecast = foreseen.result(question.number, partial(answer, question))
            except OutOfTime as error:
                forecast = error
            if isinstance(forecast, Forecast) and is_plan(forecast):
                yield Plan(moves=question.moves, job=question.job, forecast=forecast, slowdown=question.slowdown)
                num_found += 1
            question = None if num_found >= WANTED else _next(questions, forecast)


def _answer(question: Question, drafts: Drafts | None) -> Answer:
    try:
        return estimate_if_it_may_fit(question.job, question.allocated_bytes, drafts)
    except VramcastError as error:
        return error


def _next(questions: Questions, answer: Answer) -> Question | None:
    try:
        return questions.send(answer)
    except StopIteration:
        return None


def _look_ahead(
    questions: Questions, answer: Callable[[Question], Answer], wanted: int, asked: Asked[Answer]
) -> None:  # fmt: skip
    """In another process, which has questions of its own: if the one at hand fits, and every second plan to come is
    left to this process, the others."""
    made: Answer = None
    left = True
    while (wanted := wanted - is_plan(made)) and (question := _next(questions, made)) is not None:
        left = not left if is_plan(made) else left
        made = None if left else asked(question.number, partial(answer, question))


def _cheapest(base: Forecast, table: Table, room: int, clock: Clock) -> Questions:
    """In the table's order. Where time gets short before one fits, first what probably does."""
    likely = int(min(KEPT_FREE, allocated_part(base)) * room)
    found: list[Moves] = []
    asked: dict[int, bool] = {}  # did it fit?
    for keeping in (LAST_OF_RUNS if has_many_lengths(table.job) else LAST, 0):
        clock.stopped = False
        try:
            return (yield from _in_order(table, room, found, asked, clock, keeping))
        except OutOfTime:
            clock.stopped = True
        if found or not keeping or not (yield from _roomy(table, likely, room, asked)):
            return


def _in_order(
    table: Table, room: int, found: list[Moves], asked: dict[int, bool], clock: Clock, keeping: float
) -> Questions:  # fmt: skip
    """Each with changes of its own; what fits is added to what was found. While nothing is, time is kept for so many
    answers."""
    job, most = table.job, dict[str, int]()
    exact = EXACT_OF_RUNS if has_many_lengths(job) else EXACT
    ranked = table.ranked(room, lambda moves: _covered(moves, found))
    while len(asked) < TRIED:
        end = clock.end_keeping(0 if found else keeping)
        with until(end):
            check_time()
            candidate = next(ranked, None)
        if candidate is None:
            return
        if asked.get(candidate.cell):
            found.append(candidate.moves)
        changed = applied(job, candidate.moves) if candidate.moves and candidate.cell not in asked else None
        if changed is None or _covered(candidate.moves, found):
            continue
        if candidate.allocated_bytes > most.get(changed.alloc_conf, room):
            continue
        answer = yield _question(candidate, changed, end)
        if isinstance(answer, OutOfTime):
            raise answer
        asked[candidate.cell] = is_plan(answer)
        if is_plan(answer):
            found.append(candidate.moves)
        elif len(asked) > exact:
            most[changed.alloc_conf] = min(most.get(changed.alloc_conf, room), candidate.allocated_bytes - 1)


def _roomy(table: Table, likely: int, room: int, asked: dict[int, bool]) -> Generator[Question, Answer, bool]:
    """The first that leaves what the allocator probably adds, or else the smallest of all; if need be with the
    allocator set to add less, at once where batches are of many lengths. Did it fit?"""
    first = next(table.ranked(likely), None) or table.smallest()
    tries = {each.cell: each for each in (first, table.caching_least(first)) if each.moves}
    for candidate in list(tries.values())[-1 if has_many_lengths(table.job) else 0 :]:
        job = applied(table.job, candidate.moves)
        if job is None or candidate.allocated_bytes > room or candidate.cell in asked:
            continue
        answer = yield _question(candidate, job, inf)
        asked[candidate.cell] = is_plan(answer)
        if is_plan(answer):
            return True
    return False


def _question(candidate: Candidate, job: Job, end: float) -> Question:
    return Question(
        number=candidate.cell, moves=candidate.moves, job=job, slowdown=candidate.slowdown, until=end,
        allocated_bytes=candidate.allocated_bytes,
    )  # fmt: skip


def _covered(moves: Moves, found: Iterable[Moves]) -> bool:
    """A plan that contains a fitting plan's changes, or those that decide its class, is no news."""
    names, own = {move.name for move in moves}, _deciding(moves)
    for known in found:
        theirs = {move.name for move in known} - {EXPANDABLE.name}
        if theirs <= names or _deciding(known) <= own:
            return True
    return False


def _deciding(moves: Moves) -> set[str]:
    """What a plan is about: the changes of the training by name, else the slower ones by key, else every change."""
    for kind, of in ((Kind.CHANGES, "name"), (Kind.SLOWER, "axis")):
        found = {getattr(move, of) for move in moves if move.kind == kind}
        if found:
            return found
    return {move.name for move in moves}


def _smallest(table: Table, clock: Clock, drafts: Drafts) -> Plan | None:
    """How close can it get? A search that ended early may have no time for that."""

    def estimated() -> Plan:
        candidate = table.smallest()
        job = applied(table.job, candidate.moves) or table.job
        forecast = estimate(job, with_scaling=False, drafts=drafts)
        return Plan(moves=candidate.moves, job=job, forecast=forecast, slowdown=candidate.slowdown)

    return _in_time(estimated, clock) if clock.stopped else estimated()
