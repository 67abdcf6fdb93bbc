"""Job → Forecast. Start reading the engine here.

1. `resolve` decides what the job left open (see `setup`).
2. `read_model` finds the model's config.
3. One of four ways is chosen, here and nowhere else: a bare count of parameters, one GPU, many GPUs, model editing.
4. Each way makes entries (states, tensors of a step, companions, overheads) and replays them in the allocator model,
   which gives what torch would reserve. `bill` assembles the result.

No torch, no network.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from vramcast.catalog.gpus import Gpu, find_gpu
from vramcast.engine.assumptions import list_assumptions
from vramcast.engine.bill import (
    Bill,
    Remarks,
    TooLarge,
    allocator_slack,
    count_layers,
    cut_to_phases,
    job_phases,
    summarize_model,
)
from vramcast.engine.lines.batch import batch_sizes
from vramcast.engine.lines.growth import lengths, scaling
from vramcast.engine.lines.host import host_side
from vramcast.engine.lines.overheads import context_entries, workspace_entries, workspaces
from vramcast.engine.lines.setting import OtherLines, Setting
from vramcast.engine.lines.states import States, from_count, state_entries, unique
from vramcast.engine.lines.training_step import Step, describe_activations, entries_of
from vramcast.engine.no_effect import (
    kernels_of,
    needless_for_model,
    needless_options,
    needless_without_layers,
)
from vramcast.engine.program import record_job
from vramcast.engine.recording.record import DEVICE, is_divided, plain, sizes_of
from vramcast.engine.replay.card import replayed_on_card, room_on
from vramcast.engine.replay.drafts import Draft, Drafts
from vramcast.engine.replay.run import Replayed
from vramcast.engine.stream.gate_loops import held_between
from vramcast.errors import InputError, UnsupportedError
from vramcast.forecast import Forecast, Scaling
from vramcast.job import Job
from vramcast.ledger import PHASES, STEP, Category, Entry, Ledger, Level, Origin
from vramcast.models.read.config import Config
from vramcast.models.read.source import ModelSource
from vramcast.models.record.program import Program
from vramcast.setup import Setup, complete, model_of, resolve
from vramcast.setup.precision import card_warnings
from vramcast.setup.profiles import PROFILES
from vramcast.setup.records import Versions
from vramcast.setup.tasks import ONE_PASS, has_rl_phases, with_task
from vramcast.units import format_bytes, format_gib

# Options without effect if only the number of parameters is known, and their default values.
NEED_LAYERS = {
    "lora_rank": None,
    "quantize": "none",
    "loop": "plain",
    "reference": "none",
    "reward": "none",
    "critic": "none",
    "teacher": "none",
    "rollout_tokens": None,
    "edit": (),
    "sub_device": None,
    "resume": "none",
    "evaluate": False,
}
ONLY_PARAMETERS = (
    "only the parameters are known: activations, logits, temporaries and overheads are not included"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A job with its model and its card looked up."""

    said: Job
    job: Job  # with the framework's defaults filled in
    setup: Setup
    gpu: Gpu | None
    source: ModelSource
    config: Config

    def remarks(self, program: Program, assumptions: tuple[str, ...] = ()) -> Remarks:
        """What was assumed, and what the user should know. `program`: the model as the job runs it."""
        decided = list_assumptions(self.said, self.config, kernels_of(program))
        return Remarks(
            assumptions=(*decided, *assumptions),
            warnings=(
                *self.source.notes,
                *self.source.warnings,
                *card_warnings(self.setup.precision, self.gpu),
                *needless_options(self.said, self.job),
                *needless_for_model(self.job, program, self.config, self.gpu),
            ),
        )


def estimate(job: Job, *, with_scaling: bool = True, drafts: Drafts | None = None) -> Forecast:
    """The memory of a job. `with_scaling`: also how it grows with the length, which needs further recordings.
    `drafts`: recordings shared with similar jobs."""
    if job.engine is not None:
        from vramcast.engine.serving.estimate import estimate_serving

        return estimate_serving(job)
    if job.task == "generate":
        from vramcast.engine.generation import estimate_generation

        return estimate_generation(job)
    if job.task in ONE_PASS:
        from vramcast.engine.one_pass import estimate_pass

        return estimate_pass(job)
    if has_rl_phases(job):
        return _estimate_rl(job)
    if _leaves_strategy_open(job):
        return _estimate_first_that_fits(job, with_scaling=with_scaling)
    said, job = job, complete(job)
    setup = resolve(job)
    gpu = find_gpu(job.gpu) if job.gpu else None
    if job.params is not None:
        name = f"{job.params:,} parameters"
        return _estimate_states(said, job, from_count(job.params, setup), gpu, name, ())
    assert job.model is not None
    source = model_of(job)
    if source.config is None or not source.is_described:
        states = States(params=unique(source.bare_table()), setup=setup)
        notes = (*source.notes, *source.warnings)
        return _estimate_states(said, job, states, gpu, source.name, notes)
    question = Question(
        said=said, job=job, setup=setup, gpu=gpu, source=source, config=source.config
    )
    if is_divided(setup):
        return _estimate_ranks(question)
    if setup.editing.parameters:
        return _estimate_edit(question)
    draft = (drafts or Drafts(source.config, gpu)).of(setup)
    forecast = _bill_one_gpu(question, draft, replayed_on_card(draft.script, gpu, setup))
    if not with_scaling:
        return forecast
    return replace(forecast, scaling=_scaling(job, source.config, gpu))


