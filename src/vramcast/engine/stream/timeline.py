"""A training step as one stream of allocations and frees over the whole model, and where in each phase it peaks.

A Program goes in; out come chunks (one section's events in one phase). Layers of one kind share their events, so that
a fold over chunks is short (see `fold`); stamped with their place, the same events give what is alive at any moment.
Checkpointing is decided here, per section. What is allocated all the time is not in it (see `states`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple, TypeVar

from vramcast.engine.stream.events import (
    GRAD_IN,
    GRAD_OUT,
    IN,
    OUT,
    Backward,
    Event,
    backward_events,
    forward_events,
    is_cached_copy,
    is_selected,
    kept_ids,
    outside_values,
    own_storages,
    used_again,
)
from vramcast.ledger import BACKWARD, FORWARD, LOSS
from vramcast.models.record.program import Program
from vramcast.models.record.tape import PlacedSection, Section, Value

BORDERS = (IN, OUT, GRAD_IN, GRAD_OUT)
KEEP = {"none": "all", "full": "none", "selective": "products"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """How a step is run. `recompute(placed)` is "none", "full" or "selective" for each section."""

    recompute: Callable[[PlacedSection], str]
    fresh_grads: bool = True
    keep_logits: bool = (
        False  # a variable of the training loop holds the model's outputs until the next iteration
    )
    stops_early: bool = False  # a recomputation ends once all that backward needs is there
    changes: tuple[
        Change, ...
    ] = ()  # what a loop or an offload does to the stream (see `loops`, `checkpointing`)


class Chunk(NamedTuple):  # hundreds in a fold, and a search folds hundreds of times
    """One section's events in one phase. `incoming` is the key of the gradient that reaches the section's output."""

    phase: str
    section: int  # index into Program.sections
    events: list[Event]
    incoming: Hashable | None = None
    again: bool = False  # a recomputation: its output is not the border value
    tail: int = 0  # events of a backward that come before anything saved is asked for


Made = TypeVar("Made")
Change = Callable[["Program", "Mode", Iterator[Chunk]], Iterator[Chunk]]


class Stamped(
    NamedTuple
):  # tens of thousands of them in a step: a tuple is made three times as fast as a dataclass
    """An event at its place in the step."""

    phase: str
    section: int
    event: Event
    key: Hashable


class Memo:
    """Events of a section are made once per way of running it, however often the program is folded."""

    def __init__(self, made: dict[Hashable, Any]) -> None:
        self._made = made

    def __call__(self, make: Callable[..., Made], *args: Hashable) -> Made:
        key = (make, *args)
        found: Made | None = self._made.get(key)
        if found is None:
            found = self._made[key] = make(*args)
        return found

    def of_list(self, make: Callable[[list[Any]], Made], items: list[Any]) -> Made:
        """By the list's identity: layers of one kind share it. It is kept, so that no other can have its id."""
        found: tuple[list[Any], Made] | None = self._made.get((make, id(items)))
        if found is None:
            found = self._made[make, id(items)] = (items, make(items))
        return found[1]


@dataclass(frozen=True, slots=True)
class _Links:
    """How sections hang together beyond the chain from one to the next.

    `exported[i]` are storages of section i that later ones use out of turn (encoder states, position biases); they are
    `held` through backward if any of those keeps or recomputes with them. `chained[i]`: the first input of section i is
    the output of the section before.
    """

    exported: list[frozenset[int]]
    chained: list[bool]
    values: dict[int, Value]


def links_of(placed: list[PlacedSection]) -> _Links:
    """Which storages sections use that neither they nor the section right before have made."""
    exported: list[set[int]] = [set() for _ in placed]
    chained = [_follows(placed, index) for index in range(len(placed))]
    values: dict[int, Value] = {}
    maker: dict[int, int] = {}
    sections = {id(place.section): place.section for place in placed}
    own = {key: own_storages(section) for key, section in sections.items()}
    outside = {key: outside_values(section) for key, section in sections.items()}
    for index, place in enumerate(placed):
        used = outside[id(place.section)]
        if not chained[index]:
            entry = place.section.inputs[0].storage
            used = {**used, id(entry): entry}
        for key in used.keys() & maker.keys():
            exported[maker[key]].add(key)
            values[key] = used[key]
        maker.update(dict.fromkeys(own[id(place.section)], index))
    return _Links([frozenset(ids) for ids in exported], chained, values)


