"""A training step as one stream of births and deaths over the whole model, and where in each phase it peaks.

A Program in; for every phase the largest sum and what was alive then out. Checkpointing is decided here, per section.
Weights, optimizer states and everything else that simply lies there is not in the stream (see `states`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

from vramcast.formulas.events import (
    GRAD_IN,
    GRAD_OUT,
    IN,
    OUT,
    PRODUCTS,
    Backward,
    Event,
    backward_events,
    forward_events,
    kept_ids,
    shared_gradients,
)
from vramcast.ledger import BACKWARD, FORWARD, LOSS
from vramcast.models.program import Program
from vramcast.models.tape import Placed, Section


@dataclass(frozen=True, slots=True)
class Stamped:
    """An event at its place in the step."""

    phase: str
    section: int  # index into Program.placed
    event: Event
    key: Hashable


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePeak:
    """The largest moment of a phase: what was alive, by place in the model."""

    phase: str
    nbytes: int
    at: Placed
    alive: tuple[Stamped, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """How a step is run. `recompute(placed)` is "none", "full" or "selective" for each section."""

    recompute: Callable[[Placed], str]
    fresh_grads: bool = True
    keep_logits: bool = False  # a variable of the training loop holds the model's outputs until the next iteration


def step_events(program: Program, mode: Mode) -> Iterator[Stamped]:
    """Forward through every section, then backward. A recomputed section keeps little and runs forward again."""
    placed = program.placed
    kept_before = _keeps_output(placed, mode)
    cached: list[Stamped] = []
    for index, place in enumerate(placed):
        phase = LOSS if place.name == "loss" else FORWARD
        for event in _forward(place, mode, kept_before[index], program.regime.grad):
            item = Stamped(phase, index, event, _global(event.key, index, None))
            if event.sign > 0 and event.kind == "weight copy" and not _survives(place, event, mode):
                cached.append(item)
            yield item
    for item in cached:  # autocast exits, and with it its cache
        yield Stamped(phase, item.section, _death(item.event), item.key)
    if program.regime.grad:
        yield from _backward(placed, mode, kept_before)


def _forward(place: Placed, mode: Mode, input_kept: bool, grad: bool) -> list[Event]:
    how = mode.recompute(place) if grad else "full"
    keep = {"none": "all", "full": "none", "selective": "products"}[how]
    events = forward_events(place.section, keep=keep, input_kept=input_kept)
    if how == "none" or input_kept or not grad:
        return events
    return [event for event in events if event.key != IN]  # checkpointing holds the input of a block


def _survives(place: Placed, event: Event, mode: Mode) -> bool:
    """Is the weight copy held by the graph, or only by autocast's cache?"""
    saved = {id(value) for op in place.section.ops for value in op.saved}
    return mode.recompute(place) == "none" and event.key in saved


def _death(event: Event) -> Event:
    return Event(-1, event.key, event.nbytes, event.kind, event.label)


def _keeps_output(placed: list[Placed], mode: Mode) -> list[bool]:
    """For each section: does the one before, or a variable, keep the border value itself?"""
    flags = [True]  # ids and pixels belong to the batch
    for before in placed[:-1]:
        keep = {"none": "all", "full": "none", "selective": "products"}[mode.recompute(before)]
        flags.append(id(before.section.outputs[0].storage) in kept_ids(before.section, keep))
    if mode.keep_logits and placed[-1].name == "loss":
        flags[-1] = True
    return flags