def _estimate_rl(job: Job) -> Forecast:
    """Generate, score and update on the same cards; the update decides how many of them share a copy."""
    from vramcast.engine.rl_phases import Parts, critic_job, update_job, with_rl_phases

    if job.model is None:
        raise InputError("rollouts and a critic need a model, not a count of parameters")
    job = with_task(job)
    update = estimate(update_job(job), with_scaling=False)
    chosen = job if update.job is None else replace(job, strategy=update.job.strategy)
    second, critic, notes = critic_job(chosen), None, update.notes
    try:
        critic = None if second is None else estimate(second, with_scaling=False)
    except UnsupportedError as error:
        notes = (*notes, f"the critic is not counted: {error}")
    gpu = find_gpu(job.gpu) if job.gpu else None
    update = replace(update, notes=notes)
    return with_rl_phases(Parts(job=chosen, update=update, critic=critic, gpu=gpu))


def _leaves_strategy_open(job: Job) -> bool:
    """Are there several copies of the model, and nothing is said about how they share the work?"""
    copies = job.gpus // (job.tp * job.pp)
    return job.strategy is None and copies > 1 and job.model is not None


def _estimate_first_that_fits(job: Job, *, with_scaling: bool) -> Forecast:
    """The framework's strategies in their order; the last one if none fits."""
    strategies = PROFILES[job.framework].strategies
    for strategy in strategies:
        forecast = estimate(replace(job, strategy=strategy), with_scaling=with_scaling)
        if forecast.verdict().fits is not False:
            break
    order = ", ".join(strategies)
    text = f"strategy {strategy} (not given): the first of {order} that fits"
    if len(strategies) == 1:
        text = f"strategy {strategy} (not given), as {job.framework} does"
    elif forecast.verdict().fits is False:
        text = f"strategy {strategy} (not given): none of {order} fits"
    return replace(forecast, assumptions=(text, *forecast.assumptions))


def estimate_if_it_may_fit(
    job: Job, at_least_bytes: int = 0, drafts: Drafts | None = None
) -> Forecast | TooLarge:
    """For searches: no breakdown is made if the card runs out of memory, or if the upper estimate of the CUDA context
    leaves too little of it. Model and card must be known. `at_least_bytes`: a lower bound of the peak."""
    if has_rl_phases(job):
        whole = estimate(job, with_scaling=False)
        if whole.verdict().fits is False:
            return TooLarge(asked_bytes=whole.verdict().peak.allocated_bytes)
        return whole
    said, job = job, complete(job)
    assert job.gpu is not None
    assert job.model is not None
    setup, gpu, source = resolve(job), find_gpu(job.gpu), model_of(job)
    assert source.config is not None
    question = Question(
        said=said, job=job, setup=setup, gpu=gpu, source=source, config=source.config
    )
    if is_divided(setup):
        from vramcast.engine.parallel.ranks import forecast_ranks

        return forecast_ranks(
            job, gpu, source, source.config, remarks=question.remarks, must_fit=True
        )
    if setup.editing.parameters:
        return _bill_edit(question, must_fit=True)
    most = least_left(setup.versions, gpu)
    if at_least_bytes > most:
        return TooLarge(asked_bytes=at_least_bytes)
    drafts = drafts or Drafts(source.config, gpu)
    draft, replayed = drafts.replayed(
        setup, capacity_bytes=room_on(setup.versions, gpu), most_bytes=most
    )
    if replayed.out_of_memory:
        return TooLarge(asked_bytes=max(at_least_bytes, replayed.peak_requested_bytes))
    return _bill_one_gpu(question, draft, replayed)


def least_left(versions: Versions, gpu: Gpu) -> int:
    """Bytes of a card that are left for tensors if the CUDA context reaches its upper estimate. The safe limit counts
    workspaces by their figure: counted by their upper estimate here, jobs that fit would be refused."""
    assumed = context_entries(versions, gpu, DEVICE)
    ranges = [(entry.nbytes, entry.range_bytes) for entry in assumed if entry.range_bytes]
    return room_on(versions, gpu) - sum(upper - nbytes for nbytes, (_, upper) in ranges)