def _follows(placed: list[PlacedSection], index: int) -> bool:
    """Is the section's first input the output of the section right before?"""
    if placed[index].index:  # a layer is recorded once, with the first layer's input
        return True
    entry = placed[index].section.inputs[0].storage
    return index > 0 and entry is placed[index - 1].section.outputs[0].storage


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _StepPlan:
    """How each section of a program is run, and who holds what it makes."""

    program: Program
    mode: Mode
    memo: Memo
    links: _Links
    hows: list[str]  # of each section: "none", "full" or "selective"
    kept_before: list[bool]  # of each section: does somebody else hold its first input?
    needed: frozenset[int]  # exported storages that backward needs

    @property
    def sections(self) -> list[PlacedSection]:
        return self.program.sections

    @property
    def has_backward(self) -> bool:
        return self.program.regime.grad

    def how(self, index: int) -> str:
        """In forward: without gradients nothing is kept."""
        return self.hows[index] if self.has_backward else "full"


def _plan_of(program: Program, mode: Mode) -> _StepPlan:
    placed, memo = program.sections, Memo(program.cache)
    links = memo.of_list(links_of, placed)
    hows = [_how(place, mode) for place in placed]
    return _StepPlan(
        program=program,
        mode=mode,
        memo=memo,
        links=links,
        hows=hows,
        kept_before=_keeps_output(placed, hows, mode.keep_logits, links),
        needed=_held(placed, hows, links) if program.regime.grad else frozenset(),
    )


def chunks(program: Program, mode: Mode) -> Iterator[Chunk]:
    """Forward through every section, what ends with it (autocast's cache, masks, what nobody keeps), then backward."""
    plan = _plan_of(program, mode)
    mask = _mask_of(plan)
    if mask is not None:
        yield Chunk(FORWARD, 0, [mask])
    for index, place in enumerate(plan.sections):
        yield Chunk(_forward_phase(place), index, _forward_of(plan, index))
    yield from _end_of_forward(plan, mask)
    if plan.has_backward:
        yield from _BackwardPass(plan).chunks()
    if mask is not None and _outlives_forward(mask):
        yield Chunk(BACKWARD, 0, [_freed(mask)])


def _forward_phase(place: PlacedSection) -> str:
    return LOSS if place.section.name == "loss" else FORWARD


def _forward_of(plan: _StepPlan, index: int) -> list[Event]:
    """The section's events in forward, made once for all sections that are run as this one is."""
    section, links = plan.sections[index].section, plan.links
    return plan.memo(
        _forward,
        section,
        plan.how(index),
        plan.kept_before[index],
        plan.has_backward,
        links.exported[index],
    )


def _mask_of(plan: _StepPlan) -> Event | None:
    """The attention mask's allocation. Backward needs it, too, if it is saved, or if a recomputed block is called with
    it again."""
    mask = plan.program.mask
    if mask is None:
        return None
    is_used_again = plan.program.mask_is_saved or any(how != "none" for how in plan.hows)
    kind = "activation" if plan.has_backward and is_used_again else "working"
    return Event(1, "mask", mask.nbytes, kind, mask.label)


def _outlives_forward(mask: Event) -> bool:
    return mask.kind == "activation"


def _end_of_forward(plan: _StepPlan, mask: Event | None) -> Iterator[Chunk]:
    """What goes when forward returns: the mask, cached copies, and exported storages that backward does not need."""
    phase = _forward_phase(plan.sections[-1])
    if mask is not None and not _outlives_forward(mask):
        yield Chunk(phase, 0, [_freed(mask)])
    for index, place in enumerate(plan.sections):
        copies = plan.memo(_cached_copies, place.section, plan.how(index))
        if copies:
            yield Chunk(phase, index, copies)
    for index, place in enumerate(plan.sections):
        dropped = plan.links.exported[index] - plan.needed
        if dropped:
            yield Chunk(phase, index, _exported_frees(place.section, dropped, plan.links))


def _how(place: PlacedSection, mode: Mode) -> str:
    """A block that no gradient passes is not run again, so that nothing of it is held either."""
    idle = _hands_on(place.section) or not place.section.outputs[0].requires_grad
    return "none" if idle else mode.recompute(place)


