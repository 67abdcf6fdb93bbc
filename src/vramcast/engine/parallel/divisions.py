"""All ways to divide a cluster for one model: tp × pp × cp × dp × recomputation × micro-batch, with their peaks.

In come a Job and the choices to try, out come Candidates with the allocated bytes of their fullest stage. Peaks are the
engine's own: layers of a stage are identical, so what is alive at its ends (first layer, last, the one next to it,
the parts around them) grows by the same bytes with every layer, the fullest moment is at one of these, and stages of
three and four layers give all others. Micro-batches are a NumPy axis. The allocator is not asked: reserved memory of a
chosen candidate comes from `estimate`.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy
from numpy.typing import NDArray

from vramcast.catalog.gpus import Gpu, find_gpu
from vramcast.engine.parallel.comm_buffers import outside_entries
from vramcast.engine.parallel.deep_stages import Peaks, peaks_at
from vramcast.engine.parallel.pipeline import chunks_in_flight, kept_bytes
from vramcast.engine.parallel.rank_model import (
    layers_of_stages,
    rank_config,
    rank_sizes,
    split_of,
    stage_program,
)
from vramcast.engine.parallel.ranks import RankStep, divided_program, on_device, rank_of_program
from vramcast.engine.parallel.sharding import AtRest, rank_states
from vramcast.engine.parallel.topology import (
    GATHERING,
    Topology,
    check_model,
    divisors,
    topology_of,
)
from vramcast.engine.recording.record import DEVICE, sizes_of
from vramcast.engine.rl_phases import refuse_rl_phases
from vramcast.errors import InputError, UnsupportedError, VramcastError
from vramcast.job import Job
from vramcast.ledger import STEP
from vramcast.models.read.config import Config
from vramcast.models.record.dims import Number
from vramcast.models.record.program import Program, Sizes
from vramcast.setup import Setup, complete, model_of, resolve

Grid = NDArray[numpy.int64]
BATCHES = (1, 2, 4, 8)
RECOMPUTE = ("none", "selective", "full")
MOST_CP = 64
MIDDLE = "layers between"
SHORT = (
    4,
    5,
)  # layers of the stages from which all others follow: two between the ends, each with another neighbour
LAYERS = (
    "num_hidden_layers",
    "n_layer",
    "num_layers",
    "n_layers",
)  # the names configs have for their number


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """One legal division. `allocated_bytes` is the fullest stage's; `fits` is None where no card is named."""

    tp: int
    pp: int
    cp: int
    data: int
    recompute: str
    batch: int
    allocated_bytes: int
    stage: int
    fits: bool | None

    def job(self, job: Job) -> Job:
        """The job divided like this."""
        return replace(
            job,
            tp=self.tp,
            pp=self.pp,
            cp=self.cp,
            checkpointing=self.recompute,
            batch=self.batch,
        )


def search_divisions(
    job: Job, *, batches: Sequence[int] = BATCHES, recompute: Sequence[str] = RECOMPUTE
) -> list[Division]:
    """Every legal candidate, smallest peak first."""
    if job.model is None:
        raise InputError("a search over topologies needs a model, not a count of parameters")
    refuse_rl_phases(job)
    if complete(job).weights_dtype == "fp16" and job.weights_dtype is None:
        # Under bf16 autocast the first block of an fp16 model differs from the others in its input's dtype.
        job = replace(job, weights_dtype="bf16")
    config = model_of(complete(job)).config
    if config is None:
        raise InputError(
            f"{job.model}: only a parameter table is known, which cannot be divided into layers"
        )
    gpu = find_gpu(job.gpu) if job.gpu else None
    if job.strategy == "zero3":
        raise UnsupportedError(
            "which modules zero3 keeps gathered depends on all layers together, which a search over topologies does "
            "not describe: search with strategy fsdp2, which shards the same, and estimate what you choose with zero3"
        )
    _check_identical_layers(job, config, gpu)
    found: list[Division] = []
    # A recording depends on whether anything is recomputed (key/value caches, gradients of embeddings), not on what.
    kinds = [[how for how in recompute if (how == "none") is kept] for kept in (True, False)]
    for tp, cps in _inner_sizes(job, config):
        for hows in filter(None, kinds):
            like_it = _Slice(
                replace(job, tp=tp, checkpointing=hows[0]), config, gpu, tuple(batches), cps
            )
            for how in hows:
                found += like_it.candidates(how)
    return sorted(found, key=lambda candidate: candidate.allocated_bytes)


