"""Job → Forecast. Start reading the engine here.

Read the model, record it under the job's regime, bill what lies there (states), what a step makes (activations, logits,
temporaries), companions and overheads; let the allocator model say what torch would reserve. No torch, no network.
"""

from __future__ import annotations

from dataclasses import replace

from vramcast.catalog.gpus import Gpu, find_gpu
from vramcast.engine.assumptions import list_assumptions
from vramcast.engine.bill import TooLarge, allocator_slack, cut_to_phases, job_phases
from vramcast.engine.editing.lines import PHASES_OF_EDITING, check_edit, edit_lines, edit_replay
from vramcast.engine.lines.batch import batch_values
from vramcast.engine.lines.growth import lengths, scaling
from vramcast.engine.lines.host import host_side
from vramcast.engine.lines.overheads import context_entries, workspace_entries, workspaces
from vramcast.engine.lines.setting import Setting
from vramcast.engine.lines.states import States, from_count, state_entries, unique
from vramcast.engine.lines.training_step import Step, describe_activations, entries_of
from vramcast.engine.program import record_job
from vramcast.engine.recording.precision import card_warnings
from vramcast.engine.recording.record import DEVICE, is_divided, plain, sizes_of
from vramcast.engine.replay.card import (
    replayed_on_card,
    room_on,
)
from vramcast.engine.replay.drafts import Draft, Drafts
from vramcast.engine.replay.run import Replayed
from vramcast.engine.stream.gate_loops import held_between
from vramcast.errors import InputError, UnsupportedError
from vramcast.forecast import Forecast, ModelSummary, Scaling
from vramcast.job import Job
from vramcast.ledger import (
    PHASES,
    STEP,
    Category,
    Entry,
    Ledger,
    Level,
    Origin,
)
from vramcast.models.read.config import Config
from vramcast.models.read.model import read_model
from vramcast.models.read.source import ModelSource
from vramcast.models.record.program import Program
from vramcast.units import format_bytes, format_gib

NEED_LAYERS = {
    "lora_rank": None, "quantize": "none", "loop": "plain", "reference": "none", "reward": "none", "critic": "none",
    "teacher": "none", "rollout_tokens": None, "edit": (), "sub_device": None, "resume": "none", "evaluate": False,
}  # fmt: skip
ONE_GPU = {"sub_device": None}


def estimate(job: Job, *, with_scaling: bool = True, drafts: Drafts | None = None) -> Forecast:
    """`with_scaling`: how it grows with the length, which takes recordings of its own. `drafts`: of jobs like this."""
    gpu = find_gpu(job.gpu) if job.gpu else None
    if job.params is not None:
        return _states_only(from_count(job.params, job), job, gpu, f"{job.params:,} parameters", ())
    assert job.model is not None
    source = read_model(job.model)
    if source.config is None or source.params is not None:
        params = unique(source.params or ())
        return _states_only(States(params=params, job=job), job, gpu, source.name, (*source.notes, *source.warnings))
    if is_divided(job):
        from vramcast.engine.parallel.ranks import forecast_ranks

        asked = [name for name, value in ONE_GPU.items() if getattr(job, name) != value]
        if asked:
            names = ", ".join(name.replace("_", "-") for name in asked)
            raise UnsupportedError(f"{names} is modelled on one GPU only: leave out gpus, or price it apart")
        return forecast_ranks(job, gpu, source, source.config)
    if job.edit:
        edited = _edited(job, gpu, source, source.config, must_fit=False)
        assert isinstance(edited, Forecast)
        return edited
    draft = (drafts or Drafts(source.config, gpu)).of(job)
    forecast = _billed(draft, replayed_on_card(draft.script, gpu, job), source)
    return replace(forecast, scaling=_scaling(job, source.config, gpu)) if with_scaling else forecast