def _hands_on(section: Section) -> bool:
    """Does the section give its input on as it is?"""
    return section.outputs[0].storage is section.inputs[0].storage


def _held(placed: list[PlacedSection], hows: list[str], links: _Links) -> frozenset[int]:
    """Exported storages that some section keeps for backward, or needs to recompute."""
    found: set[int] = set()
    if not links.values:
        return frozenset()
    for section, how in {(place.section, how) for place, how in zip(placed, hows, strict=True)}:
        needed = (
            kept_ids(section, "all")
            if how == "none"
            else {id(v.storage) for op in section.ops for v in op.inputs}
        )
        if section.outputs[0].requires_grad:
            found |= needed & links.values.keys()
    return frozenset(found)


def _exported_frees(section: Section, ids: frozenset[int], links: _Links) -> list[Event]:
    out = section.outputs[0].storage
    values = sorted(((key == id(out), key) for key in ids), key=lambda pair: pair[0])
    return [
        Event(
            -1,
            OUT if is_out else key,
            links.values[key].nbytes,
            "activation",
            links.values[key].label,
        )
        for is_out, key in values
    ]


def _forward(
    section: Section, how: str, input_kept: bool, grad: bool, exported: frozenset[int]
) -> list[Event]:
    events = forward_events(section, keep=KEEP[how], input_kept=input_kept, exported=exported)
    if how == "none" or input_kept or not grad:
        return events
    return [
        event for event in events if event.key != IN
    ]  # checkpointing holds the input of a block


def _cached_copies(section: Section, how: str) -> list[Event]:
    """What goes when forward returns: weight copies that only autocast's cache held, and a key/value cache that no
    backward needs."""
    saved = kept_ids(section, "all") if how == "none" else set()
    held = [
        op.output
        for op in section.ops
        if is_cached_copy(op.output) or (op.output.is_cache and not op.output.owner)
    ]
    kinds = {True: "weight copy", False: "kv cache"}
    return [
        Event(-1, id(value), value.nbytes, kinds[value.copy_of is not None], value.label)
        for value in held
        if id(value) not in saved
    ]


def _freed(event: Event) -> Event:
    return Event(-1, event.key, event.nbytes, event.kind, event.label)


def _keeps_output(
    placed: list[PlacedSection], hows: list[str], keep_logits: bool, links: _Links
) -> list[bool]:
    """For each section: is its first input held by somebody else (the batch, the section before, later sections)?"""
    flags = [True]
    known: dict[Hashable, bool] = {}
    for index, before in enumerate(placed[:-1]):
        out = id(before.section.outputs[0].storage)
        key = (before.section, hows[index])
        if key not in known:
            known[key] = out in kept_ids(before.section, KEEP[hows[index]])
        flags.append(known[key] or not links.chained[index + 1] or out in links.exported[index])
    if keep_logits and placed[-1].section.name == "loss":
        flags[-1] = True
    return flags


@dataclass(slots=True, eq=False)
class _BackwardPass:
    """Backward from the last section to the first, and what has happened so far."""

    plan: _StepPlan
    given: frozenset[int] = frozenset()  # ids of what has a gradient by now
    chain: Hashable | None = None  # the key of the gradient that the section after has left
    pinned: list[Chunk] = field(default_factory=list)  # what goes with the graph

    def chunks(self) -> Iterator[Chunk]:
        links = self.plan.links
        for index in reversed(range(len(self.plan.sections))):
            section = self.plan.sections[index].section
            if section.outputs[0].requires_grad:
                yield from self._through(index, section)
            ended = links.exported[index] & self.plan.needed
            if ended:
                yield Chunk(BACKWARD, index, _exported_frees(section, ended, links))
        yield from self.pinned

    def _through(self, index: int, section: Section) -> Iterator[Chunk]:
        """One section: recomputed if need be, then its backward, then what only the checkpoint held goes."""
        plan, mode, memo = self.plan, self.plan.mode, self.plan.memo
        how, input_kept = plan.hows[index], plan.kept_before[index]
        exported = plan.links.exported[index]
        incoming = self._incoming(section, exported)
        if incoming is None:
            incoming = ("border gradient", index + 1)
            yield Chunk(BACKWARD, index, [_root_gradient(section)], incoming)
        if how != "none":
            again = memo(_recompute, section, how, input_kept, exported, mode.stops_early)
            yield Chunk(BACKWARD, index, again, again=True)
        is_outside = not plan.links.chained[index]
        back = memo(_back, section, mode.fresh_grads, self.given, input_kept, exported, is_outside)
        self._note_given(back)
        events = memo(_outlived, mode.keep_logits, how, back)
        yield Chunk(BACKWARD, index, events, incoming, tail=back.tail)
        left = memo(_pinned, mode.keep_logits, how, back)
        if left:
            self.pinned.append(Chunk(BACKWARD, index, left))
        if how != "none":
            ended = memo(_clean_up, section, how, input_kept, exported)
            yield Chunk(BACKWARD, index, ended, incoming)
        self.chain = None if back.grad_in is None else _global(back.grad_in, index, incoming)

    def _incoming(self, section: Section, exported: frozenset[int]) -> Hashable | None:
        """The key of the gradient that reaches the section's output; None at the root of backward."""
        out = id(section.outputs[0].storage)
        return ("outer", out) if out in self.given and out in exported else self.chain

    def _note_given(self, back: Backward) -> None:
        """The set stays the same object while nothing new is in it: it is part of memo keys."""
        if not back.given <= self.given:
            self.given = self.given | back.given


