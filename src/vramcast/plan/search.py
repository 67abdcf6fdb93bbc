"""The cheapest changes that make a job fit. Start reading the planner here.

Every combination of moves is priced in a table; the cheapest are estimated from scratch, the allocator included,
before they are called fitting. What is skipped without an estimate allocates more than the card has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from vramcast.catalog.gpus import Gpu, find_gpu
from vramcast.engine import (
    Drafts,
    context_bytes,
    estimate,
    estimate_if_it_may_fit,
    has_many_lengths,
    least_left,
    reserved_bytes,
    sizes_of,
)
from vramcast.errors import InputError, VramcastError
from vramcast.forecast import Forecast
from vramcast.forecasting import find_undescribed
from vramcast.job import Job
from vramcast.models.read.config import Config
from vramcast.plan.cost import assumed_speeds, slowdown_of
from vramcast.plan.moves import EXPANDABLE, Kind
from vramcast.plan.plans import Plan, Plans, Single
from vramcast.plan.ranking import (
    KEPT_FREE,
    KINDS,
    Answer,
    Limits,
    Moves,
    Question,
    Questions,
    allocated_part,
    applied,
    effort_of,
    is_plan,
    rank_of,
)
from vramcast.setup import complete, model_of, resolve

if TYPE_CHECKING:  # one kind of job needs NumPy, the other what is known of many GPUs: each is loaded where it is used
    from vramcast.plan.cluster import Search
    from vramcast.plan.table import Candidate, Table

WANTED = 4  # plans shown
# Candidates estimated in their order; from then on those that allocate as much as a refused one, with the allocator set
# alike, are skipped. Runs of many lengths take ten times as long to play.
EXACT, EXACT_OF_RUNS = 24, 4
TRIED = 60  # once something fits; before that the search goes on to its end


# Told after each estimate of a search: how many there were so far, and the plan, where it is one.
OnEstimate = Callable[[int, Plan | None], None]


def plan(job: Job, limits: Limits | None = None, on_estimate: OnEstimate | None = None) -> Plans:
    limits = limits or Limits()
    gpu, config = about(job)
    source = find_undescribed(job)
    if source is not None:
        from vramcast.plan.by_traces import plan_by_traces

        return plan_by_traces(job, gpu, source, limits, on_estimate)
    job = _with_length(complete(job), config)
    if job.strategy is None and job.gpus > job.tp * job.pp:
        job = replace(job, strategy="ddp")  # what plans are cheaper than, or have in addition
    if job.gpus > 1 or job.edit:
        return _by_estimates(job, gpu, config, limits, on_estimate)
    return _by_table(job, gpu, Drafts(config, gpu), limits, on_estimate)


def _by_table(
    job: Job, gpu: Gpu, drafts: Drafts, limits: Limits, on_estimate: OnEstimate | None
) -> Plans:
    """For jobs on one GPU: all combinations are priced together."""
    from vramcast.plan.headroom import find_reach
    from vramcast.plan.table import Table

    config = drafts.config
    room = gpu.capacity_bytes() - context_bytes(job, gpu)
    base = estimate(job, with_scaling=False, drafts=drafts)
    table = Table(job, config, gpu, limits, most_bytes=room)
    fits = bool(base.verdict().fits)
    questions = _cheapest(base, table, least_left(resolve(job).versions, gpu))
    found = () if fits else tuple(_fitting(questions, drafts, on_estimate))
    fitting = _uncovered(_cheapest_first(found))
    first = fitting[0].forecast if fitting else base
    nothing = not (fits or fitting)
    if nothing:  # then what the weights forbid is of interest too: how close can it get?
        table = Table(job, config, gpu, limits, known=table)
    return Plans(
        base=base,
        cost=table.base,
        speeds=assumed_speeds(job, gpu),
        fitting=fitting,
        num_candidates=table.num_candidates,
        fewest=min(fitting, key=lambda each: len(each.moves), default=None),
        closest=_smallest(table, drafts) if nothing else None,
        singles=_singles(table, _cached_less(base, drafts)),
        front=tuple(table.front(room)),
        reach=None if nothing else find_reach(first, config, room),
    )


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


def _by_estimates(
    job: Job, gpu: Gpu, config: Config, limits: Limits, on_estimate: OnEstimate | None
) -> Plans:
    """For jobs on many GPUs and for editing: one combination after the other, in the order of the changes' prices."""
    from vramcast.engine import RankPrices
    from vramcast.plan.cluster import Search
    from vramcast.plan.edit_cost import edit_cost
    from vramcast.plan.rank_cost import slowest_rank_cost

    base = estimate(job, with_scaling=False)
    prices = RankPrices(config, gpu)
    cost = slowest_rank_cost(prices, resolve(job)) if job.gpus > 1 else edit_cost(job, config, gpu)
    search = Search(base, cost, prices, limits)
    moves: list[Moves] = []
    questions = search.questions(moves, lambda more: _covered(more, moves))
    fits = bool(base.verdict().fits)
    found = () if fits else tuple(_cheapest_first(_fitting(questions, None, on_estimate)))
    return Plans(
        base=base,
        cost=cost,
        speeds=assumed_speeds(job, gpu),
        fitting=found,
        singles=(),
        front=(),
        reach=None,
        num_candidates=search.num_priced,
        fewest=min(found, key=lambda made: len(made.moves), default=None),
        closest=None if found else _closest(search),
    )