def estimate_if_it_may_fit(job: Job, at_least_bytes: int = 0, drafts: Drafts | None = None) -> Forecast | TooLarge:
    """Of a model on a card that are known. No bill is made where the card runs out, or where context and workspaces at
    the upper end leave too little of it: such a job does not fit surely. `at_least_bytes`: a peak that is known."""
    assert job.gpu is not None
    assert job.model is not None
    gpu, source = find_gpu(job.gpu), read_model(job.model)
    assert source.config is not None
    if is_divided(job):
        from vramcast.engine.parallel.ranks import forecast_fitting

        return forecast_fitting(job, gpu, source, source.config)
    if job.edit:
        return _edited(job, gpu, source, source.config, must_fit=True)
    most = least_left(job, gpu)
    if at_least_bytes > most:
        return TooLarge(asked_bytes=at_least_bytes)
    drafts = drafts or Drafts(source.config, gpu)
    draft, replayed = drafts.replayed(job, capacity_bytes=room_on(job, gpu), most_bytes=most)
    if replayed.out_of_memory:
        return TooLarge(asked_bytes=max(at_least_bytes, replayed.peak_requested_bytes))
    return _billed(draft, replayed, source)


def least_left(job: Job, gpu: Gpu) -> int:
    """Of a card, where context and workspaces are at the upper end of what is assumed."""
    assumed = (*context_entries(job, gpu, DEVICE), *workspace_entries(job, gpu, DEVICE))
    return room_on(job, gpu) - sum(entry.range_bytes[1] - entry.nbytes for entry in assumed if entry.range_bytes)


def _states_only(states: States, job: Job, gpu: Gpu | None, name: str, notes: tuple[str, ...]) -> Forecast:
    """Weights, gradients and states of something whose architecture is unknown: a lower bound."""
    asked = [name for name, value in NEED_LAYERS.items() if getattr(job, name) != value]
    if asked:
        names = ", ".join(name.replace("_", "-") for name in asked)
        raise UnsupportedError(f"{names} needs the model's layers: give a model, not a table or a count of parameters")
    if is_divided(job):
        from vramcast.engine.parallel.ranks import forecast_counts

        return forecast_counts(states, gpu, name, notes)
    gradients = Entry(
        category=Category.GRADIENTS, component="of trained parameters", place=DEVICE,
        phases=PHASES[PHASES.index(STEP) :],
        nbytes=states.gradient_bytes, origin=Origin.FORMULA, source=states.recipe.whose,
        formula=f"{states.trained.numel:,} parameters",
    )  # fmt: skip
    entries = cut_to_phases((*state_entries(states, DEVICE), gradients), job_phases(job))
    ledger = Ledger(entries=entries, top_level=Level.ALLOCATED)
    ledger.check()
    return Forecast(
        model=_summary(name, states, None, None), job=job, gpu=gpu, ledger=ledger,
        assumptions=list_assumptions(job, None),
        warnings=(
            *notes, "only the parameters are known: activations, logits, temporaries and overheads are not in this bill"
        ),
    )  # fmt: skip


def _billed(draft: Draft, replayed: Replayed, source: ModelSource) -> Forecast:
    step, extra, setting = draft.step, draft.extra, draft.setting
    job, config, gpu, states, program = step.job, setting.config, setting.gpu, step.states, step.program
    lines = step.lines(draft.stream, draft.later)
    texts = dict(describe_activations(program, job))
    for line in lines:
        line.formula = line.formula or texts.get(line.component, "")
    devices = dict.fromkeys((DEVICE, *(line.place for line in extra.lines if line.place.startswith("cuda"))))
    entries = (
        *state_entries(states, DEVICE), *entries_of(lines), *entries_of(extra.lines),
        *(entry for device in devices for entry in workspace_entries(job, gpu, device)),
        *(entry for device in devices for entry in context_entries(job, gpu, device)),
        *host_side(job, config, states, setting.sizes),
    )  # fmt: skip
    level = Level.PROCESS if gpu else Level.RESERVED  # the context depends on the card
    ledger = Ledger(entries=cut_to_phases((*entries, *allocator_slack(replayed)), job_phases(job)), top_level=level)
    ledger.check()
    return Forecast(
        model=_summary(source.name, states, config.model_type, _layers(program)), job=job, gpu=gpu, ledger=ledger,
        assumptions=(*list_assumptions(job, config), *extra.assumptions),
        warnings=(*source.notes, *source.warnings, *card_warnings(job.precision, gpu)),
        notes=(*_padding(job, config), *_loops(job, step, ledger)),
    )  # fmt: skip


def _scaling(job: Job, config: Config, gpu: Gpu | None) -> Scaling:
    base, *_ = three = lengths(int(sizes_of(job, config).seq))
    one, two, more = (record_job(job, config, gpu, plain(sizes_of(at_length(job, seq), config))) for seq in three)
    return scaling(job, (one, two, more), base)


