"""Companion models of the trained one: where their weights are stored and what their passes need while they run.

A reference, reward model or teacher is frozen and runs without graph; a critic is trained. A companion on the host is
counted there. Losses are not modelled here, only which of the companions' results they hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vramcast.engine.lines.amounts import Amounts
from vramcast.engine.lines.optimizers import KNOWN, state_bytes, temporaries
from vramcast.engine.lines.setting import (
    OtherLines,
    Setting,
    backbone,
    kept_after_forward,
    once,
    passing,
    peak_of,
    without_graph,
)
from vramcast.engine.lines.states import AFTER_STEP, States
from vramcast.engine.lines.training_step import Step
from vramcast.errors import InputError
from vramcast.ledger import (
    BACKWARD,
    FORWARD,
    HOST,
    LOAD,
    LOSS,
    NEXT_BACKWARD,
    NEXT_FORWARD,
    NEXT_LOSS,
    NEXT_STEP,
    PHASES,
    ROLLOUT,
    STEP,
    Category,
)
from vramcast.models.families import record
from vramcast.models.params import Params
from vramcast.models.read.config import Config
from vramcast.models.read.model import read_model
from vramcast.models.record.dims import Number, maximum, product_text
from vramcast.models.record.program import Program
from vramcast.models.record.tape import DTYPES, F32, Dtype, Param

PASSES = (FORWARD, LOSS, BACKWARD, NEXT_FORWARD, NEXT_LOSS, NEXT_BACKWARD)
WITH_GRADIENTS = (BACKWARD, STEP, NEXT_BACKWARD, NEXT_STEP)
PADDED_VOCABULARY = 0.01  # sizes of one family differ by padding (Qwen2.5: 151,936 and 152,064)
NO_GRAPH = "one layer's tensors and the output; nothing is kept"
ADAPTERS_OFF = "the reference is the model with its adapters switched off: no weights"
BEHIND_LOSS = "one layer's tensors and the output, beyond what the policy's loss needed before; nothing is kept"


def companions(setting: Setting) -> OtherLines:
    setup = setting.setup
    found = OtherLines()
    mode = (
        setup.checkpointing.how,
        setup.kernels.recompute,
        setup.checkpointing.is_reentrant,
        setup.loop.gate,
        setup.loop.keeps_outputs,
    )
    if setup.companions.reference not in ("none", "precomputed"):
        found += once(
            setting, _reference, setup.companions.reference, setup.companions.reference_dtype, *mode
        )
    if setup.companions.reference == "precomputed":
        found += OtherLines(
            assumptions=(
                "reference log-probabilities are precomputed: the reference is not loaded",
            )
        )
    if setup.companions.reward != "none":
        found += once(
            setting,
            _reward,
            setup.companions.reward,
            setup.companions.reward_model,
            setup.companions.companion_dtype,
            setup.phases.rollout_tokens,
            *mode,
        )
    if setup.companions.critic != "none":
        found += _critic(setting)
    if setup.companions.teacher != "none":
        found += once(
            setting,
            teacher_lines,
            setup.companions.teacher,
            setup.companions.teacher_model,
            setup.companions.companion_dtype,
        )
    return found


def _place(asked: str, setting: Setting) -> str:
    return {"same": setting.device, "cpu": HOST}.get(asked, asked)


def line(
    component: str, place: str, formula: str, source: str, category: Category = Category.COMPANION
) -> Amounts:
    return Amounts(
        category=category, component=component, place=place, formula=formula, source=source
    )


def during(line: Amounts, phases: Iterable[str], nbytes: Number) -> Amounts:
    for phase in phases:
        line.add(phase, nbytes)
    return line


def companion_config(setting: Setting, name: str | None) -> Config:
    if name is None:
        return setting.config
    config = read_model(name).config
    if config is None:
        raise InputError(
            f"{name}: only a parameter table is known; a companion needs a config to run"
        )
    return config


def frozen_model_lines(
    name: str, params: Iterable[Param], dtype: Dtype, place: str, setting: Setting
) -> OtherLines:
    sizes = tuple(param.numel * dtype.nbytes for param in params if param.kind != "adapter")
    text = f"{sum(sizes) // dtype.nbytes:,} parameters × {dtype.nbytes} B"
    weights = line(f"{name}, {dtype.name}", place, text, "frozen; no gradients, no states")
    return OtherLines(
        lines=(during(weights, PHASES, sum(sizes)),),
        resident=sizes if place == setting.device else (),
    )


def phases_after_forward(program: Program) -> tuple[str, str]:
    """The phase (of a first and of a later step) in which the policy's whole graph is alive."""
    has_loss = any(placed.name == "loss" for placed in program.sections)
    return (LOSS, NEXT_LOSS) if has_loss else (FORWARD, NEXT_FORWARD)


