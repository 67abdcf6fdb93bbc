"""Peak and time of a job on many GPUs without its bill: what combinations share is recorded and folded once.

Plain numbers, no allocator: allocated bytes of the fullest rank, the step of the slowest. Also the time of an editing
job, whose peak takes an estimate.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from vramcast.catalog.gpus import Gpu
from vramcast.engine.lines.optimizers import implementation
from vramcast.engine.lines.states import States, unique
from vramcast.engine.parallel.comm_buffers import least_left
from vramcast.engine.parallel.ranks import (
    Rank,
    check_supported,
    complete_job,
    divided_program,
    rank_of_stage,
    rank_other_lines,
    rank_program,
)
from vramcast.engine.parallel.sharding import AtRest
from vramcast.engine.parallel.topology import Topology, check_model, topology_of
from vramcast.engine.program import record_job
from vramcast.engine.recording.record import plain, sizes_of
from vramcast.engine.recording.regime import kv_cache
from vramcast.job import Job
from vramcast.ledger import STEP
from vramcast.models.read.config import Config
from vramcast.models.record.dims import Number
from vramcast.models.record.program import Program, Sizes
from vramcast.plan.bandwidth import crossing_s, link_rates
from vramcast.plan.cost import StepCost, pass_seconds, step_flops, update_seconds, work_of
from vramcast.plan.rank_cost import rank_cost

BASE_FORWARDS = 2  # of an editing step: the unedited model on what must stay as it is, texts and images


@dataclass(frozen=True, slots=True, kw_only=True)
class Resting:
    """What a job has on its ranks, one of each pipeline stage, whatever its passes do: bounds, quickly."""

    topology: Topology
    ranks: list[Rank]
    at_rest: list[AtRest]
    lying_bytes: int  # on the fullest rank in the optimizer's step
    least_bytes: int  # on every rank in every phase
    loaded_bytes: int  # of weights that are there whole before they are partitioned
    left_bytes: int  # of the card, for all of this and the passes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Divided:
    """A job's ranks, one of each pipeline stage, and what rests on them."""

    program: Program  # of all stages
    ranks: list[Rank]
    resting: list[AtRest]
    tokens: int  # of a micro-batch


