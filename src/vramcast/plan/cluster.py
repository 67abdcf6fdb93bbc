"""Plans for jobs whose phases the table does not price: many GPUs, and model editing. Whole estimates, cheapest first.

The moves are fewer (what people do there), the order is the same; combinations are estimated one after the other until
enough fit. What lies on a rank without any pass (weights, states) rules most of them out before.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from vramcast.catalog.gpus import Gpu
from vramcast.errors import VramcastError
from vramcast.forecast import Forecast
from vramcast.formulas.estimate import DEVICE, estimate
from vramcast.formulas.parallel.host import offloads_optimizer
from vramcast.formulas.parallel.ranks import divided_program, rank_of_stage
from vramcast.formulas.parallel.topology import topology_of
from vramcast.job import Job
from vramcast.ledger import NEXT_STEP
from vramcast.models.config import Config
from vramcast.models.program import Sizes
from vramcast.plan.moves import Kind, Move, available
from vramcast.plan.order import KINDS, Limits, Moves, applied, move_effort

TRIED = 48
LEFT_OUT = (
    "checkpointing with offload", "selective checkpointing", "chunked cross entropy", "Adafactor", "paged 8-bit AdamW",
    "optimizer states paged to the host", "sequence ÷ 2", "sequence ÷ 4", "expandable segments",
)  # fmt: skip
SHARDED = ("fsdp1", "fsdp2", "zero1", "zero2", "zero3")
ZERO = ("zero1", "zero2", "zero3")


def _shard(strategy: str) -> Callable[[Job], Job | None]:
    def apply(job: Job) -> Job | None:
        deepspeed = job.framework == "deepspeed" or job.strategy in ZERO
        if job.gpus == 1 or job.strategy == strategy or (strategy in ZERO) != deepspeed:
            return None
        if strategy in ZERO and job.strategy in ZERO and ZERO.index(strategy) < ZERO.index(job.strategy):
            return None
        return replace(job, strategy=strategy)

    return apply


def _offload(what: str) -> Callable[[Job], Job | None]:
    return lambda job: replace(job, offload=what) if job.strategy in SHARDED and job.offload == "none" else None


def _tensor_parallel(size: int) -> Callable[[Job], Job | None]:
    def apply(job: Job) -> Job | None:
        possible = job.gpus % size == 0 and size <= job.gpus_per_node and job.tp == 1 and job.quantize == "none"
        return replace(job, tp=size) if possible and job.gpus > 1 else None

    return apply


ACROSS = (
    *(
        Move(
            name=f"ZeRO-{stage}", axis="strategy", kind=Kind.SLOWER, apply=_shard(f"zero{stage}"), why=why,
            price=stage / 10, how={"deepspeed": f'"zero_optimization": {{"stage": {stage}}}'},
        )
        for stage, why in ((1, "optimizer states are divided"), (2, "gradients too"), (3, "weights too"))
    ),
    Move(
        name="FSDP2", axis="strategy", kind=Kind.SLOWER, apply=_shard("fsdp2"), price=0.3,
        why="weights, gradients and states are divided; blocks are gathered as they run",
        how={"torch": "fully_shard(block); fully_shard(model)", "trainer": 'fsdp="full_shard auto_wrap"'},
    ),
    Move(
        name="optimizer states on the host", axis="offload", kind=Kind.SLOWER, apply=_offload("optimizer"), price=2,
        why="the CPU updates; gradients and weights cross PCIe in every step",
        how={"deepspeed": '"offload_optimizer": {"device": "cpu"}'},
    ),
    Move(
        name="weights and optimizer states on the host", axis="offload", kind=Kind.SLOWER, apply=_offload("params"),
        price=3, why="what is not at work waits in host memory",
        how={"torch": "fully_shard(..., offload_policy=CPUOffloadPolicy())",
             "deepspeed": '"offload_param": {"device": "cpu"}'},
    ),
    *(
        Move(
            name=f"tensor parallel {size}", axis="tp", kind=Kind.SLOWER, apply=_tensor_parallel(size),
            price=0.5 + size / 10, why="each matrix is divided; activations are reduced in every layer",
            how={"torch": f"parallelize_module(..., tp_plan) over {size} GPUs of one machine",
                 "megatron": f"--tensor-model-parallel-size {size}"},
        )
        for size in (2, 4, 8)
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    moves: Moves
    job: Job
    forecast: Forecast


def moves_for(job: Job, config: Config, limits: Limits) -> list[Move]:
    """What applies, fewer than on one GPU. Offload applies to sharded jobs, so it is asked of one. Experts are divided
    by sharding: tensor parallelism within them is not what people do."""
    experts = any(config.data.get(key) for key in ("num_local_experts", "num_experts", "n_routed_experts"))
    sharded = replace(job, strategy=job.strategy if job.strategy in SHARDED else "fsdp2") if job.gpus > 1 else job
    found = [move for move in available(job, limits.keep, second_gpu=limits.second_gpu) if move.name not in LEFT_OUT]
    for move in ACROSS:
        after = move.apply(sharded if move.axis == "offload" else job)
        if after is not None and move.axis not in limits.keep and not (experts and move.axis == "tp"):
            found.append(move)
    return found


def in_order(job: Job, config: Config, limits: Limits) -> Iterator[tuple[Moves, Job]]:
    """Combinations of at most one move per axis, cheapest first; strategy before offload, optimizer before its step."""
    axes: dict[str, list[Move | None]] = {}
    for move in moves_for(job, config, limits):
        axes.setdefault(move.axis, [None]).append(move)
    first = ("strategy", "tp", "optimizer")
    names = [name for name in (*first, *(name for name in axes if name not in first)) if name in axes]
    combined = [tuple(m for m in chosen if m) for chosen in product(*(axes[name] for name in names))]
    combined.sort(key=lambda moves: (_worst(moves), sum(map(move_effort, moves)), len(moves)))
    for moves in combined:
        changed = applied(job, moves) if moves else None
        if changed is not None:
            yield moves, changed


def _worst(moves: Moves) -> int:
    return max((KINDS.index(move.kind) for move in moves), default=0)


def tried_in_order(
    job: Job, config: Config, gpu: Gpu, limits: Limits, skip: Callable[[Moves], bool]
) -> Iterator[Tried]:  # fmt: skip
    """Each that may fit and is not to be skipped, estimated; at most TRIED of them."""
    left, bounds = TRIED, _Bounds(config, gpu)
    for moves, changed in in_order(job, config, limits):
        if skip(moves) or _divides_nothing(moves, changed):
            continue
        try:
            if bounds.lying(changed) > gpu.capacity_bytes():
                continue
            forecast = estimate(changed)
        except VramcastError:  # a combination that the engine does not model is no plan
            continue
        yield Tried(moves=moves, job=changed, forecast=forecast)
        left -= 1
        if not left:
            return


def _divides_nothing(moves: Moves, job: Job) -> bool:
    """Sharding where tensor parallelism has left one copy of the model."""
    copies = job.gpus // (job.tp * job.pp)
    return copies == 1 and any(move.axis in ("strategy", "offload") for move in moves)


class _Bounds:
    """What lies on a rank in the optimizer's step whatever the passes do: weights, states, buffers and gradients."""

    def __init__(self, config: Config, gpu: Gpu) -> None:
        self.config, self.gpu = config, gpu
        self.known: dict[Hashable, int] = {}

    def lying(self, job: Job) -> int:
        if job.gpus == 1 or job.pp > 1:
            return 0
        key = (
            job.precision, job.lora_rank, job.quantize, job.freeze, job.strategy, job.tp, job.offload, job.optimizer,
        )  # fmt: skip
        if key not in self.known:
            self.known[key] = self._lying(job)
        return self.known[key]

    def _lying(self, job: Job) -> int:
        topology = topology_of(job)
        sizes = Sizes(batch=1, seq=64 * job.cp * job.tp, target_seq=64, images=1)
        program = divided_program(job, self.config, self.gpu, topology, sizes)
        rank = rank_of_stage(job, self.gpu, topology, program, 0)
        gradients = 0 if offloads_optimizer(job) else rank.step.states.gradient_bytes
        here = (entry for entry in rank.lying if entry.place == DEVICE and NEXT_STEP in entry.phases)
        return gradients + sum(entry.nbytes for entry in here)