def _beyond_loss(setting: Setting, peak: Number, place: str) -> Number:
    """What a pass with that peak adds to the phase's peak if it runs after the loss: the loss's temporaries are freed
    by then."""
    setup, program = setting.setup, setting.program
    if place != setting.device:
        return peak
    folded = Step(setup=setup, program=program, states=setting.states, place=place).fold(fresh=True)
    return maximum(
        folded.over + peak - folded.peaks_until_over.get(phases_after_forward(program)[0], 0), 0
    )


def _reference(setting: Setting) -> OtherLines:
    """A frozen copy for DPO, NPO or KL: its weights, and a forward without graph while the policy's graph is alive."""
    setup, program = setting.setup, setting.program
    if setup.companions.reference == "adapter":
        return _reference_without_adapters(setting)
    place = _place(setup.companions.reference, setting)
    dtype, model, peak = once(setting, _reference_model, setup.companions.reference_dtype)
    found = frozen_model_lines("reference model", program.params(), dtype, place, setting)
    forward = line("reference model's forward (no graph)", place, BEHIND_LOSS, "torch.no_grad")
    during(forward, phases_after_forward(program), _beyond_loss(setting, peak, place))
    copied = line(
        "reference model before it moves",
        HOST,
        "copied beside the model's own weights",
        "copy.deepcopy on the CPU",
    )
    during(copied, (LOAD,), 0 if place == HOST else found.lines[0].by_phase[LOAD])
    return found + OtherLines(
        lines=(forward, copied),
        passes=(passing(LOSS, place, model),),
        assumptions=(
            "the reference runs after the policy's forward, while its graph is alive",
            "the reference is a deepcopy made on the host before the model moves to the GPU",
        ),
    )


def _reference_without_adapters(setting: Setting) -> OtherLines:
    """The trained model once more, its adapters switched off: a forward without graph and no weights."""
    if setting.setup.adapter.kind is None:
        raise InputError(
            "reference adapter is the model without its adapters, and this job has none: give lora-rank, or reference "
            "same for a frozen copy"
        )
    model, peak = once(setting, _model_without_adapters)
    place = setting.device
    forward = line(
        "reference's forward, adapters off (no graph)", place, BEHIND_LOSS, "PEFT disable_adapter"
    )
    during(forward, phases_after_forward(setting.program), _beyond_loss(setting, peak, place))
    return OtherLines(
        lines=(forward,),
        passes=(passing(LOSS, place, model),),
        assumptions=(ADAPTERS_OFF,),
    )


def _model_without_adapters(setting: Setting) -> tuple[Program, Number]:
    model = without_graph(setting, setting.config, adapters=False)
    return model, peak_of(model)


def _reference_model(setting: Setting) -> tuple[Dtype, Program, Number]:
    """Its dtype, its recorded pass, and the peak of that pass."""
    asked = setting.setup.companions.reference_dtype
    dtype = DTYPES[asked] if asked else setting.program.regime.weights
    model = without_graph(setting, setting.config, dtype=dtype)
    return dtype, model, peak_of(model)


def params_without_head(program: Program) -> list[Param]:
    """Parameters without the head over the vocabulary. The single row of a score head is left out too."""
    return [param for param in program.params() if param.kind != "head"]


def _reward(setting: Setting) -> OtherLines:
    """Scores the rollout: a forward over whole sequences without graph, with one number per sequence as output."""
    setup = setting.setup
    place = _place(setup.companions.reward, setting)
    weights, dtype, model, peak = once(
        setting, _reward_model, setup.companions.reward_model, setup.companions.companion_dtype
    )
    when = (ROLLOUT,) if setup.phases.rollout_tokens else phases_after_forward(setting.program)
    text = NO_GRAPH if setup.phases.rollout_tokens else BEHIND_LOSS
    forward = line("reward model's forward (no graph)", place, text, "torch.no_grad")
    during(
        forward, when, peak if setup.phases.rollout_tokens else _beyond_loss(setting, peak, place)
    )
    return frozen_model_lines("reward model", weights, dtype, place, setting) + OtherLines(
        lines=(forward,), passes=(passing(when[0], place, model),)
    )


def _reward_model(setting: Setting) -> tuple[list[Param], Dtype, Program, Number]:
    """Its parameters, their dtype, its recorded pass without the head, and the peak of that pass."""
    setup = setting.setup
    dtype = (
        DTYPES[setup.companions.companion_dtype]
        if setup.companions.companion_dtype
        else setting.program.regime.weights
    )
    model = without_graph(
        setting, companion_config(setting, setup.companions.reward_model), dtype=dtype
    )
    return params_without_head(model), dtype, model, peak_of(backbone(model))


