"""A training step as one stream of allocations and frees over the whole model, and where in each phase it peaks.

Input: a Program and a Mode. Output: chunks, each the events of one section in one phase. Identical layers share their
list of events, so adding them up is cheap (see `fold`). `step_events` gives every event its section and a key that is
unique in the step, which tells what is alive at any moment. Whether a section is recomputed is decided here. Weights
and optimizer states are not part of the stream (see `states`).

Example: two layers of the section in `events` (linear, relu, linear on 2 × 4 fp32), without checkpointing. The input
belongs to the batch and is not counted:

    forward    layer 0    +64  +64  -64  +32      sum  64  128   64   96
               layer 1    +64  +64  -64  +32      sum 160  224  160  192    peak of forward: 224, in layer 1
    backward   loss       +32                     sum 224
               layer 1, then layer 0                                        peak of backward: 640, in layer 0

Of the 640 bytes, 4 × 128 are gradients of weights. With full checkpointing the peak of forward is 160.
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
from vramcast.models.record.tape import Op, PlacedSection, Section, Value

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
    keep_cache: bool = False  # and that has the model's own past_key_values
    stops_early: bool = False  # a recomputation ends once everything that backward needs exists
    changes: tuple[
        Change, ...
    ] = ()  # applied to the stream by a training loop or by offloading (see `gate_loops`, `checkpointing`)


class Chunk(NamedTuple):  # a tuple for speed: a search makes tens of thousands
    """One section's events in one phase. `incoming` is the key of the gradient that reaches the section's output."""

    phase: str
    section: int  # index into Program.sections
    events: list[Event]
    incoming: Hashable | None = None
    again: bool = False  # a recomputation: its output is a second tensor, not the section's output
    tail: int = 0  # in backward: how many events come before the first saved tensor is needed


Made = TypeVar("Made")
Change = Callable[["Program", "Mode", Iterator[Chunk]], Iterator[Chunk]]


class Stamped(
    NamedTuple
):  # tens of thousands in a step: constructing a tuple is three times as fast as a dataclass
    """An event with its phase, its section and a key that is unique in the step."""

    phase: str
    section: int
    event: Event
    key: Hashable


class Memo:
    """Caches results per program: a section's events are made once for each way of running it."""

    def __init__(self, made: dict[Hashable, Any]) -> None:
        self._made = made

    def __call__(self, make: Callable[..., Made], *args: Hashable) -> Made:
        key = (make, *args)
        found: Made | None = self._made.get(key)
        if found is None:
            found = self._made[key] = make(*args)
        return found

    def of_list(self, make: Callable[[list[Any]], Made], items: list[Any]) -> Made:
        """Cached by the list's identity: identical layers share one list. The list is kept, so its id stays unique."""
        found: tuple[list[Any], Made] | None = self._made.get((make, id(items)))
        if found is None:
            found = self._made[make, id(items)] = (items, make(items))
        return found[1]


@dataclass(frozen=True, slots=True)
class _Links:
    """Which tensors sections share, other than the output that each passes to the next.

    `exported[i]`: storages of section i that are used by later sections than the next (encoder states, position
    biases). They stay alive until backward if such a section saves them or recomputes with them. `chained[i]`: the
    first input of section i is the output of the section before. `values`: the exported storages by id. `last_use`: the
    last section that uses each, and `ending`: for a section, the makers of those that it is the last to use.
    """

    exported: list[frozenset[int]]
    chained: list[bool]
    values: dict[int, Value]
    last_use: dict[int, int]
    ending: dict[int, tuple[int, ...]]


def links_of(placed: list[PlacedSection]) -> _Links:
    """Find the storages that a section uses although neither it nor the section right before made them."""
    exported: list[set[int]] = [set() for _ in placed]
    chained = [_follows(placed, index) for index in range(len(placed))]
    values: dict[int, Value] = {}
    maker: dict[int, int] = {}
    last_use: dict[int, int] = {}
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
            last_use[key] = index
        maker.update(dict.fromkeys(own[id(place.section)], index))
    ending: dict[int, set[int]] = {}
    for key, index in last_use.items():
        ending.setdefault(index, set()).add(maker[key])
    return _Links(
        exported=[frozenset(ids) for ids in exported],
        chained=chained,
        values=values,
        last_use=last_use,
        ending={index: tuple(sorted(makers)) for index, makers in ending.items()},
    )


def _follows(placed: list[PlacedSection], index: int) -> bool:
    """Is the section's first input the output of the section right before?"""
    if placed[index].index:  # a layer is recorded once, with the first layer's input
        return True
    entry = placed[index].section.inputs[0].storage
    return index > 0 and entry is placed[index - 1].section.outputs[0].storage


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _StepPlan:
    """How each section of a program is run, and which of its tensors others hold."""

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
    """Forward through every section, the frees at its end (autocast's cache, masks, unneeded tensors), then
    backward."""
    plan = _plan_of(program, mode)
    mask = _mask_of(plan)
    if mask is not None:
        yield Chunk(FORWARD, 0, [mask])
    for index, place in enumerate(plan.sections):
        yield Chunk(_forward_phase(place), index, _forward_of(plan, index).called)
        yield from _after_last_use(plan, index)
    yield from _end_of_forward(plan, mask)
    if plan.has_backward:
        yield from _BackwardPass(plan).chunks()
    if mask is not None and _outlives_forward(mask):
        yield Chunk(BACKWARD, 0, [_freed(mask)])