def context_bytes(job: Job, gpu: Gpu | None) -> int:
    """Bytes of the card that the CUDA context takes before anything is allocated."""
    entries = context_entries(resolve(job).versions, gpu, DEVICE)
    return sum(entry.nbytes for entry in entries)


def reserved_bytes(job: Job, gpu: Gpu | None, drafts: Drafts) -> int:
    """Bytes that torch reserves at the peak of a job on one GPU."""
    setup = resolve(job)
    return replayed_on_card(drafts.of(setup).script, gpu, setup).peak_reserved_bytes


def record_model(job: Job, config: Config, gpu: Gpu | None) -> Program:
    """The model as this job runs it at its own batch and length, loss included."""
    setup = resolve(job)
    return record_job(setup, config, gpu, sizes_of(setup.data, config))


def _estimate_states(
    said: Job, job: Job, states: States, gpu: Gpu | None, name: str, notes: tuple[str, ...]
) -> Forecast:
    """Weights, gradients and states of a model whose architecture is unknown: a lower bound."""
    asked = [each for each, value in NEED_LAYERS.items() if getattr(job, each) != value]
    if asked:
        names = ", ".join(each.replace("_", "-") for each in asked)
        if job.params is not None:
            raise UnsupportedError(
                f"{names} needs the model's layers: give a model, not a count of parameters"
            )
        raise UnsupportedError(
            f"{names} needs the model's layers, which the formulas do not describe for {name}: "
            "run its script with `vramcast trace`, or leave it out for weights, gradients and optimizer states alone"
        )
    if is_divided(states.setup):
        from vramcast.engine.parallel.ranks import forecast_counts

        return forecast_counts(job, states, gpu, name, notes)
    gradients = Entry(
        category=Category.GRADIENTS,
        component="of trained parameters",
        place=DEVICE,
        phases=PHASES[PHASES.index(STEP) :],
        nbytes=states.gradient_bytes,
        origin=Origin.FORMULA,
        source=states.recipe.whose,
        formula=f"{states.trained.numel:,} parameters",
    )
    bill = Bill(
        job=job,
        gpu=gpu,
        model=summarize_model(name, states),
        entries=(*state_entries(states, DEVICE), gradients),
        phases=job_phases(states.setup),
        remarks=Remarks(
            assumptions=list_assumptions(job, None),
            warnings=(
                *notes,
                ONLY_PARAMETERS,
                *needless_options(said, job),
                *needless_without_layers(said),
            ),
        ),
        knows_activations=False,
    )
    return bill.forecast()


def _estimate_ranks(question: Question) -> Forecast:
    from vramcast.engine.parallel.ranks import forecast_ranks

    if question.setup.editing.sub_device is not None:
        raise UnsupportedError(
            "sub-device is modelled on one GPU only: leave out gpus, or estimate it separately"
        )
    forecast = forecast_ranks(
        question.job,
        question.gpu,
        question.source,
        question.config,
        remarks=question.remarks,
        must_fit=False,
    )
    assert isinstance(forecast, Forecast)
    return forecast


def _estimate_edit(question: Question) -> Forecast:
    forecast = _bill_edit(question, must_fit=False)
    assert isinstance(forecast, Forecast)
    return forecast


def _bill_one_gpu(question: Question, draft: Draft, replayed: Replayed) -> Forecast:
    """Entries of a step's tensors and of what is allocated all the time, then the allocator's share."""
    setup, gpu, step, extra = question.setup, question.gpu, draft.step, draft.extra
    lines = step.lines(draft.stream, draft.later)
    texts = dict(describe_activations(step.program, setup.checkpointing))
    for line in lines:
        line.formula = line.formula or texts.get(line.component, "")
    entries = [*state_entries(step.states, DEVICE), *entries_of(lines), *entries_of(extra.lines)]
    for device in _devices(extra):
        entries += workspace_entries(setup.versions, gpu, device)
    for device in _devices(extra):
        entries += context_entries(setup.versions, gpu, device)
    entries += host_side(setup, question.config, step.states, draft.setting.sizes)
    bill = Bill(
        job=question.job,
        gpu=gpu,
        model=summarize_model(
            question.source.name,
            step.states,
            question.config.model_type,
            count_layers(step.program),
        ),
        entries=(*entries, *allocator_slack(replayed)),
        phases=job_phases(setup),
        remarks=question.remarks(step.program, extra.assumptions),
    )
    forecast = bill.forecast()
    notes = (*_compare_padding(question.job), *_compare_loops(question.job, step, forecast.ledger))
    return replace(forecast, notes=notes)


