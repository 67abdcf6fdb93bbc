"""Peaks of jobs on many GPUs without a breakdown: what the combinations of a search share is computed once.

Input: Setups of one model on one card. Output: allocated bytes of the fullest rank, lower bounds of them, and the
ranks. The allocator is not replayed here: for reserved bytes see `estimate`.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from vramcast.catalog.gpus import Gpu
from vramcast.engine.parallel.comm_buffers import least_left
from vramcast.engine.parallel.ranks import (
    Rank,
    check_supported,
    divided_program,
    rank_of_stage,
    rank_other_lines,
    rank_program,
)
from vramcast.engine.parallel.sharding import AtRest
from vramcast.engine.parallel.topology import Topology, check_model, topology_of
from vramcast.engine.recording.record import plain, sizes_of
from vramcast.engine.recording.regime import kv_cache
from vramcast.ledger import STEP
from vramcast.models.read.config import Config
from vramcast.models.record.dims import Number
from vramcast.models.record.program import Program, Sizes
from vramcast.setup import Setup
from vramcast.setup.records import Companions, Parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class Resting:
    """What a job's ranks hold without their passes, one rank per pipeline stage: quick bounds of the peak."""

    topology: Topology
    ranks: list[Rank]
    at_rest: list[AtRest]
    persistent_bytes: int  # on the fullest rank in the optimizer's step
    least_bytes: int  # on every rank in every phase
    loaded_bytes: int  # of weights that are loaded whole before they are partitioned
    left_bytes: int  # of the card after CUDA context and workspaces


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedJob:
    """A job's ranks, one per pipeline stage, and what they hold between steps."""

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
        self._companion_bytes: dict[Hashable, int] = {}

    def allocated_bytes(self, setup: Setup) -> int:
        """Peak allocated bytes of the fullest rank."""
        divided = self.divide(setup)
        peaks = (
            at_rest.peak(
                self._passes_of(rank, divided.program), with_gradients=rank.step.holds_gradients
            )
            for rank, at_rest in zip(divided.ranks, divided.resting, strict=True)
        )
        return max(map(int, peaks))

    def divide(self, setup: Setup) -> DividedJob:
        topology = topology_of(setup)
        check_model(topology, self.config, setup)
        check_supported(setup)
        sizes = plain(sizes_of(setup.data, self.config))
        program = self._program(setup, topology, sizes)
        if setup.versions.framework == "megatron":  # it also holds buffers that depend on the batch
            ranks = [
                rank_of_stage(setup, self.gpu, topology, program, stage)
                for stage in range(topology.pp)
            ]
            resting = [self._at_rest(setup, topology, rank) for rank in ranks]
        else:
            known = self.resting(setup)
            ranks = [
                rank_of_stage(setup, self.gpu, topology, program, rank.stage, rank)
                for rank in known.ranks
            ]
            resting = known.at_rest
        return DividedJob(
            program=program, ranks=ranks, resting=resting, tokens=int(sizes.batch * sizes.seq)
        )

    def _program(self, setup: Setup, topology: Topology, sizes: Sizes) -> Program:
        key = (
            *_stored(setup),
            setup.kernels.attention,
            setup.kernels.loss,
            kv_cache(setup, self.config),
            setup.checkpointing.how,
            setup.parallel.strategy,
            setup.parallel.tp,
            setup.parallel.pp,
            setup.parallel.cp,
            setup.experts.ep,
            setup.data.batch,
            setup.data.seq,
            setup.data.longest_seq,
        )
        if key not in self._programs:
            self._programs[key] = rank_program(setup, self.config, self.gpu, topology, sizes)
        return self._programs[key]

    def _passes_of(self, rank: Rank, program: Program) -> dict[str, Number]:
        """Peaks of the passes by phase. They do not depend on the optimizer, so they are cached without it."""
        setup = rank.step.setup
        key = (
            id(program),
            rank.stage,
            setup.offload.what,
            setup.loop.keeps_outputs,
            setup.optimizer.implementation == "in-backward",
            setup.data.accumulate if setup.parallel.pp > 1 else setup.data.accumulate > 1,
        )
        if key not in self._passes:
            self._passes[key] = rank.passes()
        return self._passes[key]

    def resting(self, setup: Setup) -> Resting:
        key = (
            *_stored(setup),
            setup.parallel.strategy,
            setup.parallel.tp,
            setup.offload.what,
            setup.optimizer.name,
            setup.optimizer.implementation,
            *_companion_key(setup.companions),
        )
        if key not in self._resting:
            self._resting[key] = self._rests(setup, topology_of(setup))
        return self._resting[key]

    def _rests(self, setup: Setup, topology: Topology) -> Resting:
        program = self._small_program(setup, topology)
        ranks = [
            rank_of_stage(setup, self.gpu, topology, program, stage) for stage in range(topology.pp)
        ]
        at_rest = [self._at_rest(setup, topology, rank) for rank in ranks]
        return Resting(
            topology=topology,
            ranks=ranks,
            at_rest=at_rest,
            loaded_bytes=max(rank.loaded_bytes for rank in ranks),
            persistent_bytes=max(
                persistent.gradient_bytes + persistent.by_phase[STEP] for persistent in at_rest
            ),
            least_bytes=min(
                nbytes for persistent in at_rest for nbytes in persistent.by_phase.values()
            ),
            left_bytes=least_left(setup, self.gpu, topology),
        )

    def _at_rest(self, setup: Setup, topology: Topology, rank: Rank) -> AtRest:
        return rank.at_rest().plus(self._companions(setup, topology, rank))

    def _companions(self, setup: Setup, topology: Topology, rank: Rank) -> int:
        """Bytes of weights of frozen companion models on the rank."""
        key = (setup.precision, topology, *_companion_key(setup.companions))
        if key not in self._companion_bytes:
            on_gpu = "same" in (
                setup.companions.reference,
                setup.companions.reward,
                setup.companions.teacher,
            )
            alone = _without_rl_phases(setup)
            made = (
                rank_other_lines(
                    alone, self.config, self.gpu, topology, rank, _small_sizes(setup.parallel)
                ).resident
                if on_gpu
                else ()
            )
            self._companion_bytes[key] = sum(made)
        return self._companion_bytes[key]

    def _small_program(self, setup: Setup, topology: Topology) -> Program:
        """The rank's program at small sizes, for its parameters only."""
        key = (*_stored(setup), topology)
        if key not in self._small:
            self._small[key] = divided_program(
                setup, self.config, self.gpu, topology, _small_sizes(setup.parallel)
            )
        return self._small[key]


def _without_rl_phases(setup: Setup) -> Setup:
    """The update alone: a critic and rollouts come on top, so that prices stay lower bounds."""
    companions = replace(setup.companions, critic="none")
    return replace(setup, companions=companions, phases=replace(setup.phases, rollout_tokens=None))


def _small_sizes(parallel: Parallel) -> Sizes:
    return Sizes(batch=1, seq=64 * parallel.cp * parallel.tp, target_seq=64, images=1)


def _companion_key(companions: Companions) -> tuple[Hashable, ...]:
    return (
        companions.reference,
        companions.reference_dtype,
        companions.reward,
        companions.teacher,
        companions.companion_dtype,
    )


def _stored(setup: Setup) -> tuple[Hashable, ...]:
    return (setup.precision, setup.adapter)