def _critic(setting: Setting) -> OtherLines:
    """A value model with its own gradients and optimizer states, in the policy's precision. Its graph and the policy's
    are alive at the same time."""
    setup = setting.setup
    if setup.companions.critic == "cpu":
        raise InputError("a critic is trained on a GPU: critic must be none, same or cuda:1")
    if setup.optimizer.implementation == "in-backward":
        raise InputError(
            "a critic together with an optimizer that steps inside backward is not modelled"
        )
    place = _place(setup.companions.critic, setting)
    params, graph_bytes = once(setting, _critic_model, setup.companions.critic_model)
    kept = line("critic: kept for backward", place, "", "its graph, until its own backward has run")
    during(kept, PASSES, graph_bytes)
    stepping = (
        setup.optimizer.name,
        setup.optimizer.implementation,
        setup.optimizer.projection_rank,
        setup.optimizer.block_size,
    )
    weights, *trained = once(
        setting,
        _critic_states,
        setup.companions.critic,
        setup.companions.critic_model,
        setup.precision,
        *stepping,
    )
    return OtherLines(
        lines=(weights, *trained, kept),
        blocks=(*trained, kept),
        resident=tuple(param.nbytes for param in params) if place == setting.device else (),
        assumptions=(
            "policy and critic share one loss: both graphs are alive together (TRL's PPO)",
        ),
    )


def _critic_model(setting: Setting) -> tuple[Params, Number]:
    """Its parameters, and the bytes that its forward saves for backward."""
    model = record(
        companion_config(setting, setting.setup.companions.critic_model),
        setting.program.regime,
        setting.sizes,
    )
    return Params(params_without_head(model)), kept_after_forward(backbone(model))


def _critic_states(setting: Setting) -> list[Amounts]:
    params, _ = once(setting, _critic_model, setting.setup.companions.critic_model)
    return list(
        _trained(
            "critic",
            States(params=params, setup=setting.setup),
            _place(setting.setup.companions.critic, setting),
        )
    )


def _trained(name: str, states: States, place: str) -> Iterator[Amounts]:
    """Weights, gradients, states and the step's temporaries of a second trained model."""
    setup, recipe = states.setup, states.recipe
    item = recipe.states.nbytes if recipe.states else None
    count = f"{states.trained.numel:,} trained parameters"
    made = states.trained.total(lambda param: state_bytes(param, setup, item))
    weights = states.params.nbytes + recipe.master * 4 * states.trained.numel
    yield during(line(f"{name}: weights", place, count, recipe.whose), PHASES, weights)
    yield during(
        line(f"{name}: gradients", place, count, recipe.whose),
        WITH_GRADIENTS,
        states.gradient_bytes,
    )
    kept = line(f"{name}: optimizer states", place, count, KNOWN[setup.optimizer.name].source)
    nbytes, why = temporaries(states.trained, setup, item)
    working = line(f"{name}: optimizer step", place, why, "torch/optim")
    kept.depends_on_optimizer = working.depends_on_optimizer = True
    yield during(kept, AFTER_STEP, made)
    yield during(working, (STEP, NEXT_STEP), nbytes)


def teacher_lines(setting: Setting) -> OtherLines:
    """Distillation: the teacher's logits and their softmax stay until backward, on the trained model's device."""
    setup, out = setting.setup, setting.program.output
    if not out.shape:
        raise InputError(
            f"a teacher's logits are compared with the model's, which loss {setup.kernels.loss} never makes: take full"
        )
    place = _place(setup.companions.teacher, setting)
    dtype = (
        DTYPES[setup.companions.companion_dtype]
        if setup.companions.companion_dtype
        else setting.program.regime.weights
    )
    model = without_graph(
        setting, companion_config(setting, setup.companions.teacher_model), dtype=dtype
    )
    ours, theirs = int(out.shape[-1]), int(model.output.shape[-1])
    if abs(ours - theirs) > PADDED_VOCABULARY * ours:
        raise InputError(
            f"the teacher's logits are over {theirs:,} tokens and the model's over {ours:,}: they cannot be compared"
        )
    forward = line("teacher's forward (no graph)", place, NO_GRAPH, "torch.no_grad")
    during(forward, phases_after_forward(setting.program), peak_of(model))
    logits = line(
        "teacher's logits",
        setting.device,
        product_text(out.shape, model.output.dtype.nbytes),
        "held by the loop while the loss needs them",
        Category.LOGITS,
    )
    target = line(
        "teacher's probabilities",
        setting.device,
        product_text(out.shape, F32.nbytes),
        "kl_div keeps its target for backward",
        Category.LOGITS,
    )
    elements = out.nbytes // out.dtype.nbytes
    held = (LOSS, BACKWARD, NEXT_LOSS, NEXT_BACKWARD)
    during(logits, held, elements * model.output.dtype.nbytes)
    during(target, held, elements * F32.nbytes)
    return frozen_model_lines("teacher", model.params(), dtype, place, setting) + OtherLines(
        lines=(forward, logits, target),
        passes=(passing(LOSS, place, model),),
        blocks=(logits, target),
    )