def _devices(extra: OtherLines) -> tuple[str, ...]:
    """The training GPU, and those on which companions run."""
    others = (line.place for line in extra.lines if line.place.startswith("cuda"))
    return tuple(dict.fromkeys((DEVICE, *others)))


def _bill_edit(question: Question, *, must_fit: bool) -> Forecast | TooLarge:
    """A model-editing job: it has its own lines and phases, and one or two devices, each with its own allocator."""
    from vramcast.engine.editing.lines import (
        PHASES_OF_EDITING,
        check_edit,
        edit_lines,
        edit_replay,
    )

    setup, config, gpu = question.setup, question.config, question.gpu
    check_edit(setup)
    sizes = sizes_of(setup.data, config)
    program = record_job(setup, config, gpu, sizes)
    states = States(params=unique(program.params()), setup=setup)
    setting = Setting(
        setup=setup,
        config=config,
        gpu=gpu,
        sizes=sizes,
        program=program,
        states=states,
        device=DEVICE,
    )
    extra = edit_lines(setting)
    devices = dict.fromkeys(line.place for line in extra.lines if line.place.startswith("cuda"))
    entries = [*entries_of(extra.lines)]
    for device in devices:
        entries += workspace_entries(setup.versions, gpu, device)
    tensors = Ledger(entries=cut_to_phases(entries, PHASES_OF_EDITING), top_level=Level.ALLOCATED)
    too_large = TooLarge(
        asked_bytes=max(tensors.peak(device).allocated_bytes for device in devices)
    )
    if must_fit and gpu is not None and too_large.asked_bytes > room_on(setup.versions, gpu):
        return too_large
    small = (
        *workspaces(setup.versions, gpu),
        *batch_sizes(program, setup),
    )
    for device in devices:
        script = edit_replay(setting, extra.blocks, device, small)
        replayed = replayed_on_card(script, gpu, setup, card_only=must_fit)
        if must_fit and replayed.out_of_memory:
            return too_large
        entries += [
            *allocator_slack(replayed, device),
            *context_entries(setup.versions, gpu, device),
        ]
    bill = Bill(
        job=question.job,
        gpu=gpu,
        model=summarize_model(
            question.source.name, states, config.model_type, count_layers(program)
        ),
        entries=entries,
        phases=PHASES_OF_EDITING,
        remarks=question.remarks(program, extra.assumptions),
    )
    return bill.forecast()


def _scaling(job: Job, config: Config, gpu: Gpu | None) -> Scaling:
    """How activations grow with the length, from three recordings."""
    setup = resolve(job)
    base, *more = lengths(int(sizes_of(setup.data, config).seq))
    setups = [resolve(at_length(job, seq)) for seq in (base, *more)]
    one, two, three = (
        record_job(setup, config, gpu, plain(sizes_of(other.data, config))) for other in setups
    )
    return scaling(setup, (one, two, three), base)


def at_length(job: Job, seq: int) -> Job:
    """The job with batches of that padded length."""
    return replace(job, seq=seq, longest_seq=None if job.longest_seq is None else seq)


def _compare_padding(job: Job) -> list[str]:
    """The peak comes from the longest batch. Says what a batch of average length would take."""
    if job.longest_seq is None or job.seq is None or job.seq == job.longest_seq:
        return []
    if job.seq > job.longest_seq:
        raise InputError(
            f"seq {job.seq} is the average length and longest-seq {job.longest_seq} the longest one"
        )
    average = estimate(at_length(job, job.seq), with_scaling=False).verdict().peak
    return [
        f"padded to {job.longest_seq} tokens, of which {1 - job.seq / job.longest_seq:.0%} are padding on average; "
        f"batches of {job.seq} tokens would peak at {format_gib(average.allocated_bytes)} allocated ({average.phase})"
    ]


def _compare_loops(job: Job, step: Step, ledger: Ledger) -> list[str]:
    """What a gate's training loop holds between its passes, and its peak, compared with retain-graph."""
    if job.loop in ("plain", "joint"):
        return []
    held = int(held_between(step.program, step.mode(fresh=True)))
    texts = [f"held between the two backward passes: {format_bytes(held)}"]
    if job.loop != "retain-graph":
        other = replace(job, loop="retain-graph")
        retaining = replace(step, setup=resolve(other))
        retained = int(held_between(step.program, retaining.mode(fresh=True)))
        own = ledger.peak(DEVICE).allocated_bytes
        peak = estimate(other, with_scaling=False).verdict().peak.allocated_bytes
        texts.append(
            f"retain-graph would hold {format_bytes(retained)} and peak at {format_gib(peak)} allocated: "
            f"{job.loop} saves {1 - held / retained:.1%} of what is held and {max(1 - own / peak, 0):.1%} of the peak"
        )
    return texts