def _forward_phase(place: PlacedSection) -> str:
    return LOSS if place.section.name == "loss" else FORWARD


def _forward_of(plan: _StepPlan, index: int) -> _Forward:
    """The section's events in forward. Identical sections that are run the same way share one list."""
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
    """The attention mask's allocation. Backward needs the mask if an op saves it or if a block is recomputed."""
    mask = plan.program.mask
    if mask is None:
        return None
    is_used_again = plan.program.mask_is_saved or any(how != "none" for how in plan.hows)
    kind = "activation" if plan.has_backward and is_used_again else "working"
    return Event(1, "mask", mask.nbytes, kind, mask.label)


def _outlives_forward(mask: Event) -> bool:
    return mask.kind == "activation"


def _end_of_forward(plan: _StepPlan, mask: Event | None) -> Iterator[Chunk]:
    """When forward returns: the mask and autocast's copies go, whoever called the model copies what it got, then what
    only the call held goes: caches that backward does not need."""
    phase = _forward_phase(plan.sections[-1])
    if mask is not None and not _outlives_forward(mask):
        yield Chunk(phase, 0, [_freed(mask)])
    for index, place in enumerate(plan.sections):
        copies = plan.memo(_weight_copies, place.section, plan.how(index))
        if copies:
            yield Chunk(phase, index, copies)
    last = len(plan.sections) - 1
    by_caller = _forward_of(plan, last).by_caller
    if by_caller:
        yield Chunk(phase, last, by_caller)
    for index, place in enumerate(plan.sections):
        caches = plan.memo(_unneeded_caches, place.section, plan.how(index))
        if caches:
            yield Chunk(phase, index, caches)


def _after_last_use(plan: _StepPlan, index: int) -> Iterator[Chunk]:
    """Frees of exported storages that only this section and earlier ones use, and that backward does not need."""
    phase, links = _forward_phase(plan.sections[index]), plan.links
    for maker in links.ending.get(index, ()):
        section = plan.sections[maker].section
        dropped = frozenset(
            key for key in _frees(plan, maker) - plan.needed if links.last_use[key] == index
        )
        if dropped:
            yield Chunk(phase, maker, _exported_frees(section, dropped, links))


def _frees(plan: _StepPlan, index: int) -> frozenset[int]:
    """The exported storages of a section that no variable of the loop holds."""
    values = plan.links.values
    return frozenset(key for key in plan.links.exported[index] if not values[key].is_handed_on)


def _how(place: PlacedSection, mode: Mode) -> str:
    """A block without gradients is never recomputed: "none" for it, whatever the mode says."""
    idle = _hands_on(place.section) or not place.section.outputs[0].requires_grad
    return "none" if idle else mode.recompute(place)


def _hands_on(section: Section) -> bool:
    """Does the section return its input unchanged?"""
    return section.outputs[0].storage is section.inputs[0].storage


def _held(placed: list[PlacedSection], hows: list[str], links: _Links) -> frozenset[int]:
    """Exported storages that some section saves for backward or needs for its recomputation."""
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


class _Forward(NamedTuple):
    """A section's events while the model is called, and those after it has returned."""

    called: list[Event]
    by_caller: list[Event]


def _forward(
    section: Section, how: str, input_kept: bool, grad: bool, exported: frozenset[int]
) -> _Forward:
    events = forward_events(section, keep=KEEP[how], input_kept=input_kept, exported=exported)
    if how != "none" and grad and not input_kept:
        events = [
            event for event in events if event.key != IN
        ]  # checkpointing holds a block's input
    outside = {id(op.output) for op in section.ops if op.by_caller}
    end = next((at for at, event in enumerate(events) if event.key in outside), len(events))
    return _Forward(events[:end] if outside else events, events[end:])


def _weight_copies(section: Section, how: str) -> list[Event]:
    """Frees when autocast ends: weight copies that only its cache held."""
    copies = [op.output for op in section.ops if is_cached_copy(op.output)]
    return _frees_of_unsaved(section, how, copies, "weight copy")


def _unneeded_caches(section: Section, how: str) -> list[Event]:
    """Frees when forward returns: a key/value cache that backward does not need."""
    caches = [op.output for op in section.ops if op.output.is_cache and not op.output.owner]
    return _frees_of_unsaved(section, how, caches, "kv cache")


def _frees_of_unsaved(section: Section, how: str, values: list[Value], kind: str) -> list[Event]:
    saved = kept_ids(section, "all") if how == "none" else set()
    return [
        Event(-1, id(value), value.nbytes, kind, value.label)
        for value in values
        if id(value) not in saved
    ]


def _freed(event: Event) -> Event:
    return Event(-1, event.key, event.nbytes, event.kind, event.label)