def _root_gradient(section: Section) -> Event:
    """Backward begins with a gradient of one."""
    out = section.outputs[0]
    return Event(1, GRAD_OUT, out.nbytes, "working", f"gradient of {out.label}")


def _back(
    section: Section,
    fresh: bool,
    given: frozenset[int],
    input_kept: bool,
    exported: frozenset[int],
    outside: bool,
) -> Backward:
    return backward_events(
        section,
        fresh_grads=fresh,
        has_grad=given,
        input_kept=input_kept,
        exported=exported,
        entry_is_outside=outside,
    )


def _outlived(held: bool, how: str, back: Backward) -> list[Event]:
    """With `outputs` held by a variable, past_key_values outlives backward. What custom Functions pinned lives as long
    as the graph does, which for a recomputed block is its own backward."""
    stays = {*(("kv cache",) if held else ()), *(("pinned",) if how == "none" else ())}
    left = [event for event in back.events if event.sign > 0 or event.kind not in stays]
    return (
        left if len(left) < len(back.events) else back.events
    )  # one list, so its sums are taken once


def _pinned(held: bool, how: str, back: Backward) -> list[Event]:
    """What goes with the graph, when the loss is dropped after backward; `outputs` would hold the graph longer."""
    if held or how != "none":
        return []
    return [event for event in back.events if event.sign < 0 and event.kind == "pinned"]


def _recompute(
    section: Section, how: str, input_kept: bool, exported: frozenset[int], stops_early: bool
) -> list[Event]:
    """Forward again, this time keeping; what was kept the first time is not made twice. Autocast's cache goes with it,
    as after any forward."""
    is_selective = how == "selective"
    there = exported | kept_ids(section, "products") if is_selective else exported
    used = used_again(section) - exported if is_selective else frozenset()
    rerun = forward_events(section, keep="all", input_kept=input_kept, stops=stops_early)
    events = list(_made_again(section, rerun, there, used))
    left = _left_alive(events)
    return [*events, *(copy for copy in _cached_copies(section, "none") if copy.key in left)]


def _made_again(
    section: Section, rerun: list[Event], there: frozenset[int], used: frozenset[int]
) -> Iterator[Event]:
    """A recomputation's events. What is `there` already is not allocated again, but some of it is `used` up; the
    output is dropped at once unless an op saved it."""
    out = id(section.outputs[0].storage)
    known = {IN, *there, *((OUT,) if out in there else ())}
    is_saved = out in kept_ids(section, "all")
    for event in rerun:
        if event.key in known:
            if event.key in used and event.sign < 0:
                yield event
            continue
        yield event
        if event.key == OUT and event.sign > 0 and not is_saved:
            yield _freed(event)


def _left_alive(events: list[Event]) -> set[Hashable]:
    """Keys that are allocated and never freed."""
    allocated = {event.key for event in events if event.sign > 0}
    return allocated - {event.key for event in events if event.sign < 0}


