"""Training loops that give the gate of a mixture of experts its own loss, as changes to the stream of a step.

retain-graph  one forward, `backward(retain_graph=True)` of the main loss, then a second backward for the gate's loss
aux-outputs   the gate's inputs are kept, detached; after the main backward the gate alone is run again on them
one-pass      a hook adds the gate's gradient during the main backward: nothing is kept for later
joint         one loss that includes the routers' logits (load balancing)

`held_between` gives the bytes that stay alive between the two backward passes. The peak comes from the stream.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace

from vramcast.engine.stream.checkpointing import changes_of as checkpointing_changes
from vramcast.engine.stream.events import GRAD_OUT, Event, kept_ids
from vramcast.engine.stream.timeline import Change, Chunk, Mode, borders_of, key_in_step, passes
from vramcast.errors import InputError
from vramcast.ledger import BACKWARD, FORWARD, GATING
from vramcast.models.record.dims import Number
from vramcast.models.record.program import Program
from vramcast.models.record.tape import F32, Op, Section, Value
from vramcast.setup import Setup

UNTRAINABLE = (
    "detached scores carry no gradient, so a loss on them cannot train the gate; "
    "keep the gate's detached inputs and run the gate again"
)

TWO_PASSES = ("retain-graph", "aux-outputs")
SCORES = 4  # tensors: router logits, routing weights, active scores, and the surprise used by the gate's loss


def changes_of(setup: Setup) -> tuple[Change, ...]:
    """All changes that the job's training loop and its checkpointing make to the stream."""
    below = checkpointing_changes(setup)
    own: dict[str, Change] = {
        "retain-graph": retain_graph,
        "aux-outputs": aux_outputs,
        "joint": joint,
    }
    return (*below, own[setup.loop.gate]) if setup.loop.gate in own else below


def check_loop(setup: Setup, program: Program) -> None:
    """Raise InputError with the reason if this loop cannot work."""
    if setup.loop.gate == "plain":
        return
    if setup.loop.gate == "scores-only":
        raise InputError(f"loop scores-only cannot work: {UNTRAINABLE} (loop aux-outputs)")
    if not gates_of(program):
        raise InputError(f"loop {setup.loop.gate} trains a gate, and {setup.model} has no router")
    if setup.loop.gate in TWO_PASSES and setup.optimizer.implementation == "in-backward":
        raise InputError(
            f"loop {setup.loop.gate} runs backward twice: an optimizer that steps inside backward cannot be used"
        )


# ---- where the gates are


@dataclass(frozen=True, slots=True)
class Gate:
    """A router in one section: what it reads and the logits it makes."""

    entry: Value
    logits: Value

    @property
    def scores_bytes(self) -> Number:
        return SCORES * self.logits.nbytes


def gates_of(program: Program) -> dict[int, Gate]:
    """The gates by index of their section; sections without a router are left out."""
    known: dict[int, Gate | None] = {}
    found = {}
    for index, placed in enumerate(program.sections):
        if id(placed.section) not in known:
            known[id(placed.section)] = _gate(placed.section)
        gate = known[id(placed.section)]
        if gate is not None:
            found[index] = gate
    return found


def _gate(section: Section) -> Gate | None:
    maker = {id(op.output): op for op in section.ops}
    for op in section.ops:
        if op.output.label == "router logits":
            return Gate(_before_casts(op.inputs[0], maker), op.output)
    return None


def _before_casts(value: Value, maker: dict[int, Op]) -> Value:
    """The tensor that the gate was called with, before the gate's own casts."""
    op = maker.get(id(value))
    while op is not None and op.name in ("to", "view") and op.output.param is None:
        value = op.inputs[0]
        op = maker.get(id(value))
    return value.storage


# ---- changes to the stream


class _Held:
    """Frees that are taken out of the first backward and come later."""

    def __init__(self, program: Program) -> None:
        self.borders = borders_of(program.sections)
        self.waiting: dict[Hashable, tuple[int, Event]] = {}
        self._made: dict[tuple[int, tuple[bool, ...]], tuple[list[Event], list[Event]]] = {}

    def key(self, chunk: Chunk, event: Event) -> Hashable:
        return key_in_step(chunk, event, self.borders)

    def without(self, chunk: Chunk, keys: set[Hashable]) -> Chunk:
        """The chunk without frees of these keys. Identical layers share the result."""
        mask = tuple(event.sign < 0 and self.key(chunk, event) in keys for event in chunk.events)
        for event, taken in zip(chunk.events, mask, strict=True):
            if taken:
                self.waiting[self.key(chunk, event)] = (chunk.section, event)
        if not any(mask):
            return chunk
        known = (id(chunk.events), mask)
        if known not in self._made:
            rest = [event for event, taken in zip(chunk.events, mask, strict=True) if not taken]
            self._made[known] = (chunk.events, rest)
        return chunk._replace(events=self._made[known][1])

    def released(self) -> Iterator[Chunk]:
        for section, event in self.waiting.values():
            yield Chunk(GATING, section, [event])
        self.waiting.clear()


def retain_graph(program: Program, mode: Mode, stream: Iterator[Chunk]) -> Iterator[Chunk]:
    """Everything that autograd saved stays alive through the first backward and is freed in the second."""
    held, alive = _Held(program), set[Hashable]()
    for chunk in stream:
        if chunk.phase == BACKWARD:
            yield held.without(chunk, alive)
            continue
        for event in chunk.events:
            (alive.add if event.sign > 0 else alive.discard)(held.key(chunk, event))
        yield chunk
    yield from _second_backward(program, mode, held)
    yield from held.released()


