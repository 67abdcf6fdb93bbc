"""Plans for jobs whose phases the table does not price: many GPUs, and model editing. Cheapest changes first.

The moves are fewer (what people do there). Combinations come in the order of their changes' prices; what lies on a rank
without any pass (weights, states) rules most of them out, their own peak most of the rest, and whole estimates say
which fit.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from itertools import product

from vramcast.engine import RankPrices, Resting, TooLarge, Topology
from vramcast.errors import VramcastError
from vramcast.forecast import Forecast
from vramcast.job import Job
from vramcast.ledger import Category, Ledger, Level
from vramcast.plan.cost import StepCost, slowdown_of
from vramcast.plan.edit_cost import edit_cost
from vramcast.plan.moves import Kind, Move, available
from vramcast.plan.rank_cost import slowest_rank_cost
from vramcast.plan.ranking import (
    KINDS,
    Applied,
    Limits,
    Moves,
    Question,
    Questions,
    is_plan,
    move_effort,
)
from vramcast.setup import resolve
from vramcast.units import MiB

PRICED = 400
LEAST = 16 * MiB  # less is nothing
TRIED = 24
LEFT_OUT = (
    "checkpointing with offload",
    "selective checkpointing",
    "chunked cross entropy",
    "Adafactor",
    "paged 8-bit AdamW",
    "optimizer states paged to the host",
    "sequence ÷ 2",
    "sequence ÷ 4",
    "expandable segments",
)
SHARDED = ("fsdp1", "fsdp2", "zero1", "zero2", "zero3")
ZERO = ("zero1", "zero2", "zero3")
APPLIED_FIRST = ("strategy", "tp", "optimizer")  # axes that decide whether moves of others apply


def _shard(strategy: str) -> Callable[[Job], Job | None]:
    def apply(job: Job) -> Job | None:
        deepspeed = job.framework == "deepspeed" or job.strategy in ZERO
        if job.gpus == 1 or job.strategy == strategy or (strategy in ZERO) != deepspeed:
            return None
        if (
            strategy in ZERO
            and job.strategy in ZERO
            and ZERO.index(strategy) < ZERO.index(job.strategy)
        ):
            return None
        return job.changed(strategy=strategy)

    return apply


def _offload(what: str) -> Callable[[Job], Job | None]:
    """FSDP's policy moves weights, gradients and states together; DeepSpeed can leave the weights where they are."""

    def apply(job: Job) -> Job | None:
        possible = job.strategy in (ZERO if what == "optimizer" else SHARDED)
        return job.changed(offload=what) if possible and job.offload == "none" else None

    return apply


def _tensor_parallel(size: int) -> Callable[[Job], Job | None]:
    def apply(job: Job) -> Job | None:
        copies = job.gpus // (job.pp * job.cp)
        possible = (
            copies % size == 0
            and size <= job.gpus_per_node
            and job.tp == 1
            and job.quantize == "none"
        )
        kept = job.changed(
            tp=size, accumulate=job.accumulate * size
        )  # fewer copies, the same global batch
        return kept if possible and job.gpus > 1 else None

    return apply


