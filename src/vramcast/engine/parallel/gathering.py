"""Allocations and frees of gathered parameters and reduced gradients, in the order the frameworks issue them.

FSDP2 (torch 2.13 `_fsdp_param_group.py`, `_fsdp_collectives.py`): parameters are gathered into an all-gather output and
copied out of it. In forward the output lives until the next unit has copied out. In backward the next unit is gathered
while this one computes. The reduce-scatter input lives until the next unit reduces.

FSDP1 (`_runtime_utils.py`, `_flat_param.py`): parameters are views of the gathered vector. In backward the next vector
is gathered while this one is used. Gradients are flattened before they are reduced.

ZeRO-3 (`partitioned_param_coordinator.py`): modules are fetched with a prefetch bucket and released unless they are
used again within `max_reuse_distance`.

Example: forward of two FSDP2 units of 800 bytes each, gathered.

    unit 0    +800 all-gather output 0    +800 parameters 0                               sum 1600
              -800 parameters 0, after the unit's forward                                 sum  800
    unit 1    +800 all-gather output 1    +800 parameters 1                               sum 2400, the peak
              -800 all-gather output 0                                                    sum 1600
              -800 parameters 1, after the unit's forward                                 sum  800

So three times the bytes of one unit are alive at the peak. FSDP1 has 800 bytes at most in the same forward.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from itertools import chain

from vramcast.engine.parallel.fsdp_units import Unit
from vramcast.engine.parallel.host import offloads_optimizer
from vramcast.engine.parallel.topology import Topology
from vramcast.engine.parallel.zero3 import (
    NORM_PART,
    PREFETCH,
    REDUCE_BUCKET,
    Bucket,
    Reduction,
    kept_until_backward,
)
from vramcast.engine.stream.events import Event
from vramcast.engine.stream.timeline import Change, Chunk, Mode
from vramcast.ledger import BACKWARD, FORWARD
from vramcast.models.record.program import Program
from vramcast.setup import Setup

GATHERED, BUFFER, REDUCED, UNSHARDED = (
    "gathered",
    "gather buffer",
    "reduce buffer",
    "unsharded gradient",
)
ARRIVING, JOINED, INPUT, SCATTERED = (
    "arriving shard",
    "joined gradient",
    "gather input",
    "reduce output",
)
FETCHED = "fetched shard"
WHOLE = "whole gradient"
LABELS = {
    GATHERED: "gathered parameters",
    BUFFER: "all-gather output",
    REDUCED: "reduce-scatter input",
    UNSHARDED: "gradients before they are reduced",
    JOINED: "gradients of FSDP1's vectors",
    ARRIVING: "shards on their way from the host",
    FETCHED: "shards from the host before their cast",
    INPUT: "shards in the dtype they are gathered in",
    SCATTERED: "reduced gradients before their cast",
    WHOLE: "unsharded gradients between micro-batches",
}
COMMUNICATION = tuple(LABELS)
LOSS_OUTSIDE = (
    "torchtitan",
    "torchtune",
    "litgpt",
    "megatron",
)  # here the model returns logits; in other frameworks it returns the loss


# ---- the changes


def copies_aside(setup: Setup) -> bool:
    """Before torch 2.5 FSDP2 allocated and filled the reduce-scatter's input on the reduce stream, so it could be freed
    at once (pytorch pull request 129721)."""
    return setup.versions.torch < (2, 5)


def _event(sign: int, kind: str, unit: Unit, nbytes: int) -> Event:
    return Event(sign, ("outer", kind, unit.number), nbytes, kind, LABELS[kind])


class Fsdp2Gathering:
    """FSDP2: yields a unit's events. `live` holds the keys of tensors that are allocated."""

    flattens = False

    def __init__(
        self,
        units: list[Unit],
        *,
        fresh: bool = True,
        loss_inside: bool = False,
        copies_aside: bool = False,
        waits: bool = False,
        first: bool = False,
    ) -> None:
        """`waits`: gradients of this micro-batch are not reduced yet. `first`: it is the first micro-batch of a
        step."""
        self.waits, self.first = waits, first
        self.units, self.fresh, self.loss_inside, self.copies_aside = (
            units,
            fresh,
            loss_inside,
            copies_aside,
        )
        self.finished = sorted(
            units, key=lambda unit: (unit.is_root, unit.number)
        )  # in the order in which their forward ends
        self.live: set[tuple[str, int]] = set()
        self.fetching: dict[int, tuple[list[Event], list[Event]]] = {}
        self.begun: set[int] = set()  # units whose backward has begun
        self.last_buffer: Unit | None = None
        self.last_reduced: Unit | None = None

    def born(self, kind: str, unit: Unit, nbytes: int) -> Iterator[Event]:
        if (kind, unit.number) not in self.live and nbytes:
            self.live.add((kind, unit.number))
            yield _event(1, kind, unit, nbytes)

    def dies(self, kind: str, unit: Unit | None, nbytes: int = 0) -> Iterator[Event]:
        if unit is not None and (kind, unit.number) in self.live:
            self.live.discard((kind, unit.number))
            size = (
                nbytes
                or {
                    GATHERED: unit.gathered_bytes,
                    BUFFER: unit.gathered_bytes,
                    REDUCED: unit.reduced_bytes,
                }[kind]
            )
            yield _event(-1, kind, unit, size)

    def begin_forward(self) -> Iterator[Event]:
        """Unsharded gradients of earlier micro-batches: no_sync() delays their reduction to the last one."""
        for unit in () if self.first else self.units:
            yield from self.born(WHOLE, unit, unit.whole_bytes)

    def all_gather(self, unit: Unit) -> Iterator[Event]:
        """foreach_all_gather: shards are cast into one vector, which is freed once it is copied into the output.
        Offloaded shards are fetched and cast one by one."""
        if (BUFFER, unit.number) in self.live:
            return
        coming, going = self._fetching(unit)
        yield from self.born(INPUT, unit, unit.input_bytes)
        yield from coming
        yield from self.born(BUFFER, unit, unit.gathered_bytes)
        yield from going
        yield from self.dies(INPUT, unit, unit.input_bytes)

    def _fetching(self, unit: Unit) -> tuple[list[Event], list[Event]]:
        """Allocations of shards fetched from the host with their casts, and their frees. Cached per unit."""
        if unit.number not in self.fetching:
            coming: list[Event] = []
            going: list[Event] = []
            for index, (arriving, cast) in enumerate(unit.fetched):
                fetched = Event(
                    1, ("outer", ARRIVING, unit.number, index), arriving, INPUT, LABELS[ARRIVING]
                )
                made = Event(1, ("outer", INPUT, unit.number, index), cast, INPUT, LABELS[INPUT])
                coming += (fetched, made, fetched._replace(sign=-1)) if cast else (fetched,)
                going.append((made if cast else fetched)._replace(sign=-1))
            self.fetching[unit.number] = coming, going
        return self.fetching[unit.number]

    def before_forward(self, unit: Unit) -> Iterator[Event]:
        if (GATHERED, unit.number) in self.live:
            return
        yield from self.all_gather(unit)
        yield from self.born(GATHERED, unit, unit.gathered_bytes)
        yield from self.dies(
            BUFFER, self.last_buffer
        )  # held by a variable of wait_for_unshard until it returns
        self.last_buffer = unit

    def after_forward(self, unit: Unit) -> Iterator[Event]:
        if unit.reshards:
            yield from self.dies(GATHERED, unit)

    def end_forward(self) -> Iterator[Event]:
        yield from self.dies(BUFFER, self.last_buffer)

    def begin_backward(self) -> Iterator[Event]:
        """The root unit's hook is on the model's output. If that is the loss, the first prefetch precedes all else."""
        root = next((unit for unit in self.units if unit.is_root), None)
        if self.loss_inside and root is not None:
            yield from self.before_backward(root)

    def prefetched(self, unit: Unit) -> Unit | None:
        """The unit whose forward ended before this one, given once: backward enters the root twice, at the head and at
        the embedding."""
        if unit.number in self.begun:
            return None
        self.begun.add(unit.number)
        place = self.finished.index(unit)
        before = self.finished[place - 1] if place else None
        return before if before is not None and before.reshards else None

    def before_backward(self, unit: Unit) -> Iterator[Event]:
        if (GATHERED, unit.number) not in self.live:
            yield from self.all_gather(unit)
            yield from self.born(GATHERED, unit, unit.gathered_bytes)
            yield from self.dies(BUFFER, unit)
        before = self.prefetched(unit)
        if before is not None and (GATHERED, before.number) not in self.live:
            yield from self.all_gather(before)

    def after_backward(self, unit: Unit, gradients: list[Event]) -> Iterator[Event]:
        yield from self.dies(GATHERED, unit)
        if self.waits:  # gradients stay unsharded, or were added to existing ones
            return
        yield from self.dies(REDUCED, self.last_reduced)
        yield from self.born(REDUCED, unit, unit.reduced_bytes)
        yield from (
            Event(-1, event.key, event.nbytes, UNSHARDED, event.label) for event in gradients
        )
        yield from self.dies(WHOLE, unit, unit.whole_bytes)
        yield from self.born(SCATTERED, unit, unit.scattered_bytes)
        yield from self.shared(unit)
        yield from self.dies(SCATTERED, unit, unit.scattered_bytes)
        self.last_reduced = unit
        if self.copies_aside:
            yield from self.dies(REDUCED, unit)

    def shared(self, unit: Unit) -> Iterator[Event]:
        """The rank's shard of the gradients: it stays, is added to an existing one, or is moved to the host."""
        if unit.leaving_bytes:
            for sign in (1, -1):
                yield Event(
                    sign,
                    ("outer", "leaving", unit.number),
                    unit.leaving_bytes,
                    SCATTERED,
                    LABELS[SCATTERED],
                )
        if self.fresh and unit.share_bytes:
            yield Event(
                1,
                ("outer", "gradient", unit.number),
                unit.share_bytes,
                "gradient",
                "sharded gradients",
            )
        elif unit.share_bytes:
            for sign in (1, -1):
                yield Event(
                    sign,
                    ("outer", "added", unit.number),
                    unit.share_bytes,
                    SCATTERED,
                    LABELS[SCATTERED],
                )

    def end_backward(self) -> Iterator[Event]:
        """Units without a backward, such as frozen embeddings, are resharded at the end
        (_root_post_backward_final_callback; FSDP1's _catch_all_reshard)."""
        yield from self.dies(REDUCED, self.last_reduced)
        for unit in self.units:
            yield from self.dies(GATHERED, unit)


