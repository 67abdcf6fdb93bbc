"""The cheapest changes that make a job fit: every combination of moves is priced, the best are estimated from scratch.

Each regime (what changes the tensors) is recorded once for all micro-batches and lengths; optimizers are priced on top.
What comes out first is estimated whole, the allocator included, before it is called fitting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy

from vramcast.catalog.gpus import Gpu, find_gpu
from vramcast.errors import InputError
from vramcast.forecast import Forecast
from vramcast.formulas.estimate import DEVICE, estimate, sizes_of
from vramcast.formulas.optimizers import implementation
from vramcast.formulas.overheads import context_entries
from vramcast.job import Job
from vramcast.models.config import Config
from vramcast.models.read import read_model
from vramcast.plan.cost import StepCost, pass_seconds, update_seconds
from vramcast.plan.moves import EXPANDABLE, MOVES, Kind, Move
from vramcast.plan.pricing import Lying, Regime, lying_of

WANTED = 4  # plans shown
TRIED = 12  # candidates estimated from scratch at most
OPTIMIZER_AXES = ("optimizer", "optimizer-impl")
GRID_AXES = ("batch", "seq")
WEIGHT = {Kind.FREE: 0.2, Kind.SLOWER: 1.0, Kind.CHANGES: 2.0}

Moves = tuple[Move, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the user wants kept as it is."""

    keep: frozenset[str] = frozenset()
    max_slowdown: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A combination of moves with its price, not yet estimated."""

    moves: Moves
    allocated_bytes: int
    slowdown: tuple[float, float]  # step time against the job as given, low and high

    def order(self) -> tuple[int, float, int, int]:
        """Free before slower before a changed training; then few and cheap changes, then the smaller peak."""
        worst = max((list(Kind).index(move.kind) for move in self.moves), default=0)
        effort = sum(WEIGHT[move.kind] for move in self.moves) + 2 * sum(self.slowdown)
        return (worst, round(effort, 3), len(self.moves), self.allocated_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A combination that was estimated from scratch."""

    moves: Moves
    job: Job
    forecast: Forecast
    slowdown: tuple[float, float]

    @property
    def kind(self) -> Kind:
        return max((move.kind for move in self.moves), key=list(Kind).index, default=Kind.FREE)

    @property
    def fits(self) -> bool:
        return self.forecast.verdict().fits is True


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans:
    """Plans that fit, cheapest first; single moves with what they free; and how much was looked at."""

    base: Forecast
    cost: StepCost
    fitting: tuple[Plan, ...]
    singles: tuple[Candidate, ...]
    closest: Plan | None  # where nothing fits: the smallest that was found
    num_candidates: int


def priced(job: Job, limits: Limits | None = None) -> list[Candidate]:
    """Every combination, in the order of its cost."""
    gpu, config = _about(job)
    return sorted(Prices(_with_length(job, config), config, gpu, limits or Limits()).candidates(), key=Candidate.order)


def plan(job: Job, limits: Limits | None = None) -> Plans:
    gpu, config = _about(job)
    job = _with_length(job, config)
    prices = Prices(job, config, gpu, limits or Limits())
    ranked = sorted(prices.candidates(), key=Candidate.order)
    capacity = gpu.capacity_bytes() - sum(entry.nbytes for entry in context_entries(job, gpu, DEVICE))
    fitting = _fitting(job, ranked, capacity)
    smallest = min(ranked, key=lambda candidate: candidate.allocated_bytes)
    return Plans(
        base=estimate(job), cost=prices.base, fitting=fitting, num_candidates=len(ranked),
        closest=None if fitting else _estimated(job, smallest.moves, smallest.slowdown),
        singles=tuple(candidate for candidate in ranked if len(candidate.moves) == 1),
    )  # fmt: skip


def _about(job: Job) -> tuple[Gpu, Config]:
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


def _fitting(job: Job, ranked: list[Candidate], capacity: int) -> tuple[Plan, ...]:
    """The first that fit when estimated whole. Where only the allocator's slack is in the way, its setting is tried."""
    found: list[Plan] = []
    tried = 0
    for candidate in ranked:
        if candidate.allocated_bytes > capacity or not candidate.moves or _covered(candidate.moves, found):
            continue
        for moves in (candidate.moves, (*candidate.moves, EXPANDABLE)):
            made = _estimated(job, moves, candidate.slowdown)
            tried += 1
            if made.fits:
                found.append(made)
                break
        else:  # what the allocator adds does not fit: nor will anything that allocates as much
            capacity = candidate.allocated_bytes - 1
        if len(found) >= WANTED or tried >= TRIED:
            break
    return tuple(found)


def _covered(moves: Moves, found: list[Plan]) -> bool:
    """A plan that contains a fitting plan's changes and more is no news."""
    names = {move.name for move in moves}
    return any({move.name for move in plan.moves} - {EXPANDABLE.name} <= names for plan in found)


def _estimated(job: Job, moves: Moves, slowdown: tuple[float, float]) -> Plan:
    changed = applied(job, moves) or job
    return Plan(moves=moves, job=changed, forecast=estimate(changed), slowdown=slowdown)