def _check_identical_layers(job: Job, config: Config, gpu: Gpu | None) -> None:
    """What a layer more adds is taken from two short stages, so that all layers must be of one kind."""
    one = replace(job, gpus=1, tp=1, pp=1, cp=1, ep=1, virtual_stages=1, schedule="1f1b")
    setup = resolve(one)
    program = divided_program(setup, config, gpu, topology_of(setup), Sizes(batch=1, seq=16))
    kinds = {id(placed.section) for placed in program.sections if placed.section.is_block}
    if len(kinds) > 1:
        raise UnsupportedError(
            f"{job.model} has layers of {len(kinds)} kinds; a search over topologies knows models of one kind only: "
            "estimate the divisions you think of, one by one"
        )


def _inner_sizes(job: Job, config: Config) -> Iterator[tuple[int, tuple[int, ...]]]:
    """tp within a node with the cps that model and sequence allow: none, and all others together where attention holds
    the same in addition to its share for any number of them."""
    is_each_apart = job.cp_style == "allgather"
    for tp in divisors(job.gpus):
        if tp > job.gpus_per_node:
            break
        trial = replace(job, tp=tp, pp=1, virtual_stages=1, schedule="1f1b")
        legal = tuple(_legal_cps(trial, config))
        if is_each_apart:
            yield from ((tp, (cp,)) for cp in legal)
            continue
        if 1 in legal:
            yield tp, (1,)
        more = tuple(cp for cp in legal if cp > 1)
        if more:
            yield tp, more