def _closest(search: Search) -> Plan | None:
    if search.smallest is None:
        return None
    moves, job, cost = search.smallest.moves, search.smallest.job, search.smallest.cost
    slowdown = None if cost is None else slowdown_of(cost, search.cost)
    return Plan(moves=moves, job=job, forecast=estimate(job, with_scaling=False), slowdown=slowdown)


def _singles(table: Table, cached_less: int) -> tuple[Single, ...]:
    whole, found = table.at(0).allocated_bytes, []
    for alone in table.singles():
        freed = (
            cached_less if alone.moves[0] is EXPANDABLE else max(whole - alone.allocated_bytes, 0)
        )
        found.append(Single(move=alone.moves[0], frees_bytes=freed, slowdown=alone.slowdown))
    return tuple(sorted(found, key=lambda one: (KINDS.index(one.move.kind), -one.frees_bytes)))


def _cached_less(base: Forecast, drafts: Drafts) -> int:
    """Cached blocks do not show in a price: what the setting saves takes the allocator."""
    assert base.job is not None
    with_it = EXPANDABLE.apply(base.job)
    if with_it is None or base.gpu is None:
        return 0
    less = reserved_bytes(with_it, base.gpu, drafts)
    return max((base.verdict().reserved_bytes or 0) - less, 0)


def about(job: Job) -> tuple[Gpu, Config]:
    if job.gpu is None:
        raise InputError("a plan needs a card: give --gpu")
    if job.model is None:
        raise InputError("a plan needs a model: a count of parameters has no activations to save")
    config = model_of(complete(job)).config
    if config is None:
        raise InputError(f"{job.model}: only a parameter table is known; a plan needs its config")
    return find_gpu(job.gpu), config


def _with_length(job: Job, config: Config) -> Job:
    return (
        job
        if job.seq or job.longest_seq
        else replace(job, seq=int(sizes_of(resolve(job).data, config).seq))
    )


# ---- the cheapest that fit


def _fitting(
    questions: Questions, drafts: Drafts | None, on_estimate: OnEstimate | None
) -> Iterator[Plan]:
    """The first that fit when estimated whole."""
    question, num_found, num_asked = next(questions, None), 0, 0
    while question is not None and num_found < WANTED:
        answer = _answer(question, drafts)
        num_asked += 1
        found: Plan | None = None
        if isinstance(answer, Forecast) and is_plan(answer):
            found = Plan(
                moves=question.moves, job=question.job, forecast=answer, slowdown=question.slowdown
            )
            num_found += 1
            yield found
        if on_estimate is not None:
            on_estimate(num_asked, found)
        question = _next(questions, answer)


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


