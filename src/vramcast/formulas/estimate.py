"""Job → Forecast. Start reading the engine here.

Read the model, record it under the job's regime, bill what lies there (states), what a step makes (activations, logits,
temporaries), companions and overheads; let the allocator model say what torch would reserve. No torch, no network.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from vramcast.catalog.gpus import Gpu, find_gpu
from vramcast.errors import InputError, UnsupportedError, unknown
from vramcast.forecast import Forecast, ModelSummary, Scaling
from vramcast.formulas.alongside import played_with
from vramcast.formulas.beside import beside
from vramcast.formulas.between import TO_FP32
from vramcast.formulas.contiguous import lay_out
from vramcast.formulas.edit import PHASES_OF_EDITING, check_edit, edit_lines, edit_regime, edit_replay
from vramcast.formulas.hostside import host_side
from vramcast.formulas.inputs import batch_values
from vramcast.formulas.lengths import earlier_lengths, length_text
from vramcast.formulas.loops import TWO_PASSES, check_loop, held_between
from vramcast.formulas.on_card import (
    least_bytes,
    of_same,
    replayed_on_card,
    room_on,
    roughly_reserved,
    step_script,
)
from vramcast.formulas.optimizers import implementation, version
from vramcast.formulas.overheads import context_entries, workspace_entries, workspaces
from vramcast.formulas.positions import check_positions, default_seq, has_tokens
from vramcast.formulas.recipe import RECIPES, card_warnings
from vramcast.formulas.regime import attention_kernel, expert_adapters_text, regime_of
from vramcast.formulas.replay import Replayed, Script, replay
from vramcast.formulas.scaling import lengths, scaling
from vramcast.formulas.setting import Beside, Setting
from vramcast.formulas.states import States, from_count, state_entries, unique
from vramcast.formulas.step import Step, describe_activations, entries_of, keeps_outputs
from vramcast.formulas.timeline import Stamped
from vramcast.job import Job
from vramcast.ledger import (
    EDIT,
    EVAL,
    GATING,
    PHASES,
    RESUME,
    ROLLOUT,
    STEP,
    Category,
    Entry,
    Ledger,
    Level,
    Origin,
)
from vramcast.models.config import Config
from vramcast.models.families import own_targets, record
from vramcast.models.loss import add_loss
from vramcast.models.program import Program, Sizes
from vramcast.models.read import read_model
from vramcast.models.source import ModelSource
from vramcast.models.tape import Param
from vramcast.units import format_bytes, format_gib

DEVICE = "cuda:0"
NEED_LAYERS = {
    "lora_rank": None, "quantize": "none", "loop": "plain", "reference": "none", "reward": "none", "critic": "none",
    "teacher": "none", "rollout_tokens": None, "edit": (), "sub_device": None, "resume": "none", "evaluate": False,
}  # fmt: skip
ONE_GPU = {"sub_device": None}


def estimate(job: Job, *, with_scaling: bool = True) -> Forecast:
    """`with_scaling`: how it grows with the length, which takes recordings of its own."""
    gpu = find_gpu(job.gpu) if job.gpu else None
    if job.params is not None:
        return _states_only(from_count(job.params, job), job, gpu, f"{job.params:,} parameters", ())
    assert job.model is not None
    source = read_model(job.model)
    if source.config is None or source.params is not None:
        params = unique(source.params or ())
        return _states_only(States(params=params, job=job), job, gpu, source.name, (*source.notes, *source.warnings))
    if is_divided(job):
        from vramcast.formulas.parallel.ranks import forecast_ranks

        asked = [name for name, value in ONE_GPU.items() if getattr(job, name) != value]
        if asked:
            names = ", ".join(name.replace("_", "-") for name in asked)
            raise UnsupportedError(f"{names} is modelled on one GPU only: leave out gpus, or price it apart")
        return forecast_ranks(job, gpu, source, source.config)
    if job.edit:
        edited = _edited(job, gpu, source, source.config, must_fit=False)
        assert isinstance(edited, Forecast)
        return edited
    draft = _drafted(job, gpu, source.config)
    forecast = _billed(draft, replayed_on_card(draft.script, gpu, job), source)
    return replace(forecast, scaling=_scaling(job, source.config, gpu)) if with_scaling else forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class TooLarge:
    """What a job asks for at once that does not fit: on its fullest device, without rounding and cached blocks."""

    asked_bytes: int


def estimate_if_it_may_fit(job: Job, at_least_bytes: int = 0) -> Forecast | TooLarge:
    """Of a model on a card that are known. No bill is made where the card runs out, or where context and workspaces at
    the upper end leave too little of it: such a job does not fit surely. `at_least_bytes`: a peak that is known."""
    assert job.gpu is not None
    assert job.model is not None
    gpu, source = find_gpu(job.gpu), read_model(job.model)
    assert source.config is not None
    if is_divided(job):
        from vramcast.formulas.parallel.ranks import forecast_fitting

        return forecast_fitting(job, gpu, source, source.config)
    if job.edit:
        return _edited(job, gpu, source, source.config, must_fit=True)
    context = tuple(context_entries(job, gpu, DEVICE))
    usual = sum(entry.nbytes for entry in context)
    assumed = (*context, *workspace_entries(job, gpu, DEVICE))
    most = usual + sum(entry.range_bytes[1] - entry.nbytes for entry in assumed if entry.range_bytes)
    if at_least_bytes + most > gpu.capacity_bytes():
        return TooLarge(asked_bytes=at_least_bytes)
    draft = _drafted(job, gpu, source.config)
    asked = least_bytes(draft.script)
    if asked + most > gpu.capacity_bytes():
        return TooLarge(asked_bytes=asked)
    replayed = replay(
        draft.script, capacity_bytes=gpu.capacity_bytes() - usual, conf=job.alloc_conf,
        most_bytes=gpu.capacity_bytes() - most,
    )  # fmt: skip
    if replayed.out_of_memory:
        return TooLarge(asked_bytes=asked)
    return _billed(draft, replayed, source)


def is_divided(job: Job) -> bool:
    """Does anything in the job concern many GPUs, or what a strategy for them does on one?"""
    sizes = (job.gpus, job.tp, job.pp, job.cp, job.ep)
    return max(sizes) > 1 or job.offload != "none" or job.strategy not in (None, "none")


def _states_only(states: States, job: Job, gpu: Gpu | None, name: str, notes: tuple[str, ...]) -> Forecast:
    """Weights, gradients and states of something whose architecture is unknown: a lower bound."""
    asked = [name for name, value in NEED_LAYERS.items() if getattr(job, name) != value]
    if asked:
        names = ", ".join(name.replace("_", "-") for name in asked)
        raise UnsupportedError(f"{names} needs the model's layers: give a model, not a table or a count of parameters")
    if is_divided(job):
        from vramcast.formulas.parallel.ranks import forecast_counts

        return forecast_counts(states, gpu, name, notes)
    gradients = Entry(
        category=Category.GRADIENTS, component="of trained parameters", place=DEVICE,
        phases=PHASES[PHASES.index(STEP) :],
        nbytes=states.gradient_bytes, origin=Origin.FORMULA, source=states.recipe.whose,
        formula=f"{sum(p.numel for p in states.trained):,} parameters",
    )  # fmt: skip
    entries = _within((*state_entries(states, DEVICE), gradients), job_phases(job))
    ledger = Ledger(entries=entries, top_level=Level.ALLOCATED)
    ledger.check()
    return Forecast(
        model=_summary(name, states, None, None), job=job, gpu=gpu, ledger=ledger,
        assumptions=assumptions(job, None),
        warnings=(
            *notes, "only the parameters are known: activations, logits, temporaries and overheads are not in this bill"
        ),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """A job recorded and written down for the allocator, before its bill is made."""

    setting: Setting
    step: Step
    stream: list[Stamped]  # of the step itself
    later: list[Stamped]
    extra: Beside
    script: Script


def _drafted(job: Job, gpu: Gpu | None, config: Config) -> _Draft:
    sizes = sizes_of(job, config)
    program = recorded(job, config, gpu, sizes)
    check_positions(program, config)
    states = States(params=unique(program.params()), job=job)
    step = Step(job=job, program=program, states=states, place=DEVICE)
    setting = Setting(job=job, config=config, gpu=gpu, sizes=sizes, program=program, states=states, device=DEVICE)
    extra, stream = beside(setting), step.stream()
    script = _after_others(step_script(step, stream, extra.resident, gpu), job, config, gpu, program)
    return _Draft(
        setting=setting, step=step, stream=stream, later=script.later, extra=extra,
        script=played_with(script, extra, DEVICE),
    )  # fmt: skip


def _billed(draft: _Draft, replayed: Replayed, source: ModelSource) -> Forecast:
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
    ledger = Ledger(entries=_within((*entries, *_slack(replayed)), job_phases(job)), top_level=level)
    ledger.check()
    return Forecast(
        model=_summary(source.name, states, config.model_type, _layers(program)), job=job, gpu=gpu, ledger=ledger,
        assumptions=(*assumptions(job, config), *extra.assumptions),
        warnings=(*source.notes, *source.warnings, *card_warnings(job.precision, gpu)),
        notes=(*_padding(job, config), *_loops(job, step, ledger)),
    )  # fmt: skip


def _scaling(job: Job, config: Config, gpu: Gpu | None) -> Scaling:
    base, *_ = three = lengths(int(sizes_of(job, config).seq))
    one, two, more = (recorded(job, config, gpu, plain(sizes_of(at_length(job, seq), config))) for seq in three)
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
    program = recorded(job, config, gpu, sizes)
    states = States(params=unique(program.params()), job=job)
    setting = Setting(job=job, config=config, gpu=gpu, sizes=sizes, program=program, states=states, device=DEVICE)
    extra = edit_lines(setting)
    devices = dict.fromkeys(line.place for line in extra.lines if line.place.startswith("cuda"))
    entries = (
        *entries_of(extra.lines),
        *(entry for device in devices for entry in workspace_entries(job, gpu, device)),
    )  # fmt: skip
    small = (*workspaces(job, gpu), *(int(value.nbytes) for value in batch_values(program, job)))
    billed = Ledger(entries=_within(entries, PHASES_OF_EDITING), top_level=Level.ALLOCATED)
    too_large = TooLarge(asked_bytes=max(billed.peak(device).allocated_bytes for device in devices))
    if must_fit and gpu is not None and too_large.asked_bytes > room_on(job, gpu):
        return too_large
    for device in devices:
        replayed = replayed_on_card(edit_replay(setting, extra.blocks, device, small), gpu, job, card_only=must_fit)
        if must_fit and replayed.out_of_memory:
            return too_large
        entries += (*_slack(replayed, device), *context_entries(job, gpu, device))
    level = Level.PROCESS if gpu else Level.RESERVED
    ledger = Ledger(entries=_within(entries, PHASES_OF_EDITING), top_level=level)
    ledger.check()
    return Forecast(
        model=_summary(source.name, states, config.model_type, _layers(program)), job=job, gpu=gpu, ledger=ledger,
        assumptions=(*assumptions(job, config), *extra.assumptions),
        warnings=(*source.notes, *source.warnings, *card_warnings(job.precision, gpu)),
    )  # fmt: skip


def recorded(job: Job, config: Config, gpu: Gpu | None, sizes: Sizes) -> Program:
    """The model as this job, or one rank of it, runs it, loss included; names are checked against what exists."""
    if is_divided(job):
        from vramcast.formulas.parallel.ranks import recorded_rank

        return recorded_rank(job, config, gpu, sizes)
    regime = regime_of(job, config, gpu)
    if job.sub_device is not None and not job.edit:
        raise InputError("sub-device is the second device of an editing job: it needs edit")
    program = record(config, edit_regime(job, config, regime, sizes) if job.edit else regime, sizes)
    lay_out(program, job, config)
    add_loss_to(program, job)
    check_loop(job, program)
    params = list(program.params())
    _check_targets(job, params, program)
    if job.freeze and all(param.trainable for param in params):
        raise InputError(f"freeze {', '.join(job.freeze)} matches no parameter. {_modules(program)}")
    if not any(param.trainable for param in params):
        raise InputError(f"freeze {', '.join(job.freeze)} leaves nothing to train")
    return program


def add_loss_to(program: Program, job: Job) -> None:
    transformers, to_fp32 = version(job.transformers_version), job.framework in TO_FP32 and not keeps_outputs(job)
    add_loss(program, transformers=transformers, kind=job.loss, outputs_in_fp32=to_fp32)


def _check_targets(job: Job, params: list[Param], program: Program) -> None:
    """A target that matches nothing is silently skipped by PEFT, and then less is trained than was meant."""
    if job.lora_rank is None:
        return
    if program.regime.code != "transformers":
        known = (*own_targets(program.regime.code), "all-linear")
        for target in job.lora_targets:
            if target not in known:
                raise unknown(f"lora-targets of {program.regime.code}", target, known)
        return
    adapted = {param.name.partition(".base_layer")[0] for param in params if ".base_layer." in param.name}
    missing = [
        target for target in job.lora_targets
        if target != "all-linear" and not any(name == target or name.endswith(f".{target}") for name in adapted)
    ]  # fmt: skip
    if missing or not adapted:
        raise InputError(f"lora-targets {', '.join(missing or job.lora_targets)} match no module. {_modules(program)}")


def _modules(program: Program) -> str:
    """The names a user could have meant."""
    paths = (
        param.name.removesuffix(".weight").removesuffix(".base_layer")
        for param in program.params()
        if param.kind == "linear"
    )
    return f"Linear modules of this model: {', '.join(sorted({path.rpartition('.')[2] for path in paths}))}."


def sizes_of(job: Job, config: Config) -> Sizes:
    seq = job.longest_seq or job.seq or default_seq(config)
    images = 1 if job.images is None else job.images
    return Sizes.named(job.batch, seq, job.target_seq or seq, images, job.image_tokens)


def plain(sizes: Sizes) -> Sizes:
    """The same numbers without the names that formulas show."""
    tokens = None if sizes.image_tokens is None else int(sizes.image_tokens)
    return Sizes(
        batch=int(sizes.batch), seq=int(sizes.seq), target_seq=int(sizes.target_seq), images=int(sizes.images),
        image_tokens=tokens,
    )  # fmt: skip


def _summary(name: str, states: States, family: str | None, layers: int | None) -> ModelSummary:
    return ModelSummary(
        name=name, params_total=sum(param.numel for param in states.params),
        params_trainable=sum(param.numel for param in states.trained), family=family, num_layers=layers,
    )  # fmt: skip


def _layers(program: Program) -> int:
    return sum(placed.section.is_block for placed in program.placed)


def _after_others(script: Script, job: Job, config: Config, gpu: Gpu | None, at_longest: Program) -> Script:
    """With whole steps of the shorter batches that a run meets before its longest; their gradients are of the same
    parameters, so they go by the keys that those have in the longest."""
    if job.lengths is None and job.mean_seq is None:
        return script
    longest = sizes_of(job, config)
    largest = script.largest()
    parts = (largest, replace(largest, states=script.states))
    measures = (partial(roughly_reserved, part, int(longest.seq)) for part in parts)
    earlier = earlier_lengths(job, int(longest.seq), *measures)
    streams = []
    for length in earlier.lengths:
        program = recorded(job, config, gpu, replace(longest, seq=length, target_seq=length))
        states = States(params=unique(program.params()), job=job)
        stream = Step(job=job, program=program, states=states, place=DEVICE).stream()
        streams.append(of_same(stream, program, at_longest))
    return replace(script, earlier=tuple(streams), stepped_after=earlier.stepped_after)


def job_phases(job: Job) -> tuple[str, ...]:
    has = {
        EVAL: job.evaluate, ROLLOUT: job.rollout_tokens is not None, RESUME: job.resume != "none",
        EDIT: bool(job.edit), GATING: job.loop in TWO_PASSES,
    }  # fmt: skip
    return tuple(phase for phase in PHASES if has.get(phase, True))


def _within(entries: tuple[Entry, ...], phases: tuple[str, ...]) -> tuple[Entry, ...]:
    """Entries cut to the phases that this job has."""
    cut = (replace(entry, phases=tuple(phase for phase in entry.phases if phase in phases)) for entry in entries)
    return tuple(entry for entry in cut if entry.phases and entry.nbytes)


def _slack(replayed: Replayed, place: str = DEVICE) -> list[Entry]:
    """What the allocator adds: rounding inside blocks, and cached blocks that fit nothing."""
    rounding = replayed.peak_allocated_bytes - replayed.peak_requested_bytes
    cached = replayed.peak_reserved_bytes - replayed.peak_allocated_bytes
    common = {"category": Category.SLACK, "place": place, "phases": PHASES, "origin": Origin.SIMULATED}
    source = "the job's births and deaths replayed through the caching allocator"
    return [
        Entry(component="rounding inside blocks", nbytes=max(rounding, 0), source=source, **common),  # type: ignore[arg-type]
        Entry(
            component="reserved but unallocated", nbytes=max(cached, 0), source=source, level=Level.RESERVED,
            **common,  # type: ignore[arg-type]
        ),
    ]  # fmt: skip


def assumptions(job: Job, config: Config | None) -> tuple[str, ...]:
    """What was not said and had to be decided."""
    texts = [f"precision {job.precision}: {RECIPES[job.precision].whose}"]
    if config is not None:
        if job.seq is None and job.longest_seq is None and has_tokens(config):
            texts.append(f"seq {int(sizes_of(job, config).seq)} (not given)")
        if job.mean_seq is not None or job.lengths is not None:
            texts.append(length_text(job, int(sizes_of(job, config).seq)))
        kernel = attention_kernel(job, config, find_gpu(job.gpu) if job.gpu else None)
        texts.append(f"attention {job.attention} → {kernel} kernel")
        texts.extend(expert_adapters_text(job, config))
    if job.optimizer_impl is None:
        texts.append(
            f"{job.optimizer} runs as {implementation(job)} (framework {job.framework}, torch {job.torch_version})"
        )
    texts.append(f"torch {job.torch_version}, transformers {job.transformers_version}")
    return tuple(texts)