def _keeps_output(
    placed: list[PlacedSection], hows: list[str], keep_logits: bool, links: _Links
) -> list[bool]:
    """For each section: is its first input held elsewhere (by the batch, the section before, later sections)?"""
    flags = [True]
    known: dict[Hashable, bool] = {}
    for index, before in enumerate(placed[:-1]):
        out = id(before.section.outputs[0].storage)
        key = (before.section, hows[index])
        if key not in known:
            known[key] = out in kept_ids(before.section, KEEP[hows[index]])
        flags.append(known[key] or not links.chained[index + 1] or out in links.exported[index])
    last = placed[-1].section
    if keep_logits and last.name == "loss" and not any(map(_hands_on_copy, last.ops)):
        flags[-1] = True
    return flags


def _hands_on_copy(op: Op) -> bool:
    """Is the op's result what `outputs` holds instead of the logits?"""
    return op.output.is_handed_on and bool(op.inputs)


@dataclass(slots=True, eq=False)
class _BackwardPass:
    """Backward from the last section to the first, and what has happened so far."""

    plan: _StepPlan
    given: frozenset[int] = frozenset()  # ids of parameters and values that have a gradient by now
    chain: Hashable | None = None  # key of the gradient that the next section left for its input
    pinned: list[Chunk] = field(default_factory=list)  # frees at the end of the graph

    def chunks(self) -> Iterator[Chunk]:
        links = self.plan.links
        for index in reversed(range(len(self.plan.sections))):
            section = self.plan.sections[index].section
            if section.outputs[0].requires_grad:
                yield from self._through(index, section)
            ended = _frees(self.plan, index) & self.plan.needed
            if ended:
                yield Chunk(BACKWARD, index, _exported_frees(section, ended, links))
        yield from self.pinned

    def _through(self, index: int, section: Section) -> Iterator[Chunk]:
        """One section: its recomputation if any, its backward, then frees of what only checkpointing held."""
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
        events = memo(_outlived, mode.keep_cache, how, back)
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
        """The set stays the same object unless something new is added: it is part of cache keys."""
        if not back.given <= self.given:
            self.given = self.given | back.given


def _root_gradient(section: Section) -> Event:
    """Backward starts with the gradient of the last output."""
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
    """Backward's events without frees of tensors that outlive it. past_key_values does if a variable holds `outputs`.
    Attributes of custom autograd Functions live as long as the graph; that of a recomputed block ends with its
    backward."""
    stays = {*(("kv cache",) if held else ()), *(("pinned",) if how == "none" else ())}
    left = [event for event in back.events if event.sign > 0 or event.kind not in stays]
    return (
        left if len(left) < len(back.events) else back.events
    )  # the same list where nothing changed, so that its sums are computed once


def _pinned(held: bool, how: str, back: Backward) -> list[Event]:
    """Frees when the graph goes: with the loss after backward. If a variable holds `outputs`, the graph lives
    longer."""
    if held or how != "none":
        return []
    return [event for event in back.events if event.sign < 0 and event.kind == "pinned"]


def _recompute(
    section: Section, how: str, input_kept: bool, exported: frozenset[int], stops_early: bool
) -> list[Event]:
    """Forward again, this time keeping what backward needs. What was kept the first time is not allocated again.
    Autocast's cache is freed at the end, as after any forward."""
    is_selective = how == "selective"
    there = exported | kept_ids(section, "products") if is_selective else exported
    used = used_again(section) - exported if is_selective else frozenset()
    rerun = forward_events(section, keep="all", input_kept=input_kept, stops=stops_early)
    events = list(_made_again(section, rerun, there, used))
    left = _left_alive(events)
    ended = (*_weight_copies(section, "none"), *_unneeded_caches(section, "none"))
    return [*events, *(each for each in ended if each.key in left)]


def _made_again(
    section: Section, rerun: list[Event], there: frozenset[int], used: frozenset[int]
) -> Iterator[Event]:
    """A recomputation's events. Tensors that are `there` already are not allocated again; those in `used` are freed
    after their last use. The output is freed at once unless an op saved it."""
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
    """Frees of what only checkpointing held: the input, and kept matrix products that no backward formula needs."""
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
    """The chunks with the changes that the job's training loop and offloading make."""
    stream = chunks(program, mode)
    for change in mode.changes:
        stream = change(program, mode, stream)
    return stream


# ---- one job: stamped events


_stamped = partial(tuple.__new__, Stamped)  # the same as Stamped(...), without a Python-level call


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
    """The events' keys in their section, and the positions of keys that other sections share."""
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
    """A number for each section's input and for the last output. A section that returns its input adds no new
    number."""
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
    """The moment of a phase with the most bytes alive: where in the model it is, and what was alive."""

    phase: str
    nbytes: int
    at: PlacedSection
    alive: tuple[Stamped, ...]


def phase_peaks(stream: list[Stamped], placed: list[PlacedSection]) -> list[PhasePeak]:
    """The peak of each phase, in the order of the phases."""
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
    """What is alive after the event at each of these positions, which are sorted."""
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