def _second_backward(program: Program, mode: Mode, held: _Held) -> Iterator[Chunk]:
    """The backward of the gate's loss, from the last router to the first section. Gradients of parameters exist already
    and are added to."""
    last = max(gates_of(program))
    below = tuple(change for change in mode.changes if change is not retain_graph)
    rooted = False
    for chunk in passes(program, replace(mode, fresh_grads=False, changes=below)):
        if chunk.phase != BACKWARD or chunk.section > last:
            continue
        if not rooted and chunk.incoming is not None:
            out = program.sections[chunk.section].section.outputs[0]
            root = Event(1, GRAD_OUT, out.nbytes, "working", "gradient of the gate's loss")
            yield Chunk(GATING, chunk.section, [root], chunk.incoming)
            rooted = True
        for event in chunk.events:
            if event.sign < 0:
                held.waiting.pop(held.key(chunk, event), None)
        yield chunk._replace(phase=GATING)


def aux_outputs(program: Program, mode: Mode, stream: Iterator[Chunk]) -> Iterator[Chunk]:
    """Detached inputs and scores of the gates stay alive through the main backward. Then only the gates run again."""
    gates, held = gates_of(program), _Held(program)
    own: dict[tuple[int, str], list[Event]] = {}
    seen: set[int] = set()
    for chunk in stream:
        if chunk.phase == BACKWARD and chunk.section in gates:
            kept = gates[chunk.section].entry
            keys: set[Hashable] = (
                {(chunk.section, id(kept))}
                if _is_saved(program, mode, chunk.section, kept)
                else set()
            )
            yield held.without(chunk, keys)
            continue
        yield chunk
        if (
            chunk.phase == FORWARD
            and chunk.section in gates
            and chunk.section not in seen
            and chunk.events
        ):
            seen.add(chunk.section)
            gate = gates[chunk.section]
            key = (
                id(program.sections[chunk.section].section),
                mode.recompute(program.sections[chunk.section]),
            )
            if key not in own:
                own[key] = list(
                    _detached(gate, _is_saved(program, mode, chunk.section, gate.entry))
                )
            yield Chunk(FORWARD, chunk.section, own[key])
            held.waiting.update(
                {(chunk.section, event.key): (chunk.section, _death(event)) for event in own[key]}
            )
    yield from _gates_again(gates)
    yield from held.released()


def _is_saved(program: Program, mode: Mode, index: int, value: Value) -> bool:
    """Does autograd hold the tensor in any case?"""
    placed = program.sections[index]
    border = value is placed.section.inputs[0].storage
    return (
        mode.recompute(placed) == "none"
        and not border
        and id(value) in kept_ids(placed.section, "all")
    )


def _detached(gate: Gate, shared: bool) -> Iterator[Event]:
    yield Event(1, "detached scores", gate.scores_bytes, "activation", "detached scores")
    if not shared:
        yield Event(
            1, "detached gate input", gate.entry.nbytes, "activation", "detached gate input"
        )


def _death(event: Event) -> Event:
    return Event(-1, event.key, event.nbytes, event.kind, event.label)


def _gates_again(gates: dict[int, Gate]) -> Iterator[Chunk]:
    """The second run of all gates, in one loss: logits, their softmax in fp32 and its gradient."""
    made = {}
    for index, gate in gates.items():
        elements = gate.logits.nbytes // gate.logits.dtype.nbytes
        nbytes = elements * (gate.logits.dtype.nbytes + 2 * F32.nbytes)
        made[index] = Event(1, "gate again", nbytes, "working", "the gate run again")
    yield from (Chunk(GATING, index, [event]) for index, event in made.items())
    yield from (Chunk(GATING, index, [_death(event)]) for index, event in made.items())


def joint(program: Program, mode: Mode, stream: Iterator[Chunk]) -> Iterator[Chunk]:
    """transformers' load_balancing_loss_func: all logits joined, softmax, a one-hot mask in int64 and again in fp32."""
    gates = gates_of(program)
    total: Number = sum((gate.logits.nbytes for gate in gates.values()), 0)
    elements = total // next(iter(gates.values())).logits.dtype.nbytes
    last = max(gates)
    rows = [
        Event(1, "joined router logits", 2 * total, "activation", "router logits, and joined"),
        Event(
            1,
            "router probabilities of all layers",
            elements * F32.nbytes,
            "activation",
            "router probabilities",
        ),
    ]
    mask = Event(
        1,
        "expert mask",
        elements * _chosen(program) * 12,
        "working",
        "one-hot mask, int64 and fp32",
    )
    phase, opened = FORWARD, False
    for chunk in stream:
        if chunk.phase == BACKWARD and not opened:
            opened = True
            yield Chunk(phase, last, [*rows, mask, _death(mask)])
        phase = chunk.phase
        yield chunk
    yield Chunk(BACKWARD, last, [_death(event) for event in rows])


def _chosen(program: Program) -> Number:
    """How many experts each token is sent to."""
    for placed in program.sections:
        for op in placed.section.ops:
            for value in (*op.saved, *op.inputs, op.output):
                if value.label == "chosen experts":
                    return value.shape[-1]
    return 1


# ---- what is held in between


def held_between(program: Program, mode: Mode) -> Number:
    """Bytes alive between the main backward and the gate's: the graph or detached tensors, without gradients."""
    level: Number = 0
    known: dict[int, tuple[list[Event], Number]] = {}
    start: Number | None = None
    for chunk in passes(program, mode):
        if chunk.phase == GATING and start is None:
            start = level
        if id(chunk.events) not in known:
            net = sum(
                (event.sign * event.nbytes for event in chunk.events if event.kind != "gradient"), 0
            )
            known[id(chunk.events)] = (chunk.events, net)
        level = level + known[id(chunk.events)][1]
    return 0 if start is None else start - level
