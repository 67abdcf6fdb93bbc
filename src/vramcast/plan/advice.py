"""Advice priced line by line: what each change that somebody proposes really frees, what it costs, and whether it fits.

In come a job's Forecast and texts, each the name of a move ("fused optimizer") or job keys ("batch=1",
"reference=cpu,checkpointing=full"); out comes one estimate from scratch for each. Lines are priced one by one against
the job as given; a line that starts with + is added to the one before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from vramcast.catalog.gpus import Gpu
from vramcast.engine import RankPrices, States, estimate, record_model, sizes_of, unique
from vramcast.errors import InputError, VramcastError, unknown
from vramcast.forecast import Forecast
from vramcast.job import Job, fields, parse_value
from vramcast.models.read.config import Config
from vramcast.plan.cluster import ACROSS
from vramcast.plan.cost import StepCost, pass_seconds, slowdown_of, update_seconds, work_of
from vramcast.plan.edit_cost import edit_cost
from vramcast.plan.moves import CHANGES, FREE, SLOWER, Move
from vramcast.plan.rank_cost import slowest_rank_cost
from vramcast.plan.ranking import fits_surely
from vramcast.plan.search import about
from vramcast.setup import resolve

AS_GIVEN = "as given"  # the first line: the job without any advice


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """One line of advice. Without a forecast, `reason` says why the changed job cannot be estimated."""

    text: str
    job: Job
    forecast: Forecast | None
    frees_bytes: int  # of the allocated peak; negative where it grows
    slowdown: tuple[float, float] | None
    reason: str = ""

    @property
    def is_given(self) -> bool:
        return self.text == AS_GIVEN

    @property
    def fits(self) -> bool:
        return self.forecast is not None and fits_surely(self.forecast)


def price_advice(base: Forecast, texts: Iterable[str]) -> tuple[Priced, ...]:
    """The job as given, then one line for each text."""
    assert base.job is not None
    gpu, config = about(base.job)
    cost = _cost(base.job, config, gpu)
    given = Priced(text=AS_GIVEN, job=base.job, forecast=base, frees_bytes=0, slowdown=(1.0, 1.0))
    found = [given]
    for text in texts:
        added = text.lstrip().startswith("+")
        before = found[-1].job if added else base.job
        found.append(
            _priced(
                base, cost, text.strip(), changed(before, text.strip().lstrip("+")), config, gpu
            )
        )
    return tuple(found)


def price_job(base: Forecast, job: Job) -> Priced:
    """Another job against the one as given: what it frees, what it costs."""
    assert base.job is not None
    gpu, config = about(base.job)
    return _priced(base, _cost(base.job, config, gpu), "", job, config, gpu)


def _priced(
    base: Forecast, cost: StepCost, text: str, job: Job, config: Config, gpu: Gpu
) -> Priced:
    try:
        forecast = estimate(job)
        slowdown = slowdown_of(_cost(job, config, gpu), cost)
    except VramcastError as error:
        return Priced(
            text=text, job=job, forecast=None, frees_bytes=0, slowdown=None, reason=str(error)
        )
    before, after = (one.verdict().allocated_bytes or 0 for one in (base, forecast))
    return Priced(
        text=text, job=job, forecast=forecast, frees_bytes=before - after, slowdown=slowdown
    )


def changed(job: Job, text: str) -> Job:
    """The job after one line of advice."""
    name = text.strip()
    moves = {move.name: move for move in (*FREE, *SLOWER, *CHANGES, *ACROSS)}
    if name in moves:
        return _moved(job, moves[name])
    values = _values(name, moves)
    return replace(
        job, **{key.replace("-", "_"): parse_value(key, value) for key, value in values.items()}
    )


def _moved(job: Job, move: Move) -> Job:
    after = move.apply(job)
    if after is None:
        raise InputError(
            f"--try {move.name}: does not apply to this job (it is so already, or cannot be)"
        )
    return after


def _values(text: str, moves: dict[str, Move]) -> dict[str, Any]:
    """key=value,key=value; a part without a key belongs to the list before it."""
    values: dict[str, Any] = {}
    last = None
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if equals:
            last = key.strip()
            if last not in fields():
                raise unknown("job key for --try", last, fields())
            values[last] = value.strip()
        elif last is None:
            raise unknown(
                "change for --try",
                text,
                (*moves, "key=value"),
                "`vramcast plan` lists those that apply.",
            )
        else:
            values[last] += f",{part.strip()}"
    return values


def _cost(job: Job, config: Config, gpu: Gpu) -> StepCost:
    if job.gpus > 1:
        return slowest_rank_cost(RankPrices(config, gpu), resolve(job))
    if job.edit:
        return edit_cost(job, config, gpu)
    sizes = sizes_of(resolve(job).data, config)
    program = record_model(job, config, gpu)
    fast, slow = pass_seconds(program, work_of(program), resolve(job), gpu)
    trained = States(params=unique(program.params()), setup=resolve(job)).trained
    return StepCost(
        pass_s=(float(fast), float(slow)),
        update_s=update_seconds(trained, resolve(job), gpu),
        tokens=int(sizes.batch * sizes.seq),
        passes=job.accumulate,
    )
