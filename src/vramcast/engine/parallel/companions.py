"""What happens on a rank outside its step: evaluation, frozen companions, saving and resuming.

Companions are placed as TRL and Accelerate place them: sharded like the trained model where the strategy gathers
parameters, whole on every rank elsewhere, divided over tp and cp like the model. A critic, rollouts and companions
across pipeline stages are not described and are refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from vramcast.engine.lines.amounts import Amounts
from vramcast.engine.lines.between_steps import evaluation_lines
from vramcast.engine.lines.companions import (
    ADAPTERS_OFF,
    NO_GRAPH,
    companion_config,
    during,
    frozen_model_lines,
    line,
    params_without_head,
    phases_after_forward,
    teacher_lines,
)
from vramcast.engine.lines.optimizers import state_bytes
from vramcast.engine.lines.setting import OtherLines, Pass, Setting, backbone, without_graph
from vramcast.engine.parallel.fsdp_units import Unit, units_of
from vramcast.engine.parallel.host import OWN_PART, offloads_optimizer
from vramcast.engine.parallel.rank_model import rank_config
from vramcast.engine.parallel.sharding import RankStates, rank_states
from vramcast.engine.parallel.strategies import strategy_changes
from vramcast.engine.parallel.topology import GATHERING, Topology, expert_load, most_expert_load
from vramcast.engine.stream.events import peak_above
from vramcast.engine.stream.fold import peak_by_phase
from vramcast.engine.stream.timeline import Mode, passes, step_events
from vramcast.errors import InputError, UnsupportedError
from vramcast.ledger import (
    BACKWARD,
    EVAL,
    FORWARD,
    HOST,
    LOSS,
    NEXT_BACKWARD,
    NEXT_FORWARD,
    NEXT_STEP,
    RESUME,
    SAVE,
    STEP,
    Category,
)
from vramcast.models.read.config import Config
from vramcast.models.record.dims import Number, maximum
from vramcast.models.record.loss import add_loss
from vramcast.models.record.program import Program
from vramcast.models.record.tape import DTYPES, Dtype, Param
from vramcast.setup.records import Companions

COMPANIONS = ("reference", "reward", "teacher")
AFTER_FORWARD = (BACKWARD, STEP, NEXT_FORWARD, NEXT_BACKWARD, NEXT_STEP, EVAL, SAVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSetting:
    """A rank's model as recorded, with the config it was divided from."""

    setting: Setting  # config and sizes are the rank's
    whole_config: Config
    topology: Topology
    states: RankStates
    units: tuple[Unit, ...]
    mode: Mode


def rank_companions(rank: RankSetting) -> OtherLines:
    _check(rank)
    found = OtherLines(lines=tuple(_saving(rank)), assumptions=tuple(_imbalance(rank)))
    for name in COMPANIONS:
        if getattr(rank.setting.setup.companions, name) not in ("none", "precomputed"):
            found += _companion(rank, name)
    if rank.setting.setup.phases.evaluate:
        found += _evaluating(rank)
    if rank.setting.setup.phases.resume != "none":
        found += _resuming(rank)
    return found


def _imbalance(rank: RankSetting) -> Iterator[str]:
    """How much fuller than assumed a GPU's experts could be."""
    most, assumed = (
        most_expert_load(rank.topology, rank.whole_config),
        expert_load(rank.setting.setup.experts),
    )
    if most is not None and rank.setting.setup.experts.capacity is None:
        yield (
            f"experts of the fullest GPU get {assumed}% of an even share (expert-load); if all tokens chose one GPU's "
            f"experts it would be {most}%, and expert-capacity would bound it"
        )


def _check(rank: RankSetting) -> None:
    setup = rank.setting.setup
    alone = {
        "critic": setup.companions.critic != "none",
        "rollout-tokens": setup.phases.rollout_tokens is not None,
    }
    refused = [name for name, is_asked in alone.items() if is_asked]
    if refused:
        raise UnsupportedError(
            f"{', '.join(refused)} on many GPUs is not described. Estimate it on one GPU, or run the script itself: "
            "vramcast trace train.py --gpus N --rank 0"
        )
    _check_placement(rank)


