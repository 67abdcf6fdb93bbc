"""What a step costs in time on many GPUs: a rank's own work, what it exchanges with others, and where it waits.

Volumes follow the papers: ZeRO (arXiv 1910.02054, section 7) moves twice the parameters in a step for stages 1 and 2
and three times for stage 3; a tensor-parallel block reduces its activations twice forward and twice backward
(Megatron-LM, arXiv 1909.08053); a pipeline idles (p − 1)/m of the time (arXiv 2104.04473). What an all-gather or a
reduce-scatter over n ranks moves per rank is (n − 1)/n of it, an all-reduce twice that (nccl-tests,
doc/PERFORMANCE.md). Sharded exchanges run beside the computation: hidden at the fast end, not at all at the slow one.
Not known: load imbalance of experts, their all-to-all, context parallelism's exchange.
"""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.catalog.gpus import Gpu
from vramcast.engine import (
    GATHERING,
    Rank,
    RankPrices,
    Topology,
    accumulates_unsharded,
    offloads_optimizer,
    offloads_params,
    units_of,
)
from vramcast.models.record.program import Program
from vramcast.plan.bandwidth import HOST_BYTES_PER_S, crossing_s, group_rates, pcie_rates
from vramcast.plan.cost import StepCost, pass_seconds, update_seconds, work_of
from vramcast.setup import Setup
from vramcast.setup.records import Checkpointing

ADAM_BYTES = (
    28  # an fp32 Adam reads weight, gradient and two moments, and writes all but the gradient
)
REDUCTIONS = 4  # of a tensor-parallel block's activations, forward and backward together

Ends = tuple[float, float]  # seconds, fast and slow


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """Bytes that a rank sends to the other copies of the model."""

    each_pass: float
    each_update: float


def rank_cost(rank: Rank, gpu: Gpu | None, tokens: int) -> StepCost:
    """`tokens` of one micro-batch of one copy of the model."""
    step = rank.step
    setup, topology = step.setup, step.topology
    computing = pass_seconds(step.program, work_of(step.program), setup, gpu)
    reducing = _tensor_parallel(setup.checkpointing, step.program, topology, gpu)
    moved, rates = (
        exchanged(rank),
        group_rates(gpu, topology.data * topology.cp * topology.tp, topology.gpus_per_node),
    )
    crossing = crossing_s(moved.each_pass, rates)
    fetched = crossing_s(_fetched_bytes(rank), pcie_rates(gpu))
    fast = max(float(computing[0]) + reducing[0], crossing[0], fetched[0])
    slow = float(computing[1]) + reducing[1] + crossing[1] + fetched[1]
    update, last, idle = (
        _update(rank, gpu),
        crossing_s(moved.each_update, rates),
        _idle(setup, topology),
    )
    return StepCost(
        pass_s=(fast * idle[0], slow * idle[1]),
        update_s=(update[0] + last[0], update[1] + last[1]),
        tokens=tokens * topology.data,
        passes=setup.data.accumulate,
    )


def slowest_rank_cost(prices: RankPrices, setup: Setup) -> StepCost:
    """The step of the slowest rank."""
    divided = prices.divide(setup)
    costs = (rank_cost(rank, prices.gpu, divided.tokens) for rank in divided.ranks)
    return max(costs, key=lambda cost: cost.seconds[1])


def exchanged(rank: Rank) -> Exchanged:
    setup, topology = rank.step.setup, rank.step.topology
    ranks = topology.data * topology.cp
    if ranks == 1:
        return Exchanged(each_pass=0, each_update=0)
    units = units_of(setup, rank.step.program, topology)
    gathered, reduced = (
        sum(unit.gathered_bytes for unit in units),
        sum(unit.reduced_bytes for unit in units),
    )
    share = (ranks - 1) / ranks
    if topology.strategy in GATHERING and topology.shard > 1:
        return Exchanged(each_pass=share * (2 * gathered + reduced), each_update=0)
    if topology.strategy == "zero2":
        return Exchanged(each_pass=share * reduced, each_update=share * reduced)
    whole = (
        2 * share * reduced
    )  # reduced and made known again: gradients, or with ZeRO-1 the new weights
    waits = accumulates_unsharded(setup) or topology.strategy == "zero1"
    return Exchanged(each_pass=0 if waits else whole, each_update=whole if waits else 0)


def _tensor_parallel(
    checkpointing: Checkpointing, program: Program, topology: Topology, gpu: Gpu | None
) -> Ends:
    """Nothing else runs meanwhile. Recomputed blocks reduce their forward results once more."""
    if topology.tp == 1:
        return (0.0, 0.0)
    times = REDUCTIONS + (2 if checkpointing.how not in ("none", "selective") else 0)
    entries = (placed.section.inputs[0] for placed in program.sections if placed.section.is_block)
    nbytes = sum(
        int(entry.nbytes) * (topology.tp if entry.sequence_sharded else 1) for entry in entries
    )
    moved = times * 2 * (topology.tp - 1) / topology.tp * nbytes
    return crossing_s(moved, group_rates(gpu, topology.tp, topology.gpus_per_node))


def _idle(setup: Setup, topology: Topology) -> Ends:
    """How much longer micro-batches take because stages wait: (m + p − 1)/m, less with more chunks per stage; a
    zero-bubble schedule fills the gaps at best."""
    gap = (topology.pp - 1) / setup.data.accumulate / setup.parallel.virtual_stages
    return (1.0 if setup.parallel.schedule == "zero-bubble" else 1 + gap, 1 + gap)


def _fetched_bytes(rank: Rank) -> float:
    """The rank's share of weights that wait on the host comes for forward and again for backward."""
    return 2.0 * rank.states.weights.nbytes if offloads_params(rank.step.setup.offload) else 0.0


def _update(rank: Rank, gpu: Gpu | None) -> Ends:
    setup, states = rank.step.setup, rank.states
    if not offloads_optimizer(setup.offload):
        return update_seconds(states.trained, setup, gpu)
    numel = states.trained.numel
    touched = (
        ADAM_BYTES * numel * rank.step.topology.ranks_per_node
    )  # ranks of a machine share its memory
    (fast, slow), moved = crossing_s(touched, HOST_BYTES_PER_S), states.trained.nbytes
    across = crossing_s(2 * moved, pcie_rates(gpu))  # gradients down, weights up
    return (fast + across[0], slow + across[1])
