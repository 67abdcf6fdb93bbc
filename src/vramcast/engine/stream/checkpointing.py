"""Activation checkpointing beyond keep-or-recompute: reentrant recomputation, and block inputs on the host.

Both change the stream of allocations and frees that `timeline` makes. `recompute_rule` decides which blocks are
recomputed. `pinned_line` says how much pinned host memory offloaded inputs take.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator

from vramcast.engine.lines.amounts import Amounts
from vramcast.engine.stream.events import GRAD_OUT, IN, OUT, Event, kept_ids
from vramcast.engine.stream.timeline import KEEP, Change, Chunk, Memo, Mode, links_of
from vramcast.errors import InputError
from vramcast.ledger import BACKWARD, FORWARD, PHASES, PINNED, Category
from vramcast.models.record.dims import product_text
from vramcast.models.record.program import Program
from vramcast.models.record.tape import PlacedSection, Section
from vramcast.setup import Setup
from vramcast.setup.records import Checkpointing

STOPS_FROM = (2, 1)  # torch: early stop became the default (pytorch#96866)
# How many copies to the host may be in progress while later blocks run. torchtune's OffloadActivations
# (max_fwd_stash_size) and TRL's copy on a stream of their own; torch's save_on_cpu, which transformers uses, copies on
# the compute stream.
STASH = {"torchtune": 5, "trl": 5}


def stashed_inputs(setup: Setup) -> int:
    """After how many more blocks an offloaded input is freed on the GPU."""
    return STASH.get(setup.versions.framework, 0) if setup.checkpointing.how == "offload" else 0


def recompute_rule(checkpointing: Checkpointing) -> Callable[[PlacedSection], str]:
    """A function from a section to how it is recomputed: "none", "full" or "selective"."""
    how = checkpointing.how
    if how == "none":
        return lambda placed: "none"
    if how in ("full", "offload"):
        return lambda placed: "full" if placed.section.is_block else "none"
    if how == "selective":
        return lambda placed: "selective" if placed.section.is_block else "none"
    match = re.fullmatch(r"every-([1-9][0-9]{0,4})", how)
    if not match:
        raise InputError(
            f"checkpointing must be none, full, selective, every-N (such as every-2) or offload, not {how!r}"
        )
    every = int(match.group(1))
    return lambda placed: (
        "full" if placed.section.is_block and (placed.index or 0) % every == 0 else "none"
    )


def stops_early(setup: Setup) -> bool:
    """Non-reentrant torch/utils/checkpoint.py ends a recomputation as soon as the last saved tensor exists again.
    Megatron's own function runs to the end."""
    old = setup.versions.framework == "megatron" or setup.versions.torch < STOPS_FROM
    return setup.checkpointing.how != "none" and not setup.checkpointing.is_reentrant and not old


def changes_of(setup: Setup) -> tuple[Change, ...]:
    found: list[Change] = []
    if setup.checkpointing.is_reentrant:
        found.append(reentrant)
    elif (
        setup.checkpointing.how not in ("none", "offload")
        and setup.loop.gate == "plain"
        and setup.versions.framework != "megatron"
    ):
        found.append(asked_for)
    if setup.checkpointing.how == "offload":
        found.append(offloaded(stashed_inputs(setup)))
    return tuple(found)


def reentrant(program: Program, mode: Mode, stream: Iterator[Chunk]) -> Iterator[Chunk]:
    """With reentrant checkpointing a backward pass runs inside another. Two tensors live until the inner one ends: the
    block's output, which was computed again, and the gradient that CheckpointFunction.backward was called with. What a
    stack's last block hands through without further use gets a gradient of zeros first."""
    memo = Memo({})
    zeros = _Zeros(program)
    waiting: list[Chunk] = []
    left = 0
    for chunk in stream:
        if chunk.again:
            yield from zeros.of(chunk)
            left, ends = 2, _frees_output  # the block's backward, then its clean-up
        elif left == 2:
            left, ends = 1, _frees_incoming
            chunk = zeros.without(chunk)
        else:
            yield chunk
            yield from waiting
            left, waiting = 0, []
            continue
        stays, frees = memo.of_list(ends, chunk.events)
        yield chunk._replace(events=stays)
        waiting += [chunk._replace(events=frees)] if frees else []


class _Zeros:
    """Gradients that a custom autograd Function is given for results that nobody used (materialize_grads)."""

    def __init__(self, program: Program) -> None:
        self._sections = program.sections
        self._made: set[Hashable] = set()
        self._here: frozenset[Hashable] = frozenset()

    def of(self, chunk: Chunk) -> Iterator[Chunk]:
        """Before the last block of a stack runs its backward."""
        found = {
            ("outer", id(value.storage)): value
            for value in self._sections[chunk.section].section.handed_through
            if value.requires_grad
        }
        self._here = frozenset(found.keys() - self._made)
        self._made |= self._here
        events = [
            Event(1, key, value.nbytes, "working", f"gradient of {value.label}")
            for key, value in found.items()
            if key in self._here
        ]
        if events:
            yield Chunk(BACKWARD, chunk.section, events)

    def without(self, chunk: Chunk) -> Chunk:
        """The block's backward, whose own gradient of such a value is added to the zeros."""
        if not self._here:
            return chunk
        events = [event for event in chunk.events if event.key not in self._here or event.sign < 0]
        return chunk._replace(events=events)