class Fsdp1Gathering(Fsdp2Gathering):
    """Parameters are views of the gathered vector. Forward gathers one unit after the other (forward_prefetch=False);
    backward gathers the next unit while this one computes (BackwardPrefetch.BACKWARD_PRE)."""

    flattens = True

    def gathered(self, unit: Unit) -> Iterator[Event]:
        """pre_unshard copies an offloaded shard to the GPU, or casts one (`_use_low_precision_shard`), as input of the
        all-gather."""
        if (GATHERED, unit.number) in self.live:
            return
        kind, nbytes = (
            (INPUT, unit.input_bytes) if unit.input_bytes else (ARRIVING, unit.arriving_bytes)
        )
        yield from self.born(kind, unit, nbytes)
        yield from self.born(FETCHED, unit, unit.uncast_bytes)
        yield from self.dies(FETCHED, unit, unit.uncast_bytes)
        yield from self.born(GATHERED, unit, unit.gathered_bytes)
        yield from self.dies(kind, unit, nbytes)

    def before_forward(self, unit: Unit) -> Iterator[Event]:
        yield from self.gathered(unit)

    def before_backward(self, unit: Unit) -> Iterator[Event]:
        yield from self.gathered(unit)
        before = self.prefetched(unit)
        if before is not None:
            yield from self.gathered(before)

    def after_backward(self, unit: Unit, gradients: list[Event]) -> Iterator[Event]:
        """The gradients of the views are joined into the gradient of the vector. That is reduced directly, or as a copy
        in the dtype used for reduction."""
        joined = unit.vector_bytes or sum(event.nbytes for event in gradients)
        if joined:
            yield Event(1, ("outer", "joined", unit.number), joined, JOINED, LABELS[JOINED])
        yield from (
            Event(-1, event.key, event.nbytes, UNSHARDED, event.label) for event in gradients
        )
        yield from self.dies(GATHERED, unit)
        if not self.waits:
            copied = unit.reduced_bytes if unit.reduced_bytes > max(joined, unit.whole_bytes) else 0
            yield from self.born(REDUCED, unit, copied)
            yield from self.born(SCATTERED, unit, unit.scattered_bytes)
            yield from self.shared(unit)
            yield from self.dies(SCATTERED, unit, unit.scattered_bytes)
            yield from self.dies(REDUCED, unit)
            yield from self.dies(WHOLE, unit, unit.whole_bytes)
        if joined:
            yield Event(-1, ("outer", "joined", unit.number), joined, JOINED, LABELS[JOINED])
        if self.first:  # the joined gradient stays for the next micro-batches
            yield from self.born(WHOLE, unit, unit.whole_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Zero3Facts:
    bucket: int  # reduce_bucket_size, in elements
    ranks: int
    item: int  # bytes of an element as it is gathered and reduced
    offloads: bool  # the optimizer's shard is on the host; norms are computed before gradients are moved there
    kept: frozenset[int]  # units that stay gathered until backward
    external: frozenset[int]  # units whose weight the loss uses outside of its own module


class _Zero3(Fsdp2Gathering):
    """Units are fetched when needed, together with a prefetch bucket, and kept if used again within the reuse distance.
    Gradients are copied into a bucket; when it is full, they are concatenated and reduced."""

    def __init__(self, units: list[Unit], facts: _Zero3Facts) -> None:
        super().__init__(units)
        self.facts, self.bucket, self.reductions = facts, Bucket(facts.bucket), 0
        self.ahead_bytes = min(PREFETCH, max((u.elements for u in units), default=0)) * facts.item

    def begin_backward(self) -> Iterator[Event]:
        return iter(())

    def before_forward(self, unit: Unit) -> Iterator[Event]:
        yield from self.born(GATHERED, unit, unit.gathered_bytes)
        yield from self.born(BUFFER, unit, self.ahead_bytes)

    def after_forward(self, unit: Unit) -> Iterator[Event]:
        yield from self.dies(BUFFER, unit, self.ahead_bytes)
        if unit.number not in self.facts.kept:
            yield from self.dies(GATHERED, unit)

    def end_forward(self) -> Iterator[Event]:
        return iter(())

    def before_backward(self, unit: Unit) -> Iterator[Event]:
        yield from self.before_forward(unit)

    def after_backward(self, unit: Unit, gradients: list[Event]) -> Iterator[Event]:
        """A weight used outside its own module is freed at the end of the step (release_sub_module skips external
        parameters)."""
        yield from self.dies(BUFFER, unit, self.ahead_bytes)
        if unit.number not in self.facts.external:
            yield from self.dies(GATHERED, unit)
        for numel in reversed(unit.numels):
            for reduction in self.bucket.add(numel):
                yield from self._reduced(reduction)

    def end_backward(self) -> Iterator[Event]:
        for reduction in self.bucket.reduce():
            yield from self._reduced(reduction)
        for unit in self.units:
            yield from self.dies(GATHERED, unit)

    def _reduced(self, reduction: Reduction) -> Iterator[Event]:
        """reduce_scatter_coalesced concatenates several tensors; partition_grads computes the shard's norm in fp64."""
        facts, self.reductions = self.facts, self.reductions + 1
        whole = reduction.elements * facts.item if reduction.tensors > 1 else 0
        share = -(-reduction.elements // facts.ranks) * facts.item
        norm = 8 * min(-(-reduction.largest // facts.ranks), NORM_PART) if facts.offloads else 0
        sizes = {"whole": whole, "share": share, "norm": norm}
        for sign, part in (
            (1, "whole"),
            (1, "share"),
            (-1, "whole"),
            (1, "norm"),
            (-1, "norm"),
            (-1, "share"),
        ):
            if sizes[part]:
                key = ("outer", REDUCED, self.reductions, part)
                yield Event(sign, key, sizes[part], REDUCED, LABELS[REDUCED])


def zero3_change(setup: Setup, units: list[Unit], topology: Topology) -> Change:
    """Adds ZeRO-3's gathering and reducing to the stream of a step."""

    def change(program: Program, mode: Mode, stream: Iterator[Chunk]) -> Iterator[Chunk]:
        external = _external_units(units, program)
        uses = [_uses(unit, program, mode, external) for unit in units]
        trained = [param for param in program.params() if param.trainable]
        facts = _Zero3Facts(
            bucket=setup.parallel.reduce_bucket or REDUCE_BUCKET,
            ranks=topology.shard,
            item=max((param.dtype.nbytes for param in trained), default=2),
            offloads=offloads_optimizer(setup.offload),
            kept=kept_until_backward([unit.elements for unit in units], uses),
            external=external,
        )
        return _Weaver(units, _Zero3(units, facts), len(program.sections) - 1).run(stream)

    return change


def _external_units(units: list[Unit], program: Program) -> frozenset[int]:
    """Units with the head, if a fused loss uses its weight and the head module is not run."""
    if "loss" not in program.regime.fused:
        return frozenset()
    head = {index for index, placed in enumerate(program.sections) if placed.name == "head"}
    return frozenset(unit.number for unit in units if head & set(unit.sections))


def _uses(unit: Unit, program: Program, mode: Mode, external: frozenset[int]) -> int:
    """How often a step runs the unit's forward: twice if it is recomputed."""
    if unit.number in external:
        return 0
    placed = (program.sections[index] for index in unit.sections)
    return 1 + any(mode.recompute(place) == "full" for place in placed)


Make = Callable[..., Fsdp2Gathering]


def weave(units: list[Unit], make: Make, **facts: bool) -> Change:
    def change(program: Program, mode: Mode, stream: Iterator[Chunk]) -> Iterator[Chunk]:
        strategy = make(units, **facts)
        woven = _Weaver(units, strategy, len(program.sections) - 1).run(stream)
        return (
            chain((Chunk(FORWARD, 0, list(strategy.begin_forward())),), woven)
            if program.regime.grad
            else woven
        )

    return change


class _Weaver:
    """Goes through the chunks of a step and inserts a unit's events where its sections begin and end."""

    def __init__(self, units: list[Unit], strategy: Fsdp2Gathering, last: int) -> None:
        self.strategy, self.last = strategy, last
        self.unit_of = {section: unit for unit in units for section in unit.sections}
        self.gradients: dict[int, list[Event]] = {unit.number: [] for unit in units}
        self.unreduced: set[Hashable] = set()
        self.at: tuple[str, int] | None = None
        self.forward_over = self.backward_begun = False

    def run(self, stream: Iterator[Chunk]) -> Iterator[Chunk]:
        for chunk in stream:
            backward = chunk.phase == BACKWARD
            place = (BACKWARD if backward else "forward", chunk.section)
            if not backward and self.forward_over:
                yield chunk
                continue
            if place != self.at:
                yield from self._moved(chunk, place)
            yield self._with_marked_gradients(chunk) if backward else chunk
            if not backward and chunk.section == self.last:
                self.forward_over = True
        yield from self._left(BACKWARD)
        yield self._chunk(BACKWARD, 0, self.strategy.end_backward())

    def _moved(self, chunk: Chunk, place: tuple[str, int]) -> Iterator[Chunk]:
        yield from self._left(chunk.phase)
        if place[0] == BACKWARD and not self.backward_begun:
            self.backward_begun = True
            yield self._chunk(BACKWARD, chunk.section, self.strategy.end_forward())
            yield self._chunk(BACKWARD, chunk.section, self.strategy.begin_backward())
        self.at = place
        unit = self.unit_of.get(chunk.section)
        if unit is not None:
            enter = (
                self.strategy.before_backward
                if place[0] == BACKWARD
                else self.strategy.before_forward
            )
            yield self._chunk(chunk.phase, chunk.section, enter(unit))

    def _left(self, phase: str) -> Iterator[Chunk]:
        if self.at is None:
            return
        direction, section = self.at
        unit = self.unit_of.get(section)
        if unit is None:
            return
        if direction != BACKWARD:
            yield self._chunk(phase, section, self.strategy.after_forward(unit))
        elif section == unit.sections[0]:  # the unit's first section is the last to run backward
            grads, self.gradients[unit.number] = self.gradients[unit.number], []
            self.unreduced.difference_update(event.key for event in grads)
            yield self._chunk(BACKWARD, section, self.strategy.after_backward(unit, grads))
        self.at = None

    def _chunk(self, phase: str, section: int, events: Iterator[Event]) -> Chunk:
        return Chunk(phase, section, list(events))

    def _with_marked_gradients(self, chunk: Chunk) -> Chunk:
        """The chunk with gradients of parameters as unsharded gradients, which are freed after their reduction."""
        if not any(event.kind == "gradient" for event in chunk.events):
            return chunk
        marked = (
            self._marked(event, chunk.section) if event.kind == "gradient" else event
            for event in chunk.events
        )
        return Chunk(
            chunk.phase, chunk.section, list(filter(None, marked)), chunk.incoming, chunk.again
        )

    def _marked(self, event: Event, section: int) -> Event | None:
        """An event of a parameter's gradient as one of an unsharded gradient. A tied parameter's first share is
        allocated in one section and freed in another, where it is added. It is None if a unit of its own has reduced
        and freed it by then."""
        is_share = isinstance(event.key, tuple) and event.key[0] == "outer"
        key = ("outer", "unsharded", None if is_share else section, event.key)
        made, unit = (
            Event(event.sign, key, event.nbytes, UNSHARDED, LABELS[UNSHARDED]),
            self.unit_of.get(section),
        )
        if made.sign > 0:
            self.unreduced.add(key)
            if unit is not None:
                self.gradients[unit.number].append(made)
            return made
        if key not in self.unreduced:
            return None
        self.unreduced.discard(key)
        for number, births in self.gradients.items():
            self.gradients[number] = [birth for birth in births if birth.key != key]
        return made