def _cheapest(base: Forecast, table: Table, room: int) -> Questions:
    """In the table's order; where none of them fits, what most probably does."""
    found: list[Moves] = []
    asked: dict[int, bool] = {}  # did it fit?
    yield from _in_order(table, room, found, asked)
    if not found:
        likely = int(min(KEPT_FREE, allocated_part(base)) * room)
        yield from _smallest_of_all(table, likely, room, asked)


def _in_order(table: Table, room: int, found: list[Moves], asked: dict[int, bool]) -> Questions:
    """Each with changes of its own; what fits is added to what was found."""
    job, most = table.job, dict[str, int]()
    exact = EXACT_OF_RUNS if has_many_lengths(resolve(job).data) else EXACT
    enough: list[Moves] = []  # fit as well, and are covered by what was found
    for candidate in table.ranked(room, lambda moves: _covered(moves, found)):
        if found and len(asked) >= TRIED:
            return
        changed = _changed_if_news(job, candidate.moves, found)
        if changed is None or candidate.allocated_bytes > most.get(changed.alloc_conf, room):
            continue
        if _needless(job, candidate.moves, found, enough):
            continue
        answer = yield _question(candidate, changed)
        asked[candidate.cell] = is_plan(answer)
        if is_plan(answer):
            found.append(candidate.moves)
        elif len(asked) > exact:
            most[changed.alloc_conf] = min(
                most.get(changed.alloc_conf, room), candidate.allocated_bytes - 1
            )


def _needless(job: Job, moves: Moves, found: Iterable[Moves], enough: list[Moves]) -> bool:
    """Does a job fit without one of its changes of the training? What is covered was not asked, so it is asked here."""
    for left_out in moves:
        rest = tuple(move for move in moves if move is not left_out)
        if left_out.kind != Kind.CHANGES or not rest or not _covered(rest, found):
            continue
        if rest in enough:
            return True
        changed = applied(job, rest)
        if changed is not None and _fits(changed):
            enough.append(rest)
            return True
    return False


def _fits(job: Job) -> bool:
    try:
        return is_plan(estimate_if_it_may_fit(job))
    except VramcastError:
        return False


def _changed_if_news(job: Job, moves: Moves, found: Iterable[Moves]) -> Job | None:
    """The job with these changes; None where they do not apply, or a fitting plan is contained in them."""
    changed = applied(job, moves) if moves else None
    return changed if changed is not None and not _covered(moves, found) else None


def _smallest_of_all(table: Table, likely: int, room: int, asked: dict[int, bool]) -> Questions:
    """The first that leaves what the allocator probably adds, the smallest, and both with the allocator set to add
    least: where these do not fit, none does."""
    first, smallest = next(table.ranked(likely), None), table.smallest()
    for candidate in (first, smallest):
        if candidate is None:
            continue
        for each in (candidate, table.caching_least(candidate)):
            job = applied(table.job, each.moves) if each.moves else None
            if job is None or each.allocated_bytes > room or each.cell in asked:
                continue
            answer = yield _question(each, job)
            asked[each.cell] = is_plan(answer)
            if is_plan(answer):
                return


def _question(candidate: Candidate, job: Job) -> Question:
    return Question(
        moves=candidate.moves,
        job=job,
        slowdown=candidate.slowdown,
        allocated_bytes=candidate.allocated_bytes,
    )


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


def _smallest(table: Table, drafts: Drafts) -> Plan:
    """How close can it get?"""
    candidate = table.smallest()
    job = applied(table.job, candidate.moves) or table.job
    forecast = estimate(job, with_scaling=False, drafts=drafts)
    return Plan(moves=candidate.moves, job=job, forecast=forecast, slowdown=candidate.slowdown)