def _frees_output(events: list[Event]) -> tuple[list[Event], list[Event]]:
    return _without_frees(events, OUT)


def _frees_incoming(events: list[Event]) -> tuple[list[Event], list[Event]]:
    return _without_frees(events, GRAD_OUT)


def _without_frees(events: list[Event], key: str) -> tuple[list[Event], list[Event]]:
    """The events without those that free that tensor, and these."""
    frees = [event for event in events if event.key == key and event.sign < 0]
    if not frees:
        return events, []
    return [event for event in events if event.key != key or event.sign > 0], frees


def asked_for(program: Program, mode: Mode, stream: Iterator[Chunk]) -> Iterator[Chunk]:
    """Non-reentrant checkpointing recomputes a block when its first saved tensor is needed. Gradients of the block's
    last ops, if these saved nothing (casts, scaled adapters), exist by then."""
    waiting: Chunk | None = None
    for chunk in stream:
        if chunk.again:
            waiting = chunk
            continue
        if waiting is not None and chunk.tail:
            key = ("tail", id(chunk.events))
            if key not in program.cache:  # the list is stored too, so that its id stays unique
                program.cache[key] = (
                    chunk.events,
                    chunk.events[: chunk.tail],
                    chunk.events[chunk.tail :],
                )
            _, tail, rest = program.cache[key]
            yield chunk._replace(events=tail)
            yield waiting
            yield chunk._replace(events=rest)
        else:
            yield from (waiting, chunk) if waiting is not None else (chunk,)
        waiting = None


def offloaded(stash: int) -> Change:
    """Block inputs are moved to the host after the block and `stash` more blocks have run. They are copied back for the
    block's recomputation."""

    def change(program: Program, mode: Mode, stream: Iterator[Chunk]) -> Iterator[Chunk]:
        away = frozenset(offloaded_blocks(program, mode))
        moves = _InputMoves(program)
        under_way: list[int] = []
        seen: set[int] = set()
        for chunk in stream:
            if chunk.phase == BACKWARD and under_way:
                yield from map(moves.to_host, under_way)
                under_way.clear()
            is_away = chunk.section in away
            if chunk.again and is_away:
                yield moves.to_device(chunk.section)
            yield chunk
            if chunk.phase == FORWARD and is_away and chunk.section not in seen:
                seen.add(chunk.section)
                under_way.append(chunk.section)
                if len(under_way) > stash:
                    yield moves.to_host(under_way.pop(0))

    return change


class _InputMoves:
    """Moves of block inputs between device and host; identical blocks share their events."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._made: dict[tuple[int, int], list[Event]] = {}

    def to_host(self, index: int) -> Chunk:
        return Chunk(FORWARD, index, self._events(index, -1))

    def to_device(self, index: int) -> Chunk:
        return Chunk(BACKWARD, index, self._events(index, 1))

    def _events(self, index: int, sign: int) -> list[Event]:
        section = self._program.sections[index].section
        key = (sign, id(section))
        if key not in self._made:
            entry = section.inputs[0].storage
            self._made[key] = [Event(sign, IN, entry.nbytes, "activation", entry.label)]
        return self._made[key]


def offloaded_blocks(program: Program, mode: Mode) -> Iterator[int]:
    """Recomputed blocks with gradients whose input nothing else on the device holds."""
    exported = links_of(program.sections).exported
    for index, placed in enumerate(program.sections):
        entry, out_value = placed.section.inputs[0], placed.section.outputs[0]
        hands_on = out_value.storage is entry.storage  # the layer returns its input unchanged
        if (
            mode.recompute(placed) == "none"
            or not out_value.requires_grad
            or hands_on
            or index == 0
        ):
            continue
        before = program.sections[index - 1]
        out = id(before.section.outputs[0].storage)
        if (
            out not in kept_ids(before.section, KEEP[mode.recompute(before)])
            and out not in exported[index - 1]
        ):
            yield index


def pinned_line(checkpointing: Checkpointing, program: Program) -> Amounts:
    """Pinned host memory for the offloaded inputs: blocks are rounded up to a power of two and kept for the next
    step."""
    mode = Mode(recompute=recompute_rule(checkpointing))
    sections = [program.sections[index].section for index in offloaded_blocks(program, mode)]
    line = Amounts(
        category=Category.ACTIVATIONS,
        component="block inputs, offloaded",
        place=PINNED,
        formula=_pinned_text(sections),
        source="CachingHostAllocator.h: sizes are rounded up to a power of two; blocks are cached",
    )
    nbytes = sum(power_of_two(int(section.inputs[0].nbytes)) for section in sections)
    for phase in PHASES[PHASES.index(FORWARD) :]:
        line.add(phase, nbytes)
    return line


def _pinned_text(sections: list[Section]) -> str:
    if not sections:
        return ""
    entry = sections[0].inputs[0]
    return f"{len(sections)} × {product_text(entry.shape, entry.dtype.nbytes)}, each rounded up to a power of two"


def power_of_two(nbytes: int) -> int:
    return 1 << max(nbytes - 1, 0).bit_length()