ACROSS = (
    *(
        Move(
            name=f"ZeRO-{stage}",
            axis="strategy",
            kind=Kind.SLOWER,
            apply=_shard(f"zero{stage}"),
            why=why,
            price=stage / 10,
            how={"deepspeed": f'"zero_optimization": {{"stage": {stage}}}'},
        )
        for stage, why in (
            (1, "optimizer states are split over the GPUs"),
            (2, "gradients are split as well"),
            (3, "weights are split as well"),
        )
    ),
    Move(
        name="FSDP2",
        axis="strategy",
        kind=Kind.SLOWER,
        apply=_shard("fsdp2"),
        price=0.3,
        why="weights, gradients and states are split over the GPUs; each block is gathered when it runs",
        how={
            "torch": "fully_shard(block); fully_shard(model)",
            "trainer": 'fsdp="full_shard auto_wrap"',
        },
    ),
    Move(
        name="optimizer states on the host",
        axis="offload",
        kind=Kind.SLOWER,
        apply=_offload("optimizer"),
        price=2,
        why="the CPU updates the weights; gradients and weights are copied over PCIe in every step",
        how={"deepspeed": '"offload_optimizer": {"device": "cpu"}'},
    ),
    Move(
        name="weights and optimizer states on the host",
        axis="offload",
        kind=Kind.SLOWER,
        apply=_offload("params"),
        price=3,
        why="whatever is not in use stays in CPU memory",
        how={
            "torch": "fully_shard(..., offload_policy=CPUOffloadPolicy())",
            "deepspeed": '"offload_param": {"device": "cpu"}',
        },
    ),
    *(
        Move(
            name=f"tensor parallel {size}",
            axis="tp",
            kind=Kind.SLOWER,
            apply=_tensor_parallel(size),
            price=0.5 + size / 10,
            why="each matrix is split over the GPUs; activations are reduced in every layer",
            how={
                "torch": f"parallelize_module(..., tp_plan) over {size} GPUs of one machine; accumulation × {size}",
                "megatron": f"--tensor-model-parallel-size {size}",
            },
        )
        for size in (2, 4, 8)
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    nbytes: int
    moves: Moves
    job: Job
    has_passes: bool  # or are its other bytes not known?
    cost: StepCost | None = None  # where its price did not rule it out already

    @property
    def order(self) -> tuple[bool, bool, int]:
        """What was tried comes first, then what was priced."""
        return (self.cost is None, not self.has_passes, self.nbytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Price:
    cost: StepCost
    allocated_bytes: int  # not known of editing jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """What a step made beside what rests: no tensor of half a micro-batch, or of matrices divided by two, is smaller
    than half of what it was. A single sample is a case of its own: slices of it are not copied (`contiguous`)."""

    nbytes: int
    batch: int
    tp: int

    def at_least(self, job: Job) -> int:
        """Of a job that differs in these two alone."""
        comparable = job.batch == self.batch or 1 < job.batch < self.batch
        if not comparable or job.tp < self.tp:
            return 0
        return self.nbytes * job.batch * self.tp // (self.batch * job.tp)


def _besides_size(moves: Moves, topology: Topology) -> tuple[Hashable, ...]:
    """What jobs share that differ in micro-batch and tensor parallelism alone; units of one rank are not gathered."""
    names = (move.name for move in moves if move.axis not in ("batch", "tp"))
    return (topology.shard > 1, topology.expert_shard > 1, topology.replicas > 1, *names)


def moves_for(job: Job, limits: Limits) -> list[Move]:
    """What applies, fewer than on one GPU. Offload applies to sharded jobs, so it is asked of one."""
    sharded = (
        job.changed(strategy=job.strategy if job.strategy in SHARDED else "fsdp2")
        if job.gpus > 1
        else job
    )
    found = [
        move
        for move in available(job, limits.keep, second_gpu=limits.second_gpu)
        if move.name not in LEFT_OUT
    ]
    for move in ACROSS:
        after = move.apply(sharded if move.axis == "offload" else job)
        if after is not None and move.axis not in limits.keep:
            found.append(move)
    return found


def in_order(job: Job, limits: Limits) -> Iterator[tuple[Moves, Job]]:
    """Combinations of at most one move per axis, cheapest first; strategy before offload, optimizer before its step."""
    combined = _combinations(moves_for(job, limits))
    combined.sort(key=lambda moves: (_worst(moves), sum(map(move_effort, moves)), len(moves)))
    after = Applied(job)
    for moves in combined:
        changed = after(moves) if moves else None
        if changed is not None:
            yield moves, changed


def _combinations(moves: list[Move]) -> list[Moves]:
    """At most one move per axis, in the order in which they are applied."""
    axes: dict[str, list[Move | None]] = {name: [] for name in APPLIED_FIRST}
    for move in moves:
        axes.setdefault(move.axis, []).append(move)
    choices = [[None, *each] for each in axes.values() if each]
    return [tuple(move for move in chosen if move) for chosen in product(*choices)]


def _worst(moves: Moves) -> int:
    return max((KINDS.index(move.kind) for move in moves), default=0)


class Search:
    """Combinations in their order; `smallest` is the one that came closest, by what was known of it.

    A good answer, not a proven one: what allocates as much as a refused combination is not estimated, and a single
    change of an editing job that frees nothing is not combined with others.
    """

    def __init__(self, base: Forecast, cost: StepCost, prices: RankPrices, limits: Limits) -> None:
        assert base.job is not None
        self.base, self.cost, self.prices, self.limits = base, cost, prices, limits
        self.job = base.job
        self.most = prices.gpu.capacity_bytes()
        self.useless: set[str] = set()
        self.num_priced = self.num_asked = 0
        self.smallest: Refused | None = None
        self._made: dict[Hashable, list[_Made]] = {}
        self._beyond: dict[Hashable, int] = {}  # what refused ones asked for beyond their price

    def questions(self, found: list[Moves], skip: Callable[[Moves], bool]) -> Questions:
        """Of those that are fast enough and not to be skipped; what fits is added to what was found.

        Once something fits, at most TRIED of at most PRICED are asked about. Before that the search goes on to its end.
        """
        for moves, changed in in_order(self.job, self.limits):
            if found and self._has_tried_enough():
                return
            if skip(moves) or self._is_pointless(moves, changed):
                continue
            price = self._price_if_modelled(moves, changed)
            if price is None or not self._fast_enough(price.cost):
                continue
            self.num_asked += 1
            answer = yield Question(
                moves=moves, job=changed, slowdown=slowdown_of(price.cost, self.cost)
            )
            if is_plan(answer):
                found.append(moves)
            if isinstance(answer, Forecast | TooLarge):
                self._learn(moves, changed, price, answer)

    def _has_tried_enough(self) -> bool:
        """As many as are tried once something fits."""
        return self.num_asked >= TRIED or self.num_priced >= PRICED

    def _is_pointless(self, moves: Moves, job: Job) -> bool:
        """Does it contain a change that is known to free nothing?"""
        return _divides_nothing(moves, job) or any(move.name in self.useless for move in moves)

    def _price_if_modelled(self, moves: Moves, job: Job) -> _Price | None:
        """None for a combination that cannot fit, or that the engine does not model: that is no plan."""
        try:
            return self._price_if_it_may_fit(moves, job)
        except VramcastError:
            return None

    def _learn(self, moves: Moves, job: Job, price: _Price, forecast: Forecast | TooLarge) -> None:
        asked = asked_bytes(forecast)
        if self.job.gpus == 1:
            if len(moves) == 1 and asked > asked_bytes(self.base) - LEAST:
                self.useless.add(moves[0].name)
        elif not is_plan(forecast):
            self.most = min(self.most, asked - LEAST)
            beyond = self._beyond.get(_way(job), 0)
            self._beyond[_way(job)] = max(beyond, asked - price.allocated_bytes)
        if not is_plan(forecast):
            self._refuse(
                Refused(nbytes=asked, moves=moves, job=job, has_passes=True, cost=price.cost)
            )

    def _refuse(self, found: Refused) -> None:
        if self.smallest is None or found.order < self.smallest.order:
            self.smallest = found

    def _price_if_it_may_fit(self, moves: Moves, job: Job) -> _Price | None:
        if job.gpus == 1:
            self.num_priced += 1
            return _Price(
                cost=edit_cost(job, self.prices.config, self.prices.gpu), allocated_bytes=0
            )
        rests = self.prices.resting(resolve(job))
        most = min(rests.left_bytes, self.most - self._beyond.get(_way(job), 0))
        if rests.persistent_bytes > most:
            self._refuse(
                Refused(nbytes=rests.persistent_bytes, moves=moves, job=job, has_passes=False)
            )
            return None
        self.num_priced += 1
        made = self._made.setdefault(_besides_size(moves, rests.topology), [])
        least = max((each.at_least(job) for each in made), default=0) + rests.least_bytes
        if self._is_no_smaller(least, rests) and (
            rests.loaded_bytes > rests.left_bytes or least > most
        ):
            return None
        allocated = self.prices.allocated_bytes(resolve(job))
        made.append(_Made(nbytes=allocated - rests.least_bytes, batch=job.batch, tp=job.tp))
        if rests.loaded_bytes > rests.left_bytes or allocated > most:
            self._refuse(
                Refused(
                    nbytes=max(rests.loaded_bytes, allocated), moves=moves, job=job, has_passes=True
                )
            )
            return None
        return _Price(cost=slowest_rank_cost(self.prices, resolve(job)), allocated_bytes=allocated)

    def _is_no_smaller(self, least: int, rests: Resting) -> bool:
        """Than the smallest of those refused."""
        return self.smallest is not None and self.smallest.order <= (
            True,
            False,
            max(rests.loaded_bytes, least),
        )

    def _fast_enough(self, cost: StepCost) -> bool:
        return (
            self.limits.max_slowdown is None
            or max(slowdown_of(cost, self.cost)) <= self.limits.max_slowdown
        )


def _way(job: Job) -> Hashable:
    """How weights come and go: wrapping, loading and companions may ask for more than the passes, which are priced."""
    return (job.strategy, job.offload)


def asked_bytes(forecast: Forecast | TooLarge) -> int:
    """At once on the fullest device, without what the allocator adds to blocks."""
    if isinstance(forecast, TooLarge):
        return forecast.asked_bytes
    entries = tuple(entry for entry in forecast.ledger.entries if entry.category != Category.SLACK)
    asked = Ledger(entries=entries, top_level=Level.ALLOCATED)
    return max(asked.peak(device).allocated_bytes for device in asked.devices())


def _divides_nothing(moves: Moves, job: Job) -> bool:
    """Sharding where tensor parallelism has left one copy of the model."""
    copies = job.gpus // (job.tp * job.pp)
    return copies == 1 and any(move.axis in ("strategy", "offload") for move in moves)