class RankPrices:
    def __init__(self, config: Config, gpu: Gpu) -> None:
        self.config, self.gpu = config, gpu
        self._programs: dict[Hashable, Program] = {}
        self._passes: dict[Hashable, dict[str, Number]] = {}
        self._resting: dict[Hashable, Resting] = {}
        self._small: dict[Hashable, Program] = {}
        self._beside: dict[Hashable, int] = {}

    def allocated_bytes(self, job: Job) -> int:
        """Of the fullest rank."""
        divided = self._divided(job)
        peaks = (
            at_rest.peak(self._passes_of(rank, divided.program), with_gradients=rank.step.holds_gradients)
            for rank, at_rest in zip(divided.ranks, divided.resting, strict=True)
        )
        return max(map(int, peaks))

    def cost(self, job: Job) -> StepCost:
        """Of the slowest rank."""
        divided = self._divided(job)
        costs = (rank_cost(rank, self.gpu, divided.tokens) for rank in divided.ranks)
        return max(costs, key=lambda cost: cost.seconds[1])

    def _divided(self, job: Job) -> _Divided:
        topology = topology_of(job)
        check_model(topology, self.config, job)
        check_supported(job)
        job, sizes = complete_job(job), plain(sizes_of(job, self.config))
        program = self._program(job, topology, sizes)
        if job.framework == "megatron":  # where more lies than parameters tell
            ranks = [rank_of_stage(job, self.gpu, topology, program, stage) for stage in range(topology.pp)]
            resting = [self._at_rest(job, topology, rank) for rank in ranks]
        else:
            alike = self.resting(job)
            ranks = [rank_of_stage(job, self.gpu, topology, program, rank.stage, rank) for rank in alike.ranks]
            resting = alike.at_rest
        return _Divided(program=program, ranks=ranks, resting=resting, tokens=int(sizes.batch * sizes.seq))

    def _program(self, job: Job, topology: Topology, sizes: Sizes) -> Program:
        key = (
            *_stored(job), job.attention, job.loss, kv_cache(job, self.config), job.checkpointing, job.strategy,
            job.tp, job.pp, job.cp, job.ep, job.batch, job.seq, job.longest_seq,
        )  # fmt: skip
        if key not in self._programs:
            self._programs[key] = rank_program(job, self.config, self.gpu, topology, sizes)
        return self._programs[key]

    def _passes_of(self, rank: Rank, program: Program) -> dict[str, Number]:
        """What a step makes does not ask which optimizer follows."""
        job = rank.step.job
        key = (
            id(program), rank.stage, job.offload, job.keep_outputs, implementation(job) == "in-backward",
            job.accumulate if job.pp > 1 else job.accumulate > 1,
        )  # fmt: skip
        if key not in self._passes:
            self._passes[key] = rank.passes()
        return self._passes[key]

    def resting(self, job: Job) -> Resting:
        key = (*_stored(job), job.strategy, job.tp, job.offload, job.optimizer, implementation(job), *_beside_it(job))
        if key not in self._resting:
            self._resting[key] = self._rests(job, topology_of(job))
        return self._resting[key]

    def _rests(self, job: Job, topology: Topology) -> Resting:
        program = self._small_program(job, topology)
        ranks = [rank_of_stage(job, self.gpu, topology, program, stage) for stage in range(topology.pp)]
        at_rest = [self._at_rest(job, topology, rank) for rank in ranks]
        return Resting(
            topology=topology, ranks=ranks, at_rest=at_rest, loaded_bytes=max(rank.loaded_bytes for rank in ranks),
            lying_bytes=max(lying.gradient_bytes + lying.by_phase[STEP] for lying in at_rest),
            least_bytes=min(nbytes for lying in at_rest for nbytes in lying.by_phase.values()),
            left_bytes=least_left(job, self.gpu, topology),
        )  # fmt: skip

    def _at_rest(self, job: Job, topology: Topology, rank: Rank) -> AtRest:
        return rank.at_rest().beside(self._companions(job, topology, rank))

    def _companions(self, job: Job, topology: Topology, rank: Rank) -> int:
        """Weights of frozen models that lie beside the rank's."""
        key = (job.precision, topology, *_beside_it(job))
        if key not in self._beside:
            on_gpu = "same" in (job.reference, job.reward, job.teacher)
            made = (
                rank_other_lines(job, self.config, self.gpu, topology, rank, _small_sizes(job)).resident
                if on_gpu
                else ()
            )
            self._beside[key] = sum(made)
        return self._beside[key]

    def _small_program(self, job: Job, topology: Topology) -> Program:
        """The parameters of a rank, with as few activations as possible."""
        key = (*_stored(job), topology)
        if key not in self._small:
            self._small[key] = divided_program(job, self.config, self.gpu, topology, _small_sizes(job))
        return self._small[key]


def _small_sizes(job: Job) -> Sizes:
    return Sizes(batch=1, seq=64 * job.cp * job.tp, target_seq=64, images=1)


def _beside_it(job: Job) -> tuple[Hashable, ...]:
    return (job.reference, job.reference_dtype, job.reward, job.teacher, job.companion_dtype)


def _stored(job: Job) -> tuple[Hashable, ...]:
    return (job.precision, job.lora_rank, job.quantize, job.freeze)


def edit_cost(job: Job, config: Config, gpu: Gpu) -> StepCost:
    """An editing step: forwards of the unedited model, one pass with gradients of the inner parameters, and the edited
    model's forwards, each with a backward. The hypernetwork's own products are small beside them and left out."""
    sizes = plain(sizes_of(job, config))
    program = record_job(job, config, gpu, sizes)
    work = work_of(program)
    fast, slow = pass_seconds(program, work, job, gpu)
    whole, forward = step_flops(program, job), work.forward_flops
    times = 1 + job.edit_forwards + BASE_FORWARDS * float(forward) / float(whole)
    across = _across(job, program) if job.sub_device else 0
    crossing = crossing_s(across, link_rates(gpu))
    update = update_seconds(States(params=unique(program.params()), job=job).trained, job, gpu)
    return StepCost(
        pass_s=(float(fast) * times + crossing[0], float(slow) * times + crossing[1]), update_s=update,
        tokens=int(sizes.batch * sizes.seq), passes=job.accumulate,
    )  # fmt: skip


def _across(job: Job, program: Program) -> int:
    """Hidden states go to the second device and their gradients come back, in every pass of the edited model."""
    block = next(placed for placed in reversed(program.placed) if placed.section.is_block)
    return 2 * (1 + job.edit_forwards) * int(block.section.inputs[0].nbytes)