def _check_placement(rank: RankSetting) -> None:
    """A rank runs the whole of a companion, and on its own GPU."""
    setup = rank.setting.setup
    asked = [
        name
        for name in COMPANIONS
        if getattr(setup.companions, name) not in ("none", "precomputed")
    ]
    if rank.topology.pp > 1 and (asked or setup.phases.evaluate):
        names = ", ".join(asked) or "evaluate"
        raise UnsupportedError(f"{names} across pp {rank.topology.pp} is not described: take pp 1")
    for name in asked:
        if getattr(setup.companions, name) == "cuda:1":
            raise InputError(
                f"{name} cuda:1: every rank of a job on many GPUs has one GPU. Take same or cpu."
            )


def _companion(rank: RankSetting, name: str) -> OtherLines:
    """Its weights, and a forward without graph that gathers them where they are sharded."""
    setting, setup = rank.setting, rank.setting.setup
    place = HOST if getattr(setup.companions, name) == "cpu" else setting.device
    asked = _asked_dtype(setup.companions, name)
    config = rank_config(_config_of(rank, name), rank.topology, setup)
    model = without_graph(setting, config, dtype=asked or setting.program.regime.weights)
    stored = asked or setting.states.recipe.weights
    params = list(_held(rank, model, name, place == HOST))
    passing = line(f"{name} model's forward (no graph)", place, NO_GRAPH, "torch.no_grad")
    running = backbone(model) if name == "reward" else model
    needs = _peak(rank, running, gathers=place != HOST)
    during(
        passing,
        phases_after_forward(setting.program),
        needs if place == HOST else max(needs - _room(rank), 0),
    )
    run = Pass(LOSS, place, lambda: list(step_events(running, _mode(rank, running, gathers=True))))
    if getattr(setup.companions, name) == "adapter":
        return OtherLines(lines=(passing,), passes=(run,), assumptions=(ADAPTERS_OFF,))
    found = frozen_model_lines(f"{name} model", params, stored, place, setting) + OtherLines(
        lines=(passing,), passes=(run,)
    )
    if place != HOST and rank.topology.strategy in ("fsdp1", "fsdp2"):
        left = tuple(_root_left(rank, running, name))
        found += OtherLines(lines=left, blocks=left)
    if name == "teacher":
        found += OtherLines(lines=teacher_lines(setting).lines[2:])  # its logits and their softmax
    how = "sharded like the model" if _sharded(rank) and place != HOST else "whole on every rank"
    return found + OtherLines(assumptions=(f"the {name} model is {how} (TRL, Accelerate)",))


def _asked_dtype(companions: Companions, name: str) -> Dtype | None:
    """Of the companion's weights, where the job says it."""
    is_reference = name == "reference"
    asked = companions.reference_dtype if is_reference else companions.companion_dtype
    return DTYPES[asked] if asked else None


def _config_of(rank: RankSetting, name: str) -> Config:
    """A reference is the model itself; others may be named."""
    if name == "reference":
        return rank.whole_config
    companions = rank.setting.setup.companions
    return companion_config(_undivided(rank), getattr(companions, f"{name}_model"))


def _room(rank: RankSetting) -> int:
    """By how much the phase's peak exceeds what is left when the policy's forward has returned."""
    level: Number = 0
    top: Number = 0
    (phase, _) = phases_after_forward(rank.setting.program)
    for chunk in passes(rank.setting.program, rank.mode):
        if chunk.phase == BACKWARD and any(event.sign > 0 for event in chunk.events):
            break
        if chunk.phase == phase:
            top = maximum(top, level + peak_above(chunk.events))
        level = level + sum(event.sign * event.nbytes for event in chunk.events)
    return int(top - level)


def _root_left(rank: RankSetting, program: Program, name: str) -> Iterator[Amounts]:
    """FSDP's root is not resharded after forward, and no backward of a frozen model will do it."""
    if not _sharded(rank):
        return
    root = sum(
        unit.gathered_bytes
        for unit in units_of(rank.setting.setup, program, rank.topology)
        if unit.is_root
    )
    left = line(
        f"{name} model's root unit, still gathered",
        rank.setting.device,
        "embedding, last norm and head",
        "torch/distributed/fsdp: the root is resharded only in its backward",
        Category.COMMUNICATION,
    )
    yield during(left, AFTER_FORWARD, root)


def _undivided(rank: RankSetting) -> Setting:
    return replace(rank.setting, config=rank.whole_config)


