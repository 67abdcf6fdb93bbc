"""Writes a job's two steps as a Script for the allocator, and replays it on a card."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from vramcast.catalog.gpus import Gpu
from vramcast.engine.lines.batch import batch_sizes
from vramcast.engine.lines.optimizers import KNOWN, is_paged, state_tensors, temporary_lists
from vramcast.engine.lines.overheads import context_entries, workspaces
from vramcast.engine.lines.states import gradient_bytes
from vramcast.engine.lines.training_step import Step, loss_apart
from vramcast.engine.replay.run import Replayed, Script, Shorter, replay
from vramcast.engine.replay.varying_lengths import Earlier, Measure
from vramcast.engine.stream.events import share_of
from vramcast.engine.stream.timeline import Stamped
from vramcast.ledger import BACKWARD, LOSS, Category
from vramcast.models.record.program import Program
from vramcast.setup import Setup
from vramcast.setup.records import Versions


def step_script(
    step: Step,
    first: list[Stamped],
    later: list[Stamped],
    resident: tuple[int, ...],
    gpu: Gpu | None,
) -> Script:
    """The script of a job on one GPU. `resident`: sizes of further tensors that are allocated from the start."""
    states, setup = step.states, step.setup
    item = states.recipe.states.nbytes if states.recipe.states else None
    return Script(
        weights=(*(held.nbytes for held in tensors_from_start(step)), *resident),
        first=first,
        later=later,
        states=tuple(held.nbytes for held in states_of_params(step)),
        step_temporaries=temporary_lists(states.trained, setup, item),
        small=batch_sizes(step.program, setup),
        workspaces=workspaces(setup.versions, gpu),
        states_from_start=KNOWN[setup.optimizer.name].from_start,
        last_section=len(step.program.sections) - 1,
        old_until=LOSS if loss_apart(setup) else BACKWARD,
        zero_grad_first=not step.grads_in_forward,
        accumulates=setup.data.accumulate > 1,
        zero_grad_behind=step.grads_in_forward and not step.zeroed_in_place,
    )


class Held(NamedTuple):
    """A tensor that is allocated from the start, and the parameter that it belongs to."""

    category: Category
    param: str
    nbytes: int


def tensors_from_start(step: Step) -> Iterator[Held]:
    """Weights, gradients that are never freed, master weights, and an EMA copy on the same device."""
    states = step.states
    for param in states.params:
        yield Held(Category.WEIGHTS, param.name, param.nbytes)
    if step.accumulates_apart:
        for param in states.trained:
            yield Held(Category.GRADIENTS, param.name, gradient_bytes(param, states.recipe))
    for category, is_held in (
        (Category.MASTER, states.recipe.master),
        (Category.COMPANION, step.setup.companions.ema == "same"),
    ):
        if is_held:
            for param in states.trained:
                yield Held(category, param.name, 4 * param.numel)


def states_of_params(step: Step) -> Iterator[Held]:
    """The optimizer's states on the card, in the order in which they are made."""
    states, setup = step.states, step.setup
    item = states.recipe.states.nbytes if states.recipe.states else None
    for param in states.trained:
        if not is_paged(setup.optimizer, param):
            for nbytes in state_tensors(param, setup, item):
                yield Held(Category.OPTIMIZER, param.name, nbytes)


def roughly_reserved(largest: Script, longest: int) -> Measure:
    """A function that gives roughly the bytes reserved after batches of certain lengths. It replays only the largest
    tensors, scaled with the length, and caches its results."""
    shorter, known = Shorter(largest.first, longest), dict[Earlier, int]()

    def measure(earlier: Earlier) -> int:
        if earlier not in known:
            streams = tuple(map(shorter.of, earlier.lengths))
            script = replace(largest, earlier=streams, stepped_after=earlier.stepped_after)
            known[earlier] = replay(script, capacity_bytes=None, conf="").peak_reserved_bytes
        return known[earlier]

    return measure


def of_same(stream: list[Stamped], program: Program, other: Program) -> list[Stamped]:
    pairs = zip(program.sections, other.sections, strict=True)
    same = {
        id(a): id(b)
        for one, two in pairs
        for a, b in zip(one.section.params, two.section.params, strict=True)
    }
    keys = {("gradient", own): ("gradient", key) for own, key in same.items()}
    shares = {share_of(own): share_of(key) for own, key in same.items()}
    return [
        item._replace(key=(item.section, keys[item.event.key]))
        if item.event.key in keys
        else item._replace(key=shares[item.event.key])
        if item.event.key in shares
        else item
        for item in stream
    ]


def replayed_on_card(
    script: Script, gpu: Gpu | None, setup: Setup, *, card_only: bool = False
) -> Replayed:
    """Replay on the card: when it is full, torch releases cached blocks. If that runs out of memory, replay on a card
    without limit, unless `card_only`."""
    if gpu is not None and gpu.total_bytes is not None:
        room, asked = room_on(setup.versions, gpu), least_bytes(script)
        if asked > room and card_only:
            return Replayed(
                peak_requested_bytes=asked,
                peak_allocated_bytes=asked,
                peak_reserved_bytes=asked,
                out_of_memory=True,
            )
        if asked <= room:
            replayed = replay(script, capacity_bytes=room, conf=setup.alloc_conf)
            if card_only or not replayed.out_of_memory:
                return replayed
    return replay(script, capacity_bytes=None, conf=setup.alloc_conf)


def room_on(versions: Versions, gpu: Gpu) -> int:
    return gpu.capacity_bytes() - sum(
        entry.nbytes for entry in context_entries(versions, gpu, "cuda:0")
    )


def least_bytes(script: Script) -> int:
    """The most bytes requested at once: a lower bound of what the allocator needs. Tensors that survive from one step
    to the next are not counted."""
    persistent = sum(script.weights) + sum(script.small) + sum(script.workspaces)
    later = _top(script.later)
    first = later if script.first is script.later else _top(script.first)
    return persistent + max(first, sum(script.states) + later)


def _top(stream: list[Stamped]) -> int:
    level = top = 0
    for _, _, (sign, _, nbytes, _, _), _ in stream:
        level += sign * int(nbytes)
        if level > top:
            top = level
    return top
