"""Job on many GPUs → Forecast of its fullest rank. Start reading the many-GPU engine here.

Divide the world (topology), record one rank's model for each pipeline stage (layout), shard its states (sharding),
weave gathers and reductions into the step (windows), add micro-batches in flight (pipeline), buffers and the host's
side; the fullest stage gets a whole bill, the others their peak.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from vramcast.catalog.gpus import Gpu
from vramcast.engine.assumptions import list_assumptions
from vramcast.engine.bill import (
    Bill,
    Remarks,
    TooLarge,
    allocator_slack,
    count_layers,
    job_phases,
    summarize_model,
)
from vramcast.engine.lines.amounts import Amounts
from vramcast.engine.lines.batch import input_lines
from vramcast.engine.lines.model_buffers import buffers
from vramcast.engine.lines.overheads import workspace_entries
from vramcast.engine.lines.setting import OtherLines, Setting
from vramcast.engine.lines.states import (
    States,
    ema_entries,
    extra_weight_entries,
    optimizer_entries,
    unique,
    weight_entries,
)
from vramcast.engine.lines.training_step import (
    NEXT,
    Step,
    StepBill,
    describe_activations,
    entries_of,
)
from vramcast.engine.parallel.comm_buffers import (
    buffer_entries,
    is_bucket_view,
    least_left,
    loading_entry,
    loads_whole,
    outside_entries,
    statistics_entry,
)
from vramcast.engine.parallel.companions import RankSetting, rank_companions
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
    chunks_in_flight,
    forward_bytes,
    in_flight_change,
    kept_bytes,
    overlap_change,
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
from vramcast.engine.parallel.rank_replay import RankScript, replay_rank
from vramcast.engine.parallel.rank_script import Streams, rank_script
from vramcast.engine.parallel.sharding import AtRest, RankStates, count_states, rank_states
from vramcast.engine.parallel.strategies import strategy_changes
from vramcast.engine.parallel.topology import Topology, check_model, hints, topology_of
from vramcast.engine.parallel.transformer_engine import engine_entries, engine_texts
from vramcast.engine.recording.attention_copies import lay_out
from vramcast.engine.recording.record import DEVICE, add_loss_to, record_on_one_gpu, sizes_of
from vramcast.engine.recording.sequence_limits import check_positions
from vramcast.engine.recording.shared_casts import share_casts
from vramcast.engine.replay.extras import played_with
from vramcast.engine.replay.run import Replayed
from vramcast.engine.stream.checkpointing import recompute_rule, stashed_inputs
from vramcast.engine.stream.fold import peak_by_phase
from vramcast.engine.stream.timeline import Mode, PhasePeak
from vramcast.errors import UnsupportedError
from vramcast.forecast import Forecast, RankPeak
from vramcast.job import Job
from vramcast.ledger import HOST, NEXT_STEP, PHASES, STEP, Category, Entry, Level
from vramcast.models.families import own_targets, record
from vramcast.models.params import Params
from vramcast.models.read.config import Config
from vramcast.models.read.source import ModelSource
from vramcast.models.record.dims import Number, choose, maximum
from vramcast.models.record.program import Program, Sizes
from vramcast.setup import Setup, resolve
from vramcast.setup.records import Offload

ONLY_PARAMETERS = "only parameters are known: activations and gathered layers are not included"
AVOIDED_FROM = (
    2,
    8,
)  # torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp: no record_stream for collectives any more


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStep(Step):
    """One rank's step: the stage's program with what the strategy and the pipeline do to it."""

    topology: Topology
    stage: int = 0

    @property
    def accumulates_apart(self) -> bool:
        """Gradients go into a buffer that exists from the start: main_grad, ZeRO's partitions, DDP's views."""
        in_buffer = self.topology.strategy in ("zero2", "zero3") or is_bucket_view(
            self.setup.parallel, self.topology
        )
        return in_buffer or self.states.recipe.main_gradients

    def mode(self, *, fresh: bool) -> Mode:
        plain = Step.mode(self, fresh=fresh)
        sharded = self.topology.strategy in ("fsdp1", "fsdp2") and self.topology.shard > 1
        window = strategy_changes(self.setup, self.program, self.topology, fresh=fresh)
        stays = not fresh and self.setup.data.accumulate == 2  # the first of two micro-batches
        added = (
            self.reduces_last and self.topology.strategy == "fsdp2" and not stays
        )  # FSDP1 joins them first
        fresh_grads = not added if sharded else plain.fresh_grads
        mode = replace(plain, fresh_grads=fresh_grads, changes=(*plain.changes, *window))
        others = self.others()
        if self.setup.experts.overlap and self.setup.data.accumulate > 1:
            mode = replace(
                mode, changes=(*mode.changes, overlap_change(forward_bytes(self.program, mode)))
            )
        if not others:
            return mode
        each = (
            kept_bytes(self.setup.versions, self.program, mode)
            // self.setup.parallel.virtual_stages
        )
        return replace(mode, changes=(*mode.changes, in_flight_change(others, each)))

    @property
    def gradients_leave(self) -> bool:
        """With the optimizer on the host, FSDP's go there as soon as they are reduced."""
        sharded = self.topology.strategy in ("fsdp1", "fsdp2") and self.topology.shard > 1
        return sharded and offloads_optimizer(self.setup.offload) and not self.reduces_last

    @property
    def reduces_last(self) -> bool:
        """Between micro-batches there are whole gradients (see `windows`); the rank's shares come with the last one."""
        sharded = self.topology.strategy in ("fsdp1", "fsdp2") and self.topology.shard > 1
        return sharded and accumulates_unsharded(self.setup)

    @property
    def finds_gradients(self) -> bool:
        """Are there gradients that a later micro-batch's are added to?"""
        return self.setup.data.accumulate > 1 and not self.reduces_last

    @property
    def holds_gradients(self) -> bool:
        """Do gradients lie there in every pass?"""
        return self.accumulates_apart or self.finds_gradients

    def _accumulating(
        self, bill: StepBill, gradients: Amounts, first: tuple[str, ...], later: list[PhasePeak]
    ) -> None:
        """Where gradients are reduced last, `later` is a micro-batch before the last, without the rank's shares."""
        if not self.reduces_last:
            return Step._accumulating(self, bill, gradients, first, later)
        for peak in later:
            for phase in (
                *(name for name in first if name == peak.phase),
                NEXT.get(peak.phase, peak.phase),
            ):
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
        rows = max(
            (sum(made) for made in copied_rows(self.setup.optimizer, self.states.tables)), default=0
        )
        for phase in (STEP, NEXT_STEP):
            if rows > line.by_phase.get(phase, 0):
                line.by_phase[phase], line.formula = rows, "the rank's rows of a whole gradient"
        return line

    def others(self) -> int:
        """Passes through a chunk other than those of the micro-batch that is played, which goes through all chunks."""
        return max(
            chunks_in_flight(self.setup, self.topology, self.stage)
            - self.setup.parallel.virtual_stages,
            0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """All that a rank of one pipeline stage holds, before the allocator."""

    stage: int
    step: RankStep
    states: RankStates
    persistent: tuple[Entry, ...]

    def passes(self) -> dict[str, Number]:
        """The largest sum of what the step makes, by phase."""
        last = self._passes(fresh=not self.step.finds_gradients)
        if not self.step.reduces_last:
            return last
        before = self._passes(fresh=False)
        return {phase: maximum(peak, before.get(phase, 0)) for phase, peak in last.items()}

    def _passes(self, *, fresh: bool) -> dict[str, Number]:
        step = self.step
        with_two = is_megatron_fsdp(step.setup.versions, step.topology)  # units gathered ahead
        if step.topology.strategy == "zero3" and not with_two:
            return peak_by_phase(step.program, step.mode(fresh=fresh))
        farther = stashed_inputs(step.setup) + with_two
        return phase_peaks_of(
            step.program,
            recompute_rule(step.setup.checkpointing),
            lambda short: replace(step, program=short).mode(fresh=fresh),
            farther,
        )

    def peak(self) -> Number:
        """The largest allocated sum once optimizer states exist."""
        return self.at_rest().peak(self.passes(), with_gradients=self.step.holds_gradients)

    def at_rest(self) -> AtRest:
        here = [
            entry
            for entry in self.persistent
            if entry.place == DEVICE and entry.level == Level.ALLOCATED
        ]
        states = self.step.states
        assert isinstance(states, RankStates)
        return AtRest(
            by_phase={
                phase: sum(entry.nbytes for entry in here if later in entry.phases)
                for phase, later in (*NEXT.items(), (STEP, NEXT_STEP))
            },
            gradient_bytes=states.gradient_bytes,
            temporary_bytes=states.temporary_bytes,
        )

    @property
    def loaded_bytes(self) -> int:
        """Of weights that are there whole before they are partitioned."""
        whole = loads_whole(self.step.setup.versions, self.step.topology)
        return unique(self.step.program.params()).nbytes if whole else 0


def forecast_ranks(
    job: Job,
    gpu: Gpu | None,
    source: ModelSource,
    config: Config,
    *,
    remarks: Callable[[Program], Remarks],
    must_fit: bool,
) -> Forecast | TooLarge:
    """The bill of the fullest rank. `must_fit`: none is made where the card runs out."""
    setup = resolve(job)
    topology = topology_of(setup)
    check_model(topology, config, setup)
    check_supported(setup)
    sizes = sizes_of(setup.data, config)
    program = rank_program(setup, config, gpu, topology, sizes)
    check_positions(program, config)
    ranks = [rank_of_stage(setup, gpu, topology, program, stage) for stage in range(topology.pp)]
    peaks = [int(rank.peak()) for rank in ranks]
    fullest = ranks[max(range(topology.pp), key=peaks.__getitem__)]
    too_large = TooLarge(asked_bytes=peaks[fullest.stage])
    outside = outside_entries(setup, gpu, topology, DEVICE)
    most = least_left(setup, gpu, topology) if gpu is not None and must_fit else None
    if _exceeds(too_large.asked_bytes, most):
        return too_large
    if _exceeds(fullest.loaded_bytes, most):
        return TooLarge(asked_bytes=fullest.loaded_bytes)
    whole = _whole_model(setup, config, gpu)
    extra = rank_other_lines(setup, config, gpu, topology, fullest, sizes)
    stream = fullest.step.stream()
    streams = (stream, fullest.step.later(stream))
    replayed = _replayed(fullest, streams, extra, gpu, sum(entry.nbytes for entry in outside), most)
    cached = replayed.peak_reserved_bytes - replayed.peak_requested_bytes
    runs_out = most is not None and replayed.out_of_memory
    if runs_out or _exceeds(too_large.asked_bytes + cached, most):
        return TooLarge(asked_bytes=max(too_large.asked_bytes, replayed.peak_requested_bytes))
    entries = (
        *fullest.persistent,
        *_made(fullest, streams),
        *_host_entries(fullest, config, whole, sizes),
        *_of_node(extra, topology),
        *outside,
        *_slack(fullest, replayed),
    )
    said = remarks(program)
    bill = Bill(
        job=job,
        gpu=gpu,
        model=summarize_model(source.name, whole, config.model_type, count_layers(program)),
        entries=entries,
        phases=job_phases(setup),
        remarks=replace(
            said,
            assumptions=(
                *said.assumptions,
                *_layout_texts(setup, topology),
                *engine_texts(setup.versions, topology, program),
                *extra.assumptions,
            ),
            warnings=(*said.warnings, *hints(topology)),
        ),
        nodes=topology.nodes,
    )
    forecast = bill.forecast()
    if extra.resident:
        peaks[fullest.stage] = forecast.ledger.peak(DEVICE).allocated_bytes
    by_stage = (_rank_peak(topology, stage, peak) for stage, peak in enumerate(peaks))
    return replace(forecast, ranks=tuple(by_stage))


def _exceeds(nbytes: int, most: int | None) -> bool:
    """Is this more than the card has left? None: it does not matter."""
    return most is not None and nbytes > most


def _host_entries(rank: Rank, config: Config, whole: States, sizes: Sizes) -> Iterator[Entry]:
    """Host memory of one node."""
    step = rank.step
    setup, topology = step.setup, step.topology
    chunks = setup.parallel.virtual_stages
    yield from node_entries(setup, config, whole, rank.states, topology, sizes)
    yield from offloaded_inputs(setup.checkpointing, step.program, topology)
    yield from offloaded_modules(step.program, topology, chunks + step.others(), chunks)


def rank_other_lines(
    setup: Setup, config: Config, gpu: Gpu | None, topology: Topology, rank: Rank, sizes: Sizes
) -> OtherLines:
    program = rank.step.program
    setting = Setting(
        setup=setup,
        config=rank_config(config, topology, setup),
        gpu=gpu,
        program=program,
        states=rank.states,
        sizes=rank_sizes(sizes, topology, split_of(setup, topology)),
        device=DEVICE,
    )
    units, mode = tuple(units_of(setup, program, topology)), rank.step.mode(fresh=True)
    rank_setting = RankSetting(
        setting=setting,
        whole_config=config,
        topology=topology,
        states=rank.states,
        units=units,
        mode=mode,
    )
    return input_lines(setting) + buffers(setting) + rank_companions(rank_setting)


def _of_node(extra: OtherLines, topology: Topology) -> Iterator[Entry]:
    """Lines of the rank; a companion on the host is there once for each rank of the node."""
    for entry in entries_of(extra.lines):
        several = entry.place == HOST and entry.category == Category.COMPANION
        yield replace(entry, nbytes=entry.nbytes * topology.ranks_per_node) if several else entry


def forecast_counts(
    job: Job, whole: States, gpu: Gpu | None, name: str, notes: tuple[str, ...]
) -> Forecast:
    """A rank's states where only a number of parameters is known: a lower bound."""
    setup, topology = whole.setup, topology_of(whole.setup)
    states = count_states(setup, whole.params, topology)
    here = on_device(setup.offload, states, topology)
    gradients = Amounts(
        category=Category.GRADIENTS,
        component="of trained parameters",
        place=DEVICE,
        source=states.recipe.whose,
    )
    for phase in PHASES[PHASES.index(STEP) :]:
        gradients.add(phase, here.gradient_bytes)
    bill = Bill(
        job=job,
        gpu=gpu,
        model=summarize_model(name, whole),
        entries=(*persistent_entries(setup, gpu, topology, states), *gradients.entries()),
        phases=job_phases(setup),
        remarks=Remarks(
            assumptions=(*list_assumptions(job, None), *_layout_texts(setup, topology)),
            warnings=(*notes, *hints(topology), ONLY_PARAMETERS),
        ),
        knows_activations=False,
        nodes=topology.nodes,
    )
    return bill.forecast()


def check_supported(setup: Setup) -> None:
    if setup.loop.gate != "plain" or setup.editing.parameters:
        raise UnsupportedError(
            "a special loop or an edit is modelled on one GPU only: leave out gpus"
        )


def record_rank(setup: Setup, config: Config, gpu: Gpu | None, sizes: Sizes) -> Program:
    """One rank's whole model of a divided job: what a tensor that ran out of memory there looks like."""
    topology = topology_of(setup)
    check_model(topology, config, setup)
    return rank_program(setup, config, gpu, topology, sizes)


def rank_peaks(setup: Setup, config: Config, gpu: Gpu | None, sizes: Sizes) -> Number:
    """The fullest rank's peak for number-like sizes."""
    topology = topology_of(setup)
    check_model(topology, config, setup)
    program = rank_program(setup, config, gpu, topology, sizes)
    check_positions(program, config)
    if program.tape.points_of_one_sample is not None:
        one, several = (
            rank_peaks(setup, config, gpu, replace(sizes, one_sample=side))
            for side in (True, False)
        )
        return choose(program.tape.points_of_one_sample, one, several)
    ranks = (rank_of_stage(setup, gpu, topology, program, stage) for stage in range(topology.pp))
    return functools.reduce(maximum, (rank.peak() for rank in ranks))


def rank_program(
    setup: Setup, config: Config, gpu: Gpu | None, topology: Topology, sizes: Sizes
) -> Program:
    """One tensor- and context-parallel rank's whole model, loss included."""
    return divided_program(
        setup, config, gpu, topology, rank_sizes(sizes, topology, split_of(setup, topology))
    )


def divided_program(
    setup: Setup, config: Config, gpu: Gpu | None, topology: Topology, sizes: Sizes
) -> Program:
    """The same for a sequence that is divided already."""
    regime = rank_regime(setup, config, gpu, topology)
    program = record(rank_config(config, topology, setup), regime, sizes)
    if setup.adapter.kind is not None and regime.code != "transformers":
        own_targets(regime.code)  # raises where the framework's own models have none
    lay_out(program, setup, config)
    share_casts(program, setup)
    add_loss_to(program, setup)
    return program


def rank_of_stage(
    setup: Setup,
    gpu: Gpu | None,
    topology: Topology,
    program: Program,
    stage: int,
    known: Rank | None = None,
) -> Rank:
    """`known`: a rank with the same persistent memory, where there is one."""
    if topology.pp > 1:
        blocks = sum(placed.section.is_block for placed in program.sections)
        layers = layers_of_stages(blocks, topology.pp * setup.parallel.virtual_stages, setup)
        program = stage_program(program, layers, stages_of_rank(setup.parallel, topology, stage))
    return rank_of_program(setup, gpu, topology, program, stage, known)


def rank_of_program(
    setup: Setup,
    gpu: Gpu | None,
    topology: Topology,
    program: Program,
    stage: int = 0,
    known: Rank | None = None,
) -> Rank:
    """Of a stage's own program."""
    states = replace(known.states, setup=setup) if known else rank_states(setup, program, topology)
    here = on_device(setup.offload, states, topology)
    step = RankStep(
        setup=setup, program=program, states=here, place=DEVICE, topology=topology, stage=stage
    )
    if known:
        return Rank(stage=stage, step=step, states=states, persistent=known.persistent)
    persistent = (
        *persistent_entries(setup, gpu, topology, states),
        *engine_entries(program, gpu, DEVICE),
    )
    return Rank(stage=stage, step=step, states=states, persistent=persistent)


def on_device(offload: Offload, states: RankStates, topology: Topology) -> RankStates:
    """With an offloaded optimizer what updates a rank's share is on the host, and so are its gradients, except those
    that ZeRO-1 leaves whole until the last micro-batch (stage_1_and_2.py reduce_ready_partitions_and_remove_grads)."""
    if not offloads_optimizer(offload):
        return states
    return replace(
        states,
        params=Params(),
        gradients=states.gradients if topology.strategy == "zero1" else Params(),
    )


def persistent_entries(
    setup: Setup, gpu: Gpu | None, topology: Topology, states: RankStates
) -> list[Entry]:
    """States and buffers on the GPU."""
    entries: list[Entry] = []
    if not offloads_params(setup.offload):
        entries += weight_entries(States(params=states.weights, setup=setup), DEVICE)
    if not offloads_optimizer(setup.offload):
        entries += [*extra_weight_entries(states, DEVICE), *optimizer_entries(states, DEVICE)]
    entries += [*statistics_entry(states, DEVICE), *ema_entries(states, DEVICE)]
    entries += buffer_entries(setup, states, topology, DEVICE)
    return [*entries, *workspace_entries(setup.versions, gpu, DEVICE)]


def _made(rank: Rank, streams: Streams) -> Iterator[Entry]:
    lines = rank.step.lines(*streams)
    texts = dict(describe_activations(rank.step.program, rank.step.setup.checkpointing))
    for line in lines:
        line.formula = line.formula or texts.get(line.component, "")
    yield from entries_of(lines)


def _slack(rank: Rank, replayed: Replayed) -> list[Entry]:
    """What the allocator adds. Where the whole model is loaded first, the cache is emptied once it has been
    partitioned (DeepSpeed zero/utils.py defragment)."""
    slack = allocator_slack(replayed)
    if not loads_whole(rank.step.setup.versions, rank.step.topology):
        return slack
    later = [replace(entry, phases=PHASES[1:]) for entry in slack]
    return [*later, loading_entry(rank.loaded_bytes, rank.persistent, DEVICE)]


def _replayed(
    rank: Rank,
    streams: Streams,
    extra: OtherLines,
    gpu: Gpu | None,
    outside_bytes: int,
    most_bytes: int | None,
) -> Replayed:
    """`most_bytes`: what must do, if the card is all that matters."""
    step, script = rank.step, _script_of(rank, streams, extra, gpu)
    capacity = gpu.total_bytes - outside_bytes if gpu and gpu.total_bytes else None
    replayed = replay_rank(
        script, capacity_bytes=capacity, conf=step.setup.alloc_conf, most_bytes=most_bytes
    )
    if most_bytes is not None or not replayed.out_of_memory:
        return replayed
    return replay_rank(script, capacity_bytes=None, conf=step.setup.alloc_conf)


def _script_of(rank: Rank, streams: Streams, extra: OtherLines, gpu: Gpu | None) -> RankScript:
    step, states = rank.step, on_device(rank.step.setup.offload, rank.states, rank.step.topology)
    script = rank_script(step, states, step.topology, rank.persistent, streams, extra.resident, gpu)
    return played_with(script, extra, DEVICE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedRank:
    """The fullest rank and what its allocator is asked for."""

    rank: Rank
    extra: OtherLines
    script: RankScript
    outside_bytes: int


def play_of_fullest_rank(setup: Setup, gpu: Gpu | None, config: Config) -> PlayedRank:
    """What `forecast_ranks` replays, for a timeline."""
    topology, sizes = topology_of(setup), sizes_of(setup.data, config)
    fullest = fullest_rank(setup, gpu, config)
    extra = rank_other_lines(setup, config, gpu, topology, fullest, sizes)
    stream = fullest.step.stream()
    streams = (stream, fullest.step.later(stream))
    outside = outside_entries(setup, gpu, topology, DEVICE)
    return PlayedRank(
        rank=fullest,
        extra=extra,
        script=_script_of(fullest, streams, extra, gpu),
        outside_bytes=sum(entry.nbytes for entry in outside),
    )


def fullest_rank(setup: Setup, gpu: Gpu | None, config: Config) -> Rank:
    topology = topology_of(setup)
    check_model(topology, config, setup)
    check_supported(setup)
    program = rank_program(setup, config, gpu, topology, sizes_of(setup.data, config))
    check_positions(program, config)
    ranks = [rank_of_stage(setup, gpu, topology, program, stage) for stage in range(topology.pp)]
    return max(ranks, key=lambda rank: int(rank.peak()))


def _whole_model(setup: Setup, config: Config, gpu: Gpu | None) -> States:
    """All parameters of the model, for what loading and saving move, and for its name plate."""
    own = (
        setup.versions.framework == "megatron"
        and config.model_type == "gpt2"
        and config.data.get("num_experts")
    )
    framework = setup.versions.framework
    if framework == "megatron" and not own:
        framework = "plain"
    alone = replace(
        setup,
        parallel=replace(setup.parallel, gpus=1, tp=1, pp=1, cp=1, strategy=None),
        experts=replace(setup.experts, ep=1),
        offload=replace(setup.offload, what="none", modules=()),
        kernels=replace(setup.kernels, recompute=()),
        versions=replace(setup.versions, framework=framework),
    )
    return States(
        params=unique(record_on_one_gpu(alone, config, gpu, Sizes(batch=1, seq=16)).params()),
        setup=setup,
    )


def _rank_peak(topology: Topology, stage: int, peak: int) -> RankPeak:
    name = f"pipeline stage {stage}" if topology.pp > 1 else "every rank"
    return RankPeak(name=name, ranks=topology.gpus // topology.pp, allocated_bytes=peak)


def _layout_texts(setup: Setup, topology: Topology) -> list[str]:
    """How the job is spread over GPUs, in words."""
    texts = [f"{topology.text}; {topology.strategy}"]
    if topology.pp > 1:
        texts.append(
            f"schedule {setup.parallel.schedule}, {setup.data.accumulate} micro-batches per step"
        )
    if topology.tp > 1:
        texts.append(
            "tensor parallelism as Megatron divides: columns of qkv and gate/up, rows of the outputs, vocabulary"
        )
        if setup.versions.torch < AVOIDED_FROM and topology.strategy == "fsdp2":
            texts.append(
                "TORCH_NCCL_AVOID_RECORD_STREAMS=1; without it torch before 2.8 frees tensors of tensor-parallel "
                "collectives only when the GPU has caught up with the host, and much more may be reserved"
            )
    return texts