def _sharded(rank: RankSetting) -> bool:
    return rank.topology.strategy in GATHERING and rank.topology.shard > 1


def _held(rank: RankSetting, model: Program, name: str, on_host: bool) -> Iterator[Param]:
    keep = {
        param.name for param in (params_without_head(model) if name == "reward" else model.params())
    }
    if on_host or not _sharded(rank):
        yield from (
            param for param in model.params() if param.name in keep and param.tied_to is None
        )
        return
    flat = rank.topology.strategy == "fsdp1"  # vectors have one parameter's name for many
    shares = rank_states(rank.setting.setup, model, rank.topology).weights
    yield from (param for param in shares if flat or param.name in keep)


def _peak(rank: RankSetting, program: Program, *, gathers: bool) -> int:
    """The largest moment of a pass without graph, gathered units included."""
    peaks = peak_by_phase(program, _mode(rank, program, gathers=gathers))
    return int(maximum(peaks[FORWARD], peaks.get(LOSS, 0)))


def _mode(rank: RankSetting, program: Program, *, gathers: bool) -> Mode:
    windows = (
        strategy_changes(rank.setting.setup, program, rank.topology, fresh=True) if gathers else ()
    )
    return Mode(recompute=lambda placed: "none", changes=windows)


def _evaluating(rank: RankSetting) -> OtherLines:
    """As on one GPU, with units gathered one after the other."""
    found = evaluation_lines(rank.setting)
    if not _sharded(rank):
        return found
    program = without_graph(rank.setting, rank.setting.config)
    add_loss(program, transformers=rank.setting.setup.versions.transformers)
    more = _peak(rank, program, gathers=True) - _peak(rank, program, gathers=False)
    gathered = line(
        "gathered parameters while evaluating",
        rank.setting.device,
        "the root and the units around the one that runs",
        "as in training's forward",
        Category.COMMUNICATION,
    )
    return found + OtherLines(lines=(during(gathered, (EVAL,), more),))


def _saving(rank: RankSetting) -> Iterator[Amounts]:
    """A whole state dict is put together on the GPU piece by piece, each of which goes to the host."""
    if not _sharded(rank) or rank.setting.setup.versions.framework in OWN_PART:
        return
    by_unit = rank.topology.strategy == "fsdp1"
    pieces = [unit.gathered_bytes for unit in rank.units] if by_unit else _whole_params(rank)
    piece = line(
        "gathered for the state dict",
        rank.setting.device,
        "the largest unit" if by_unit else "the largest parameter",
        "torch state_dict with full_state_dict; deepspeed stage3_gather_16bit_weights_on_model_save",
        Category.COMMUNICATION,
    )
    yield during(piece, (SAVE,), max(pieces, default=0))


def _whole_params(rank: RankSetting) -> list[int]:
    item = rank.setting.states.recipe.weights.nbytes
    return [param.numel * item for param in rank.setting.program.params()]


def _resuming(rank: RankSetting) -> OtherLines:
    """What a rank reads: everything (DDP), the weights and its part of the states (ZeRO-1/2), or its part."""
    setting, setup, strategy = rank.setting, rank.setting.setup, rank.topology.strategy
    if setup.phases.resume == "same" and strategy not in ("none", "ddp"):
        raise InputError(f"resume same: {strategy} reads checkpoints to the host. Say resume cpu.")
    place = HOST if setup.phases.resume == "cpu" else setting.device
    ranks = rank.topology.ranks_per_node if place == HOST else 1
    states = rank.states
    item = states.recipe.states.nbytes if states.recipe.states else None
    own = states.trained.total(lambda param: state_bytes(param, setup, item))
    moments = line(
        "states as resumed",
        setting.device,
        "the optimizer's own",
        "Optimizer.load_state_dict",
        Category.OPTIMIZER,
    )
    during(moments, (RESUME,), 0 if offloads_optimizer(setup.offload) else own)
    loaded = line(
        "checkpoint of the ranks, as loaded",
        place,
        f"{ranks} ranks × their weights and states",
        "torch.load; sharded checkpoints are read shard by shard",
        Category.TEMPORARY,
    )
    held = sum(param.nbytes for param in states.weights) + own * (place == HOST)
    during(loaded, (RESUME,), ranks * held)
    return OtherLines(lines=(moments, loaded))