def _clean_up(
    section: Section, how: str, input_kept: bool, exported: frozenset[int]
) -> list[Event]:
    """What only the checkpoint held: the input, and products that no backward formula needs."""
    saved = kept_ids(section, "all")
    entry, out = section.inputs[0].storage, section.outputs[0].storage
    events = []
    if not input_kept and id(entry) not in saved:
        events.append(Event(-1, IN, entry.nbytes, "activation", entry.label))
    if how == "selective":
        left = saved | exported | used_again(section)
        for op in section.ops:
            value = op.output
            if is_selected(op) and id(value) not in left and value is not out:
                events.append(Event(-1, id(value), value.nbytes, "activation", value.label))
    return events


def passes(program: Program, mode: Mode) -> Iterator[Chunk]:
    """The chunks as the job's loop has them."""
    stream = chunks(program, mode)
    for change in mode.changes:
        stream = change(program, mode, stream)
    return stream


# ---- one job: stamped events


_stamped = partial(tuple.__new__, Stamped)  # what Stamped(...) comes to, without a call of Python's


def step_events(program: Program, mode: Mode) -> Iterator[Stamped]:
    borders, memo = borders_of(program.sections), Memo(program.cache)
    for chunk in passes(program, mode):
        phase, section, events = chunk.phase, chunk.section, chunk.events
        own, others = memo.of_list(_local_keys, events)
        keys: list[Hashable] = list(zip(repeat(section), own))
        for at in others:
            keys[at] = key_in_step(chunk, events[at], borders)
        yield from map(_stamped, zip(repeat(phase), repeat(section), events, keys))


def _local_keys(events: list[Event]) -> tuple[list[Hashable], list[int]]:
    """The events' keys in their section, and the places of those that mean something beyond it."""
    keys = [event.key for event in events]
    return keys, [
        at
        for at, key in enumerate(keys)
        if key in BORDERS or (type(key) is tuple and key[0] == "outer")
    ]


def key_in_step(chunk: Chunk, event: Event, borders: list[int]) -> Hashable:
    """The event's key, unique in the step."""
    if chunk.again and event.key == OUT:
        return ("again", chunk.section)
    if event.key in (IN, OUT):
        return ("border", borders[chunk.section + (event.key == OUT)])
    return _global(event.key, chunk.section, chunk.incoming)


def borders_of(placed: list[PlacedSection]) -> list[int]:
    """The number of the value before each section and after the last: a section that hands its input on makes none."""
    numbers = [0]
    for index, place in enumerate(placed, 1):
        numbers.append(numbers[-1] if _hands_on(place.section) else index)
    return numbers


def _global(key: Hashable, index: int, incoming: Hashable | None) -> Hashable:
    """A section's local key as one that is unique in the step."""
    if key == GRAD_OUT:
        return incoming
    if key == GRAD_IN:
        return ("border gradient", index)
    if isinstance(key, tuple) and key[0] == "outer":
        return key
    return (index, key)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePeak:
    """The largest moment of a phase: what was alive, by place in the model."""

    phase: str
    nbytes: int
    at: PlacedSection
    alive: tuple[Stamped, ...]


def phase_peaks(stream: list[Stamped], placed: list[PlacedSection]) -> list[PhasePeak]:
    """For each phase in order, its largest moment."""
    tops: dict[str, tuple[int, int]] = {}
    level, seen, top = 0, "", 0
    for position, (phase, _, (sign, _, nbytes, _, _), _) in enumerate(stream):
        level += sign * int(nbytes)
        if phase != seen:
            seen, top = phase, tops[phase][0] if phase in tops else level - 1
        if level > top:
            top = level
            tops[phase] = (level, position)
    alive = _alive_after(stream, sorted(position for _, position in tops.values()))
    return [
        PhasePeak(
            phase=phase, nbytes=level, at=placed[stream[position].section], alive=alive[position]
        )
        for phase, (level, position) in tops.items()
    ]


def alive_at(stream: list[Stamped], position: int) -> tuple[Stamped, ...]:
    return _alive_after(stream, (position,))[position]


def _alive_after(stream: list[Stamped], positions: Iterable[int]) -> dict[int, tuple[Stamped, ...]]:
    """At several positions, which come in order."""
    alive: dict[Hashable, Stamped] = {}
    found, start = {}, 0
    for position in positions:
        for item in stream[start : position + 1]:
            _, _, event, key = item
            if event[0] > 0:
                alive[key] = item
            else:
                alive.pop(key, None)
        found[position], start = tuple(alive.values()), position + 1
    return found