def _backward(placed: list[Placed], mode: Mode, kept_before: list[bool]) -> Iterator[Stamped]:
    exists: set[int] = set()
    chain: Hashable | None = None
    for index in reversed(range(len(placed))):
        place, section = placed[index], placed[index].section
        out = section.outputs[0]
        if not out.requires_grad:
            continue
        incoming: Hashable | None = ("outer", id(out.storage)) if id(out.storage) in exists else chain
        if incoming is None:  # the root of backward: a gradient of one
            incoming = ("border gradient", index + 1)
            root = Event(1, GRAD_OUT, out.nbytes, "working", f"gradient of {out.label}")
            yield Stamped(BACKWARD, index, root, incoming)
        how, input_kept = mode.recompute(place), kept_before[index]
        if how != "none":
            yield from _recompute(index, place, how, input_kept)
        back = backward_events(section, fresh_grads=mode.fresh_grads, has_grad=frozenset(exists), input_kept=input_kept)
        exists |= shared_gradients(section)
        yield from _stamped_backward(index, back, incoming)
        if how != "none":
            yield from _clean_up(index, section, how, input_kept)
        chain = _global(back.grad_in, index, incoming) if back.grad_in is not None else None


def _recompute(index: int, place: Placed, how: str, input_kept: bool) -> Iterator[Stamped]:
    """Forward again, this time keeping; what was kept the first time is not made twice."""
    section = place.section
    there = kept_ids(section, "products") if how == "selective" else set()
    saved = kept_ids(section, "all")
    out = section.outputs[0].storage
    for event in forward_events(section, keep="all", input_kept=input_kept):
        if event.key == IN or event.key in there or (event.key == OUT and id(out) in there):
            continue
        key = ("again", index) if event.key == OUT else (index, event.key)
        yield Stamped(BACKWARD, index, event, key)
        if event.key == OUT and event.sign > 0 and id(out) not in saved:
            yield Stamped(BACKWARD, index, _death(event), key)


def _clean_up(index: int, section: Section, how: str, input_kept: bool) -> Iterator[Stamped]:
    """What only the checkpoint held: the input, and products that no backward formula needs."""
    saved = kept_ids(section, "all")
    entry, out = section.inputs[0].storage, section.outputs[0].storage
    if not input_kept and id(entry) not in saved:
        yield Stamped(BACKWARD, index, Event(-1, IN, entry.nbytes, "activation", entry.label), _border(index))
    if how == "selective":
        for op in section.ops:
            value = op.output
            if op.name in PRODUCTS and id(value) not in saved and value is not out:
                yield Stamped(
                    BACKWARD, index, Event(-1, id(value), value.nbytes, "activation", value.label), (index, id(value))
                )


def _stamped_backward(index: int, back: Backward, incoming: Hashable | None) -> Iterator[Stamped]:
    for event in back.events:
        yield Stamped(BACKWARD, index, event, _global(event.key, index, incoming))


def _border(index: int) -> Hashable:
    return ("border", index)


def _global(key: Hashable, index: int, incoming: Hashable | None) -> Hashable:
    """A section's local key as one that is unique in the step."""
    if key == IN:
        return _border(index)
    if key == OUT:
        return _border(index + 1)
    if key == GRAD_OUT:
        return incoming
    if key == GRAD_IN:
        return ("border gradient", index)
    if isinstance(key, tuple) and key[0] == "outer":
        return key
    return (index, key)


def phase_peaks(stream: list[Stamped], placed: list[Placed]) -> list[PhasePeak]:
    """For each phase in order, its largest moment."""
    tops: dict[str, tuple[int, int]] = {}
    level = 0
    for position, item in enumerate(stream):
        level += item.event.sign * int(item.event.nbytes)
        if item.phase not in tops or level > tops[item.phase][0]:
            tops[item.phase] = (level, position)
    return [
        PhasePeak(phase=phase, nbytes=level, at=placed[stream[position].section], alive=alive_at(stream, position))
        for phase, (level, position) in tops.items()
    ]


def alive_at(stream: list[Stamped], position: int) -> tuple[Stamped, ...]:
    alive: dict[Hashable, Stamped] = {}
    for item in stream[: position + 1]:
        if item.event.sign > 0:
            alive[item.key] = item
        else:
            alive.pop(item.key, None)
    return tuple(alive.values())