def _legal_cps(job: Job, config: Config) -> Iterator[int]:
    """Sizes of context parallelism that the job could have, smallest first."""
    for cp in divisors(job.gpus // job.tp):
        if cp <= MOST_CP and _legal(replace(job, cp=cp), config):
            yield cp


def _legal(job: Job, config: Config) -> bool:
    try:
        setup = resolve(job)
        topology = topology_of(setup)
        check_model(topology, config, setup)
        rank_config(config, topology, setup)
        rank_sizes(sizes_of(setup.data, config), topology, split_of(setup, topology))
    except VramcastError:
        return False
    return True


def _multiplies(job: Job) -> bool:
    """Do its sizes multiply to the world (experts may need more GPUs than a stage has)?"""
    try:
        topology_of(resolve(job))
    except InputError:
        return False
    return True


def _short(config: Config, layers: int) -> Config:
    return Config(
        {**config.data, **{key: layers for key in LAYERS if key in config.data}}, config.where
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Passes:
    """The peaks of a step through a short stage by phase and place, and what a micro-batch leaves behind."""

    peaks: Peaks
    kept: Number


class _Slice:
    """All candidates of one tp. Passes are folded once per kind of stage for all micro-batches (columns) and cps
    (rows), states counted once per division."""

    def __init__(
        self,
        job: Job,
        config: Config,
        gpu: Gpu | None,
        batches: tuple[int, ...],
        cps: tuple[int, ...],
    ) -> None:
        self.job, self.config, self.gpu, self.batches, self.cps = job, config, gpu, batches, cps
        self.layers = int(config.dim(LAYERS[0], "L", *LAYERS[1:]))
        sizes = sizes_of(resolve(job).data, config)
        lengths = numpy.array([[int(sizes.seq) // cp] for cp in cps], numpy.int64)
        sizes = replace(sizes, batch=numpy.array([batches], numpy.int64), seq=lengths)
        one = resolve(_divided(job, cps[0], 1))
        self.whole = divided_program(one, _short(config, max(SHORT)), gpu, topology_of(one), sizes)
        self.stages: dict[tuple[str, int], Program] = {}
        self.passes: dict[tuple[str, str, int, tuple[int, bool]], _Passes] = {}
        self.persistent: dict[tuple[str, int, int, int], tuple[AtRest, bool]] = {}

    def candidates(self, recompute: str) -> Iterator[Division]:
        job = replace(self.job, checkpointing=recompute)
        for row, cp in enumerate(self.cps):
            for pp in divisors(job.gpus // (job.tp * cp)):
                divided = _divided(job, cp, pp)
                if pp <= self.layers and _multiplies(divided):
                    yield from self._with_stages(divided, row)

    def _with_stages(self, job: Job, row: int) -> Iterator[Division]:
        setup = resolve(job)
        topology = topology_of(setup)
        counts = layers_of_stages(self.layers, topology.pp, setup)
        # In-flight micro-batches fall with the stage, layers do not rise after the second: one of these is the fullest.
        stages = sorted({0, min(1, topology.pp - 1), topology.pp - 1})
        shape = (len(self.cps), len(self.batches))
        peaks = {
            stage: numpy.broadcast_to(self._peak(setup, topology, counts[stage], stage), shape)[row]
            for stage in stages
        }
        outside = self._outside(setup, topology)
        for index, batch in enumerate(self.batches):
            stage = max(stages, key=lambda s: int(peaks[s][index]))
            nbytes = int(peaks[stage][index])
            yield Division(
                tp=setup.parallel.tp,
                pp=setup.parallel.pp,
                cp=setup.parallel.cp,
                data=topology.data,
                recompute=setup.checkpointing.how,
                batch=batch,
                allocated_bytes=nbytes,
                stage=stage,
                fits=None if outside is None else nbytes <= outside,
            )

    def _outside(self, setup: Setup, topology: Topology) -> int | None:
        """Capacity less context and NCCL; fragmentation is not in it."""
        if self.gpu is None or self.gpu.total_bytes is None:
            return None
        outside = outside_entries(setup, self.gpu, topology, DEVICE)
        return self.gpu.total_bytes - sum(entry.nbytes for entry in outside)

    def _peak(self, setup: Setup, topology: Topology, layers: int, stage: int) -> Grid:
        """From two short stages to one of `layers`, place by place."""
        low, high = (self._totals(setup, topology, count, stage) for count in SHORT)
        places = [place for place in low if place[1] != MIDDLE or layers > 2]
        moments = [
            low[place] + (high[place] - low[place]) * (layers - SHORT[0]) for place in places
        ]
        return functools.reduce(numpy.maximum, moments)

    def _totals(
        self, setup: Setup, topology: Topology, layers: int, stage: int
    ) -> dict[tuple[str, Hashable], Grid]:
        """The peaks of a short stage once optimizer states exist, all that lies there included."""
        last = topology.pp - 1
        kind = (
            "only"
            if last == 0
            else "first"
            if stage == 0
            else "last"
            if stage == last
            else "middle"
        )
        run, (persistent, accumulates) = (
            self._passes(setup, topology, kind, layers),
            self._persistent(setup, topology, kind, layers),
        )
        held = persistent.gradient_bytes if accumulates else 0
        others = (chunks_in_flight(setup, topology, stage) - 1) * numpy.asarray(
            run.kept, numpy.int64
        )
        totals = {
            place: peak + held + others + persistent.by_phase[place[0]]
            for place, peak in run.peaks.items()
        }
        totals[STEP, ""] = (
            0 * others
            + persistent.by_phase[STEP]
            + persistent.gradient_bytes
            + persistent.temporary_bytes
        )
        return totals

    def _stage(self, kind: str, layers: int) -> Program:
        if (kind, layers) not in self.stages:
            counts, which = {
                "only": ([layers], 0),
                "first": ([layers, 0], 0),
                "last": ([0, layers], 1),
                "middle": ([0, layers, 0], 1),
            }[kind]
            self.stages[kind, layers] = stage_program(self.whole, counts, (which,))
        return self.stages[kind, layers]

    def _passes(self, setup: Setup, topology: Topology, kind: str, layers: int) -> _Passes:
        window = (topology.shard, topology.pp > 1) if topology.strategy in GATHERING else (1, False)
        key = (setup.checkpointing.how, kind, layers, window)
        if key not in self.passes:
            program, last = (
                self._stage(kind, layers),
                topology.pp - 1,
            )  # where no other micro-batch is in flight
            states = rank_states(setup, program, topology)
            here = on_device(setup.offload, states, topology)
            step = RankStep(
                setup=setup,
                program=program,
                states=here,
                place=DEVICE,
                topology=topology,
                stage=last,
            )
            mode = step.mode(fresh=not step.finds_gradients)
            self.passes[key] = _Passes(
                peaks=peaks_at(program, mode, _places(program)),
                kept=kept_bytes(setup.versions, program, mode),
            )
        return self.passes[key]

    def _persistent(
        self, setup: Setup, topology: Topology, kind: str, layers: int
    ) -> tuple[AtRest, bool]:
        key = (kind, layers, topology.pp, topology.cp)
        if key not in self.persistent:
            rank = rank_of_program(setup, self.gpu, topology, self._stage(kind, layers))
            self.persistent[key] = rank.at_rest(), rank.step.holds_gradients
        return self.persistent[key]


def _divided(job: Job, cp: int, pp: int) -> Job:
    return replace(
        job, cp=cp, pp=pp, virtual_stages=1, schedule="1f1b", accumulate=max(job.accumulate, pp)
    )


def _places(program: Program) -> list[str]:
    """The first layer, the last one, those between, and the parts around them."""
    names = [placed.name for placed in program.sections]
    blocks = [index for index, placed in enumerate(program.sections) if placed.section.is_block]
    for index in blocks:
        names[index] = MIDDLE
    names[blocks[0]], names[blocks[-1]] = "first layer", "last layer"
    return names