def at_length(job: Job, seq: int) -> Job:
    """The job with batches of that padded length."""
    return replace(job, seq=seq, longest_seq=None if job.longest_seq is None else seq)


def _padding(job: Job, config: Config) -> list[str]:
    """The peak comes from the longest batch; what would the average one take?"""
    if job.longest_seq is None or job.seq is None or job.seq == job.longest_seq:
        return []
    if job.seq > job.longest_seq:
        raise InputError(f"seq {job.seq} is the average length and longest-seq {job.longest_seq} the longest one")
    average = estimate(at_length(job, job.seq), with_scaling=False).verdict().peak
    return [
        f"padded to {job.longest_seq} tokens, of which {1 - job.seq / job.longest_seq:.0%} are padding on average; "
        f"batches of {job.seq} tokens would peak at {format_gib(average.allocated_bytes)} allocated ({average.phase})"
    ]


def _loops(job: Job, step: Step, ledger: Ledger) -> list[str]:
    """Of what does a loop save how much? What is held between the passes, and the peak, are two answers."""
    if job.loop in ("plain", "joint"):
        return []
    held = int(held_between(step.program, step.mode(fresh=True)))
    texts = [f"held between the two backward passes: {format_bytes(held)}"]
    if job.loop != "retain-graph":
        other = replace(job, loop="retain-graph")
        retained = int(held_between(step.program, replace(step, job=other).mode(fresh=True)))
        own = ledger.peak(DEVICE).allocated_bytes
        peak = estimate(other, with_scaling=False).verdict().peak.allocated_bytes
        texts.append(
            f"retain-graph would hold {format_bytes(retained)} and peak at {format_gib(peak)} allocated: "
            f"{job.loop} saves {1 - held / retained:.1%} of what is held and {max(1 - own / peak, 0):.1%} of the peak"
        )
    return texts


def _edited(job: Job, gpu: Gpu | None, source: ModelSource, config: Config, *, must_fit: bool) -> Forecast | TooLarge:
    """A model-editing job: other lines, other phases, perhaps two devices, each with an allocator of its own."""
    check_edit(job)
    sizes = sizes_of(job, config)
    program = record_job(job, config, gpu, sizes)
    states = States(params=unique(program.params()), job=job)
    setting = Setting(job=job, config=config, gpu=gpu, sizes=sizes, program=program, states=states, device=DEVICE)
    extra = edit_lines(setting)
    devices = dict.fromkeys(line.place for line in extra.lines if line.place.startswith("cuda"))
    entries = (
        *entries_of(extra.lines),
        *(entry for device in devices for entry in workspace_entries(job, gpu, device)),
    )  # fmt: skip
    small = (*workspaces(job, gpu), *(int(value.nbytes) for value in batch_values(program, job)))
    billed = Ledger(entries=cut_to_phases(entries, PHASES_OF_EDITING), top_level=Level.ALLOCATED)
    too_large = TooLarge(asked_bytes=max(billed.peak(device).allocated_bytes for device in devices))
    if must_fit and gpu is not None and too_large.asked_bytes > room_on(job, gpu):
        return too_large
    for device in devices:
        replayed = replayed_on_card(edit_replay(setting, extra.blocks, device, small), gpu, job, card_only=must_fit)
        if must_fit and replayed.out_of_memory:
            return too_large
        entries += (*allocator_slack(replayed, device), *context_entries(job, gpu, device))
    level = Level.PROCESS if gpu else Level.RESERVED
    ledger = Ledger(entries=cut_to_phases(entries, PHASES_OF_EDITING), top_level=level)
    ledger.check()
    return Forecast(
        model=_summary(source.name, states, config.model_type, _layers(program)), job=job, gpu=gpu, ledger=ledger,
        assumptions=(*list_assumptions(job, config), *extra.assumptions),
        warnings=(*source.notes, *source.warnings, *card_warnings(job.precision, gpu)),
    )  # fmt: skip


def _summary(name: str, states: States, family: str | None, layers: int | None) -> ModelSummary:
    return ModelSummary(
        name=name, params_total=states.params.numel,
        params_trainable=states.trained.numel, family=family, num_layers=layers,
    )  # fmt: skip


def _layers(program: Program) -> int:
    return sum(placed.section.is_block for placed in program.placed)
