"""Job on many GPUs → Forecast of its fullest rank. Start reading the many-GPU engine here.

Divide the world (topology), record one rank's model for each pipeline stage (layout), shard its states (sharding),
weave gathers and reductions into the step (windows), add micro-batches in flight (pipeline), buffers and the host's
side; the fullest stage gets a whole bill, the others their peak.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from vramcast.catalog.gpus import Gpu
from vramcast.engine.assumptions import list_assumptions
from vramcast.engine.bill import TooLarge, allocator_slack, cut_to_phases, job_phases
from vramcast.engine.lines.amounts import Amounts
from vramcast.engine.lines.batch import input_lines
from vramcast.engine.lines.model_buffers import buffers
from vramcast.engine.lines.optimizers import version
from vramcast.engine.lines.overheads import workspace_entries
from vramcast.engine.lines.setting import Beside, Setting
from vramcast.engine.lines.states import (
    States,
    ema_entries,
    extra_weight_entries,
    optimizer_entries,
    unique,
    weight_entries,
)
from vramcast.engine.lines.training_step import NEXT, Step, StepBill, describe_activations, entries_of
from vramcast.engine.parallel.comm_buffers import (
    buffer_entries,
    is_bucket_view,
    least_left,
    loading_entry,
    loads_whole,
    outside_entries,
    statistics_entry,
)
from vramcast.engine.parallel.companions import RankSetting, accompany
from vramcast.engine.parallel.deep_stages import phase_peaks_of
from vramcast.engine.parallel.dtensor import copied_rows
from vramcast.engine.parallel.fsdp_units import accumulates_unsharded, units_of
from vramcast.engine.parallel.host import (
    node_entries,
    offloaded_inputs,
    offloaded_modules,
    offloads_optimizer,
    offloads_params,
)
from vramcast.engine.parallel.megatron_fsdp import is_megatron_fsdp
from vramcast.engine.parallel.pipeline import (
    beside_change,
    chunks_in_flight,
    forward_bytes,
    in_flight_change,
    kept_bytes,
    stages_of_rank,
)
from vramcast.engine.parallel.rank_model import (
    layers_of_stages,
    rank_config,
    rank_regime,
    rank_sizes,
    split_of,
    stage_program,
)
from vramcast.engine.parallel.rank_replay import replay_rank
from vramcast.engine.parallel.rank_script import Streams, rank_script
from vramcast.engine.parallel.sharding import AtRest, RankStates, count_states, rank_states
from vramcast.engine.parallel.strategies import strategy_changes
from vramcast.engine.parallel.topology import Topology, check_model, hints, topology_of
from vramcast.engine.parallel.transformer_engine import engine_entries, engine_texts
from vramcast.engine.recording.attention_copies import lay_out
from vramcast.engine.recording.precision import card_warnings
from vramcast.engine.recording.record import DEVICE, add_loss_to, record_on_one_gpu, sizes_of
from vramcast.engine.replay.extras import played_with
from vramcast.engine.replay.run import Replayed
from vramcast.engine.stream.checkpointing import recompute_rule, stashed_inputs
from vramcast.engine.stream.fold import peak_by_phase
from vramcast.engine.stream.timeline import Mode, PhasePeak
from vramcast.errors import UnsupportedError
from vramcast.forecast import Forecast, ModelSummary, RankPeak
from vramcast.job import Job
from vramcast.ledger import HOST, NEXT_STEP, PHASES, STEP, Category, Entry, Ledger, Level
from vramcast.models.families import own_targets, record
from vramcast.models.params import Params
from vramcast.models.read.config import Config
from vramcast.models.read.source import ModelSource
from vramcast.models.record.dims import Number, maximum
from vramcast.models.record.program import Program, Sizes

AVOIDED_FROM = (2, 8)  # torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp: no record_stream for collectives any more


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStep(Step):
    """One rank's step: the stage's program with what the strategy and the pipeline do to it."""

    topology: Topology
    stage: int = 0

    @property
    def accumulates_apart(self) -> bool:
        """Gradients go into a buffer that exists from the start: main_grad, ZeRO's partitions, DDP's views."""
        in_buffer = self.topology.strategy in ("zero2", "zero3") or is_bucket_view(self.job, self.topology)
        return in_buffer or self.states.recipe.gradients != self.states.recipe.weights

    def mode(self, *, fresh: bool) -> Mode:
        plain = Step.mode(self, fresh=fresh)
        sharded = self.topology.strategy in ("fsdp1", "fsdp2") and self.topology.shard > 1
        window = strategy_changes(self.job, self.program, self.topology, fresh=fresh)
        stays = not fresh and self.job.accumulate == 2  # the first of two micro-batches
        added = self.reduces_last and self.topology.strategy == "fsdp2" and not stays  # FSDP1 joins them first
        fresh_grads = not added if sharded else plain.fresh_grads
        mode = replace(plain, fresh_grads=fresh_grads, changes=(*plain.changes, *window))
        others = self.others()
        if self.job.overlap_experts and self.job.accumulate > 1:
            mode = replace(mode, changes=(*mode.changes, beside_change(forward_bytes(self.program, mode))))
        if not others:
            return mode
        each = kept_bytes(self.job, self.program, mode) // self.job.virtual_stages
        return replace(mode, changes=(*mode.changes, in_flight_change(others, each)))

    @property
    def gradients_leave(self) -> bool:
        """With the optimizer on the host, FSDP's go there as soon as they are reduced."""
        sharded = self.topology.strategy in ("fsdp1", "fsdp2") and self.topology.shard > 1
        return sharded and offloads_optimizer(self.job) and not self.reduces_last

    @property
    def reduces_last(self) -> bool:
        """Between micro-batches there are whole gradients (see `windows`); the rank's shares come with the last one."""
        sharded = self.topology.strategy in ("fsdp1", "fsdp2") and self.topology.shard > 1
        return sharded and accumulates_unsharded(self.job)

    @property
    def finds_gradients(self) -> bool:
        """Are there gradients that a later micro-batch's are added to?"""
        return self.job.accumulate > 1 and not self.reduces_last

    @property
    def holds_gradients(self) -> bool:
        """Do gradients lie there in every pass?"""
        return self.accumulates_apart or self.finds_gradients

    def _accumulating(self, bill: StepBill, gradients: Amounts, first: tuple[str, ...], later: list[PhasePeak]) -> None:
        """Where gradients are reduced last, `later` is a micro-batch before the last, without the rank's shares."""
        if not self.reduces_last:
            return Step._accumulating(self, bill, gradients, first, later)
        for peak in later:
            for phase in (*(name for name in first if name == peak.phase), NEXT.get(peak.phase, peak.phase)):
                if peak.nbytes > bill.total(phase) + gradients.by_phase.get(phase, 0):
                    bill.clear(phase)
                    gradients.by_phase[phase] = 0
                    bill.add(peak, (phase,), None)

    def _gradient_line(self) -> Amounts:
        line = Step._gradient_line(self)
        assert isinstance(self.states, RankStates)
        numel = sum(param.numel for param in self.states.gradients if param.trainable)
        line.formula = f"{numel:,} parameters × {self.states.gradient_bytes / max(numel, 1):.4g} B"
        return line

    def _step_temporaries(self) -> Amounts:
        line = Step._step_temporaries(self)
        assert isinstance(self.states, RankStates)
        rows = max((sum(made) for made in copied_rows(self.job, self.states.tables)), default=0)
        for phase in (STEP, NEXT_STEP):
            if rows > line.by_phase.get(phase, 0):
                line.by_phase[phase], line.formula = rows, "the rank's rows of a whole gradient"
        return line

    def others(self) -> int:
        """Passes through a chunk beside those of the micro-batch that is played, which goes through all chunks."""
        return max(chunks_in_flight(self.job, self.topology, self.stage) - self.job.virtual_stages, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """All that a rank of one pipeline stage holds, before the allocator."""

    stage: int
    step: RankStep
    states: RankStates
    lying: tuple[Entry, ...]

    def passes(self) -> dict[str, Number]:
        """The largest sum of what the step makes, by phase."""
        last = self._passes(fresh=not self.step.finds_gradients)
        if not self.step.reduces_last:
            return last
        before = self._passes(fresh=False)
        return {phase: maximum(peak, before.get(phase, 0)) for phase, peak in last.items()}

    def _passes(self, *, fresh: bool) -> dict[str, Number]:
        step = self.step
        with_two = is_megatron_fsdp(step.job, step.topology)  # units gathered ahead
        if step.topology.strategy == "zero3" and not with_two:
            return peak_by_phase(step.program, step.mode(fresh=fresh))
        farther = stashed_inputs(step.job) + with_two
        return phase_peaks_of(
            step.program, recompute_rule(step.job), lambda short: replace(step, program=short).mode(fresh=fresh),
            farther,
        )  # fmt: skip

    def peak(self) -> Number:
        """The largest allocated sum once optimizer states exist."""
        return self.at_rest().peak(self.passes(), with_gradients=self.step.holds_gradients)

    def at_rest(self) -> AtRest:
        here = [entry for entry in self.lying if entry.place == DEVICE and entry.level == Level.ALLOCATED]
        states = self.step.states
        assert isinstance(states, RankStates)
        return AtRest(
            by_phase={
                phase: sum(entry.nbytes for entry in here if later in entry.phases)
                for phase, later in (*NEXT.items(), (STEP, NEXT_STEP))
            },
            gradient_bytes=states.gradient_bytes, temporary_bytes=states.temporary_bytes,
        )  # fmt: skip

    @property
    def loaded_bytes(self) -> int:
        """Of weights that are there whole before they are partitioned."""
        whole = loads_whole(self.step.job, self.step.topology)
        return unique(self.step.program.params()).nbytes if whole else 0


def forecast_ranks(job: Job, gpu: Gpu | None, source: ModelSource, config: Config) -> Forecast:
    forecast = forecast_fitting(job, gpu, source, config, must_fit=False)
    assert isinstance(forecast, Forecast)
    return forecast


def forecast_fitting(
    job: Job, gpu: Gpu | None, source: ModelSource, config: Config, *, must_fit: bool = True
) -> Forecast | TooLarge:
    """`must_fit`: no bill is made where the card runs out."""
    topology = topology_of(job)
    check_model(topology, config, job)
    check_supported(job)
    job = complete_job(job)
    sizes = sizes_of(job, config)
    program = rank_program(job, config, gpu, topology, sizes)
    ranks = [rank_of_stage(job, gpu, topology, program, stage) for stage in range(topology.pp)]
    peaks = [int(rank.peak()) for rank in ranks]
    fullest = ranks[max(range(topology.pp), key=peaks.__getitem__)]
    too_large = TooLarge(asked_bytes=peaks[fullest.stage])
    outside = outside_entries(job, gpu, topology, DEVICE)
    most = least_left(job, gpu, topology) if gpu is not None and must_fit else None
    if most is not None and most < too_large.asked_bytes:
        return too_large
    if most is not None and most < fullest.loaded_bytes:
        return TooLarge(asked_bytes=fullest.loaded_bytes)
    whole = _whole_model(job, config, gpu)
    extra, stream = rank_other_lines(job, config, gpu, topology, fullest, sizes), fullest.step.stream()
    streams = (stream, fullest.step.later(stream))
    replayed = _replayed(fullest, streams, extra, gpu, sum(entry.nbytes for entry in outside), most)
    cached = replayed.peak_reserved_bytes - replayed.peak_requested_bytes
    if most is not None and (replayed.out_of_memory or too_large.asked_bytes + cached > most):
        return TooLarge(asked_bytes=max(too_large.asked_bytes, replayed.peak_requested_bytes))
    host = (
        *node_entries(job, config, whole, fullest.states, topology, sizes),
        *offloaded_inputs(job, fullest.step.program, topology),
        *offloaded_modules(fullest.step.program, topology, job.virtual_stages + fullest.step.others(),
                           job.virtual_stages),
    )  # fmt: skip
    entries = (*_made(fullest, streams), *host, *_of_node(extra, topology), *outside)
    ledger = _ledger(fullest, entries, replayed, gpu)
    if extra.resident:
        peaks[fullest.stage] = ledger.peak(DEVICE).allocated_bytes
    return Forecast(
        model=_summary(source, config, whole, program), job=job, gpu=gpu, ledger=ledger,
        assumptions=(*list_assumptions(job, config), f"{topology.text}; {topology.strategy}", *_how(job, topology),
                     *engine_texts(job, topology, program), *extra.assumptions),
        warnings=(*source.notes, *source.warnings, *card_warnings(job.precision, gpu), *hints(topology)),
        ranks=tuple(_rank_peak(topology, rank.stage, peak) for rank, peak in zip(ranks, peaks, strict=True)),
        nodes=topology.nodes,
    )  # fmt: skip


def rank_other_lines(job: Job, config: Config, gpu: Gpu | None, topology: Topology, rank: Rank, sizes: Sizes) -> Beside:
    program = rank.step.program
    setting = Setting(
        job=job, config=rank_config(config, topology, job), gpu=gpu, program=program, states=rank.states,
        sizes=rank_sizes(sizes, topology, split_of(job, topology)), device=DEVICE,
    )  # fmt: skip
    units, mode = tuple(units_of(job, program, topology)), rank.step.mode(fresh=True)
    beside = RankSetting(
        setting=setting, whole_config=config, topology=topology, states=rank.states, units=units, mode=mode
    )
    return input_lines(setting) + buffers(setting) + accompany(beside)


def _of_node(extra: Beside, topology: Topology) -> Iterator[Entry]:
    """Lines of the rank; a companion on the host is there once for each rank of the node."""
    for entry in entries_of(extra.lines):
        several = entry.place == HOST and entry.category == Category.COMPANION
        yield replace(entry, nbytes=entry.nbytes * topology.ranks_per_node) if several else entry


def forecast_counts(whole: States, gpu: Gpu | None, name: str, notes: tuple[str, ...]) -> Forecast:
    """A rank's states where only a number of parameters is known: a lower bound."""
    job, topology = whole.job, topology_of(whole.job)
    states = count_states(job, whole.params, topology)
    here = on_device(job, states, topology)
    entries = list(lying_entries(job, gpu, topology, states))
    line = Amounts(
        category=Category.GRADIENTS, component="of trained parameters", place=DEVICE, source=states.recipe.whose
    )
    for phase in PHASES[PHASES.index(STEP) :]:
        line.add(phase, here.gradient_bytes)
    ledger = Ledger(entries=cut_to_phases((*entries, *line.entries()), job_phases(job)), top_level=Level.ALLOCATED)
    ledger.check()
    return Forecast(
        model=ModelSummary(
            name=name, params_total=whole.params.numel,
            params_trainable=whole.trained.numel,
        ),
        job=job, gpu=gpu, ledger=ledger,
        assumptions=(*list_assumptions(job, None), f"{topology.text}; {topology.strategy}", *_how(job, topology)),
        warnings=(
            *notes, *hints(topology), "only parameters are known: activations and gathered layers are not in this bill",
        ),
        nodes=topology.nodes,
    )  # fmt: skip


def complete_job(job: Job) -> Job:
    """A pipeline is filled with at least as many micro-batches as it has stages; offloaded activations are the inputs
    of recomputed blocks."""
    if job.offload in ("activations", "all"):
        job = replace(job, checkpointing="offload")
    return replace(job, accumulate=job.pp) if job.pp > 1 and job.accumulate == 1 else job


def check_supported(job: Job) -> None:
    if job.loop != "plain" or job.edit:
        raise UnsupportedError("a special loop or an edit is modelled on one GPU only: leave out gpus")


def record_rank(job: Job, config: Config, gpu: Gpu | None, sizes: Sizes) -> Program:
    """One rank's whole model of a divided job: what a tensor that ran out of memory there looks like."""
    topology = topology_of(job)
    check_model(topology, config, job)
    return rank_program(complete_job(job), config, gpu, topology, sizes)


def rank_peaks(job: Job, config: Config, gpu: Gpu | None, sizes: Sizes) -> Number:
    """The fullest rank's peak for number-like sizes."""
    topology, job = topology_of(job), complete_job(job)
    check_model(topology, config, job)
    program = rank_program(job, config, gpu, topology, sizes)
    ranks = (rank_of_stage(job, gpu, topology, program, stage) for stage in range(topology.pp))
    return functools.reduce(maximum, (rank.peak() for rank in ranks))


def rank_program(job: Job, config: Config, gpu: Gpu | None, topology: Topology, sizes: Sizes) -> Program:
    """One tensor- and context-parallel rank's whole model, loss included."""
    return divided_program(job, config, gpu, topology, rank_sizes(sizes, topology, split_of(job, topology)))


def divided_program(job: Job, config: Config, gpu: Gpu | None, topology: Topology, sizes: Sizes) -> Program:
    """The same for a sequence that is divided already."""
    regime = rank_regime(job, config, gpu, topology)
    program = record(rank_config(config, topology, job), regime, sizes)
    if job.lora_rank is not None and regime.code != "transformers":
        own_targets(regime.code)  # raises where the framework's own models have none
    lay_out(program, job, config)
    add_loss_to(program, job)
    return program


def rank_of_stage(
    job: Job, gpu: Gpu | None, topology: Topology, program: Program, stage: int, alike: Rank | None = None
) -> Rank:
    """`alike`: a rank on which the same lies, where one is known."""
    if topology.pp > 1:
        blocks = sum(placed.section.is_block for placed in program.placed)
        layers = layers_of_stages(blocks, topology.pp * job.virtual_stages, job)
        program = stage_program(program, layers, stages_of_rank(job, topology, stage))
    return rank_of_program(job, gpu, topology, program, stage, alike)


def rank_of_program(
    job: Job, gpu: Gpu | None, topology: Topology, program: Program, stage: int = 0, alike: Rank | None = None
) -> Rank:
    """Of a stage's own program."""
    states = replace(alike.states, job=job) if alike else rank_states(job, program, topology)
    here = on_device(job, states, topology)
    step = RankStep(job=job, program=program, states=here, place=DEVICE, topology=topology, stage=stage)
    if alike:
        return Rank(stage=stage, step=step, states=states, lying=alike.lying)
    lying = (*lying_entries(job, gpu, topology, states), *engine_entries(program, gpu, DEVICE))
    return Rank(stage=stage, step=step, states=states, lying=lying)


def on_device(job: Job, states: RankStates, topology: Topology) -> RankStates:
    """With an offloaded optimizer what updates a rank's share is on the host, and so are its gradients, except those
    that ZeRO-1 leaves whole until the last micro-batch (stage_1_and_2.py reduce_ready_partitions_and_remove_grads)."""
    if not offloads_optimizer(job):
        return states
    return replace(states, params=Params(), gradients=states.gradients if topology.strategy == "zero1" else Params())


def lying_entries(job: Job, gpu: Gpu | None, topology: Topology, states: RankStates) -> list[Entry]:
    """States and buffers on the GPU."""
    entries: list[Entry] = []
    if not offloads_params(job):
        entries += weight_entries(States(params=states.weights, job=job), DEVICE)
    if not offloads_optimizer(job):
        entries += [*extra_weight_entries(states, DEVICE), *optimizer_entries(states, DEVICE)]
    entries += [*statistics_entry(states, DEVICE), *ema_entries(states, DEVICE)]
    entries += buffer_entries(job, states, topology, DEVICE)
    return [*entries, *workspace_entries(job, gpu, DEVICE)]


def _made(rank: Rank, streams: Streams) -> Iterator[Entry]:
    lines = rank.step.lines(*streams)
    texts = dict(describe_activations(rank.step.program, rank.step.job))
    for line in lines:
        line.formula = line.formula or texts.get(line.component, "")
    yield from entries_of(lines)


def _ledger(rank: Rank, others: tuple[Entry, ...], replayed: Replayed, gpu: Gpu | None) -> Ledger:
    job, topology = rank.step.job, rank.step.topology
    slack = allocator_slack(replayed)
    if loads_whole(job, topology):  # and empties the cache when it has been partitioned (zero/utils.py defragment)
        slack = [replace(entry, phases=PHASES[1:]) for entry in slack]
        slack.append(loading_entry(rank.loaded_bytes, rank.lying, DEVICE))
    entries = (*rank.lying, *others, *slack)
    ledger = Ledger(entries=cut_to_phases(entries, job_phases(job)), top_level=Level.PROCESS if gpu else Level.RESERVED)
    ledger.check()
    return ledger


def _replayed(
    rank: Rank, streams: Streams, extra: Beside, gpu: Gpu | None, outside_bytes: int, most_bytes: int | None
) -> Replayed:
    """`most_bytes`: what must do, if the card is all that matters."""
    step, states = rank.step, on_device(rank.step.job, rank.states, rank.step.topology)
    script = rank_script(step, states, step.topology, rank.lying, streams, extra.resident, gpu)
    script = played_with(script, extra, DEVICE)
    capacity = gpu.total_bytes - outside_bytes if gpu and gpu.total_bytes else None
    replayed = replay_rank(script, capacity_bytes=capacity, conf=step.job.alloc_conf, most_bytes=most_bytes)
    if most_bytes is not None or not replayed.out_of_memory:
        return replayed
    return replay_rank(script, capacity_bytes=None, conf=step.job.alloc_conf)


def _whole_model(job: Job, config: Config, gpu: Gpu | None) -> States:
    """All parameters of the model, for what loading and saving move, and for its name plate."""
    own = job.framework == "megatron" and config.model_type == "gpt2" and config.data.get("num_experts")
    framework = "plain" if job.framework == "megatron" and not own else job.framework
    alone = replace(job, gpus=1, tp=1, pp=1, cp=1, ep=1, strategy=None, offload="none", framework=framework,
                    recompute=(), offload_modules=())  # fmt: skip
    return States(params=unique(record_on_one_gpu(alone, config, gpu, Sizes(batch=1, seq=16)).params()), job=job)


def _summary(source: ModelSource, config: Config, whole: States, program: Program) -> ModelSummary:
    return ModelSummary(
        name=source.name, params_total=whole.params.numel,
        params_trainable=whole.trained.numel, family=config.model_type,
        num_layers=sum(placed.section.is_block for placed in program.placed),
    )  # fmt: skip


def _rank_peak(topology: Topology, stage: int, peak: int) -> RankPeak:
    name = f"pipeline stage {stage}" if topology.pp > 1 else "every rank"
    return RankPeak(name=name, ranks=topology.gpus // topology.pp, allocated_bytes=peak)


def _how(job: Job, topology: Topology) -> list[str]:
    texts = []
    if topology.pp > 1:
        texts.append(f"schedule {job.schedule}, {job.accumulate} micro-batches per step")
    if topology.tp > 1:
        texts.append(
            "tensor parallelism as Megatron divides: columns of qkv and gate/up, rows of the outputs, vocabulary"
        )
        if version(job.torch_version) < AVOIDED_FROM and topology.strategy == "fsdp2":
            texts.append(
                "TORCH_NCCL_AVOID_RECORD_STREAMS=1; without it torch before 2.8 frees tensors of tensor-parallel "
                "collectives only when the GPU has caught up with the host, and much more may be reserved"
            )
    return texts