def applied(job: Job, moves: Moves) -> Job | None:
    """The job after the moves; None where one of them does not apply any more."""
    for move in moves:
        changed = move.apply(job)
        if changed is None:
            return None
        job = changed
    return job


class Prices:
    """Peak and time of every combination, without building a job for each."""

    def __init__(self, job: Job, config: Config, gpu: Gpu, limits: Limits) -> None:
        self.job, self.config, self.gpu, self.limits = job, config, gpu, limits
        axes: dict[str, list[Move | None]] = {}
        for move in MOVES:
            if move.key not in limits.keep and move.apply(job) is not None:
                axes.setdefault(move.axis, [None]).append(move)
        self.axes = axes
        self.batch_moves, self.seq_moves = axes.get("batch", [None]), axes.get("seq", [None])
        length = job.longest_seq or job.seq or 1
        self.batches = [job.batch if move is None else move.apply(job).batch for move in self.batch_moves]  # type: ignore[union-attr]
        seqs = [length if move is None else move.apply(job).seq for move in self.seq_moves]  # type: ignore[union-attr]
        self.grid = numpy.meshgrid(numpy.array(self.batches), numpy.array(seqs), indexing="ij")
        self._lying: dict[tuple[object, ...], tuple[Lying, tuple[float, float]]] = {}
        self.base = self._base_cost()

    def _base_cost(self) -> StepCost:
        regime = Regime(self.job, self.config, self.gpu, *self.grid)
        fast, slow = pass_seconds(regime.program, self.job, self.gpu, self.grid[0].shape)
        return StepCost(
            pass_s=(float(fast[0, 0]), float(slow[0, 0])), update_s=update_seconds(regime.params, self.job, self.gpu),
            tokens=int(self.grid[0][0, 0] * self.grid[1][0, 0]), passes=self.job.accumulate,
        )  # fmt: skip

    def _combinations(self, names: list[str]) -> Iterator[Moves]:
        for chosen in product(*(self.axes[name] for name in names)):
            yield tuple(move for move in chosen if move is not None)

    def candidates(self) -> Iterator[Candidate]:
        regimes = [name for name in self.axes if name not in (*OPTIMIZER_AXES, *GRID_AXES)]
        optimizers = [name for name in self.axes if name in OPTIMIZER_AXES]
        for regime_moves in self._combinations(regimes):
            changed = applied(self.job, regime_moves)
            if changed is None:
                continue
            regime = Regime(changed, self.config, self.gpu, *self.grid)
            seconds = pass_seconds(regime.program, changed, self.gpu, self.grid[0].shape)
            for optimizer_moves in self._combinations(optimizers):
                with_optimizer = applied(changed, optimizer_moves)
                if with_optimizer is not None:
                    yield from self._points(regime, with_optimizer, seconds, (*regime_moves, *optimizer_moves))

    def _points(
        self,
        regime: Regime,
        job: Job,
        seconds: tuple[numpy.ndarray, numpy.ndarray],
        moves: Moves,
    ) -> Iterator[Candidate]:
        """All micro-batches and lengths of one regime with one optimizer."""
        lying, update = self._lying_of(regime, job)
        peaks = {several: regime.peak(lying, accumulates=several) for several in self._accumulations(job)}
        for i, batch_move in enumerate(self.batch_moves):
            passes = job.accumulate * (self.job.batch // self.batches[i])
            if passes > 1 and lying.in_backward:
                continue
            for j, seq_move in enumerate(self.seq_moves):
                slowdown = self._slowdown(seconds, update, passes, i, j)
                if self.limits.max_slowdown is None or max(slowdown) <= self.limits.max_slowdown:
                    grid_moves = tuple(move for move in (batch_move, seq_move) if move is not None)
                    allocated = int(peaks[passes > 1][i, j])
                    yield Candidate(moves=(*moves, *grid_moves), allocated_bytes=allocated, slowdown=slowdown)

    def _accumulations(self, job: Job) -> tuple[bool, ...]:
        return (True,) if job.accumulate > 1 else (False, True) if len(self.batches) > 1 else (False,)

    def _lying_of(self, regime: Regime, job: Job) -> tuple[Lying, tuple[float, float]]:
        """What does not depend on activations, and the optimizer's time: once per way of storing and updating."""
        key = (
            job.precision, job.lora_rank, job.lora_targets, job.dora, job.quantize, job.optimizer, implementation(job),
            job.freeze,
        )  # fmt: skip
        if key not in self._lying:
            lying = lying_of(job, regime.params, self.gpu, regime.program)
            self._lying[key] = (lying, update_seconds(regime.params, job, self.gpu))
        return self._lying[key]

    def _slowdown(
        self,
        seconds: tuple[numpy.ndarray, numpy.ndarray],
        update: tuple[float, float],
        passes: int,
        i: int,
        j: int,
    ) -> tuple[float, float]:
        """Time per token against the job as given."""
        base = self.base.seconds_per_token
        tokens = int(self.grid[0][i, j]) * int(self.grid[1][i, j]) * passes
        fast, slow = ((float(seconds[k][i, j]) * passes + update[k]) / tokens for k in (0, 1))
        return (fast / base[0], slow / base[1])
