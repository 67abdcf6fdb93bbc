"""Replays a job's allocations and frees through the caching allocator: what torch reserves, and whether a card
suffices.

Example: a step allocates and frees 30 MiB, then allocates 20 MiB and 25 MiB, and frees both.

    +30    a new segment of 30 MiB
    -30    the segment stays cached
    +20    taken from the cached segment, which keeps 10 MiB free
    +25    does not fit into 10 MiB: a new segment of 26 MiB (sizes from 10 MiB on are rounded up to 2 MiB)

The peak is 45 MiB requested, 46 MiB allocated (in blocks), 56 MiB reserved. A card of 50 MiB is out of memory.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile

from vramcast.allocator import Allocator, AllocatorSettings, Block, OutOfMemory, SimulatedDriver
from vramcast.allocator.quick import fast_calls
from vramcast.engine.stream.events import Event
from vramcast.engine.stream.timeline import Stamped
from vramcast.ledger import BACKWARD, EVAL, ROLLOUT


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    peak_requested_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    out_of_memory: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Two steps of a job: what is allocated from the start, what a step allocates, what the optimizer adds."""

    weights: tuple[int, ...]
    first: list[Stamped]
    later: list[Stamped]
    states: tuple[int, ...]
    states_from_start: bool = False  # made with the optimizer, else in its first step
    step_temporaries: tuple[
        tuple[int, ...], ...
    ]  # of the optimizer's step: lists of tensors, each list allocated together and freed together
    old_until: str = (
        BACKWARD  # when this phase begins, variables no longer hold the last step's outputs
    )
    zero_grad_first: bool  # gradients are freed before the next forward
    zero_grad_behind: bool = (
        False  # gradients are freed after the forward of a step's first micro-batch
    )
    accumulates: bool = False  # further micro-batches come before the first optimizer step
    again: list[Stamped] | None = (
        None  # the first micro-batch of a later step, if it differs from that of the first step
    )
    earlier: tuple[list[Stamped], ...] = ()  # batches of other lengths, run before the longest
    stepped_after: int | None = (
        None  # how many of `earlier` precede the optimizer's first step; None: it follows the longest
    )
    small: tuple[int, ...] = ()  # inputs
    workspaces: tuple[
        int, ...
    ] = ()  # of cuBLAS: one for the thread that runs forward, then one for autograd's thread
    last_section: int = 0  # the loss, which has no matrix products

    @property
    def zeroes_after_forward(self) -> bool:
        """Are a step's gradients freed after the next step's forward?"""
        has_identical_steps = self.later is self.first
        return has_identical_steps and not (self.zero_grad_first or self.accumulates)

    @property
    def begins_without_gradients(self) -> bool:
        """Does the first micro-batch of a later step allocate gradients again?"""
        return self.accumulates and (self.zero_grad_first or self.zero_grad_behind)

    @property
    def next_step(self) -> list[Stamped]:
        """The stream that follows an optimizer step."""
        return (self.again or self.first) if self.accumulates else self.later

    def largest(self) -> Script:
        """Only the largest tensors of a step, and the optimizer's states: these decide how far the cache grows. If too
        many tensors have the same size, only the first of them are kept; they rank runs as all of them would."""
        least = _least([int(item.event.nbytes) for item in self.first if item.event.sign > 0])
        first, later = _at_least(self.first, least), _at_least(self.later, least)
        allocated = [item.key for item in first if item.event.sign > 0]
        if len(allocated) > LARGEST:
            few = set(allocated[:LARGEST])
            first, later = _under(first, few), _under(later, few)
        return replace(
            self, weights=(), small=(), workspaces=(), first=first, later=later, step_temporaries=()
        )


def _at_least(stream: list[Stamped], nbytes: int) -> list[Stamped]:
    """The events of tensors of at least `nbytes`."""
    return [item for item in stream if item.event.nbytes >= nbytes]


def _under(stream: list[Stamped], keys: set[Hashable]) -> list[Stamped]:
    """The events of the tensors with these keys."""
    return [item for item in stream if item.key in keys]


def _least(sizes: list[int]) -> int:
    """The smallest size such that at most LARGEST tensors have it or more; failing that, the largest size."""
    ordered = sorted(sizes, reverse=True)
    below = ordered[LARGEST] if len(ordered) > LARGEST else 0
    return min((size for size in ordered[:LARGEST] if size > below), default=ordered[0])


class Columns:
    """A stream by columns, to make other streams that differ only in sizes."""

    def __init__(self, stream: list[Stamped]) -> None:
        self._phases, self._sections, events, self._keys = zip(*stream, strict=True)
        self._signs, self._names, self.sizes, self._kinds, self._labels = zip(*events, strict=True)

    def with_sizes(self, sizes: Iterable[int]) -> list[Stamped]:
        events = map(
            partial(tuple.__new__, Event),
            zip(self._signs, self._names, sizes, self._kinds, self._labels, strict=True),
        )
        return list(
            map(
                partial(tuple.__new__, Stamped),
                zip(self._phases, self._sections, events, self._keys, strict=True),
            )
        )


class Shorter:
    """The stream of shorter batches: sizes are scaled, except those of parameters' gradients."""

    def __init__(self, stream: list[Stamped], longest: int) -> None:
        self.longest, self._columns = longest, Columns(stream)
        self._sizes = [(int(item.event.nbytes), not _is_gradient(item.key)) for item in stream]

    def of(self, length: int) -> list[Stamped]:
        return self._columns.with_sizes(
            size * length // self.longest if grows else size for size, grows in self._sizes
        )


def replay(
    script: Script, *, capacity_bytes: int | None, conf: str, most_bytes: int | None = None
) -> Replayed:
    """Run the script on a card of `capacity_bytes`. A run that reserves more than `most_bytes` ends there and counts as
    out of memory."""
    return Run(script, capacity_bytes=capacity_bytes, conf=conf, most_bytes=most_bytes).whole()


class _Surpassed(Exception):
    """More than `most_bytes` are reserved."""


class _Bounded(SimulatedDriver):
    """A card that raises when more than `most_bytes` are taken."""

    __slots__ = ("most_bytes",)

    def __init__(self, capacity_bytes: int | None, most_bytes: int) -> None:
        super().__init__(capacity_bytes)
        self.most_bytes = most_bytes

    def _take(self, nbytes: int) -> bool:
        taken = super()._take(nbytes)
        if self._used_bytes > self.most_bytes:
            raise _Surpassed
        return taken


BETWEEN = (ROLLOUT, EVAL)  # phases before a later step
LARGEST = 30  # tensors that represent all others
QUIET = 2  # steps without growth: in replays of the published runs none grew again after more
HELD = ("weights", "small", "states", "old", "shard", "bucket", "companion")


class Run:
    """Loads the model, runs steps of other lengths if there are any, then one whole step and a second one."""

    apart: frozenset[str] = frozenset()  # kinds of events that are passed to `born` and `dies`

    def __init__(
        self,
        script: Script,
        *,
        capacity_bytes: int | None,
        conf: str,
        most_bytes: int | None = None,
    ) -> None:
        self.script = script
        driver = (
            SimulatedDriver(capacity_bytes)
            if most_bytes is None
            else _Bounded(capacity_bytes, most_bytes)
        )
        self.allocator = Allocator(
            settings=AllocatorSettings.parse(conf), driver=driver, statistics=False
        )
        self.malloc, self.free = fast_calls(self.allocator)
        self.blocks: dict[Hashable, tuple[Block, int]] = {}  # with the requested bytes
        self.requested = self.peak_requested = 0
        self.old: list[Hashable] = []
        self.has_states = False
        self.handles = 0

    def whole(self) -> Replayed:
        try:
            self.load()
            self.steps()
        except (OutOfMemory, _Surpassed):
            return self.result(out_of_memory=True)
        return self.result(out_of_memory=False)

    def load(self) -> None:
        self.hold("weights", self.script.weights)
        if self.script.states_from_start:
            self.hold_states()
        self.hold("small", self.script.small)

    def steps(self) -> None:
        """The steps before the longest batch, that batch, and the step after it."""
        script = self.script
        self.earlier_steps()
        before = self.longest_step()
        if script.stepped_after:
            # the longest batch comes once, and the optimizer's states existed before it
            between = takewhile(lambda item: item.phase in BETWEEN, script.next_step)
            return self.play(list(between))
        if script.begins_without_gradients:
            self.play(script.next_step, zeroes=script.zero_grad_behind)
            self.end_step(gradients=False)
            if self.state() == before:  # everything would repeat from here
                return
            self.play(script.later)
        else:
            self.play(script.later, zeroes=script.zeroes_after_forward)
        self.flash(script.step_temporaries)
        if script.zeroes_after_forward and not script.earlier:
            self.settle()

    def earlier_steps(self) -> None:
        """Steps on batches of other lengths."""
        script = self.script
        drops_gradients = script.zero_grad_first and not script.accumulates
        for count, stream in enumerate(script.earlier, 1):
            self.play(stream, zeroes=script.zeroes_after_forward)
            if count == script.stepped_after:
                self.optimizer_step()
            self.end_step(gradients=drops_gradients)

    def longest_step(self) -> object:
        """One whole step. Returns the state after its first micro-batch, or None if there is only one."""
        script = self.script
        before: object = None
        self.play(script.first, zeroes=script.zeroes_after_forward)
        if script.accumulates:
            self.end_step(gradients=False)
            before = self.state()
            self.play(script.later)
        self.optimizer_step()
        self.end_step(gradients=script.zero_grad_first)
        return before

    def state(self) -> object:
        """Addresses of tensors, and cached blocks. Together they decide all that follows: the driver never hands out an
        address twice."""
        pools = (self.allocator.segments.default_small, self.allocator.segments.default_large)
        cached = [
            {stream: [key[:2] for key in keys] for stream, keys in pool.free.items() if keys}
            for pool in pools
        ]
        return {key: block.address for key, (block, _) in self.blocks.items()}, cached

    def settle(self) -> None:
        """Repeat the step until QUIET steps in a row reserve nothing new. Gradients that stay alive during the next
        forward have other addresses in every step, so the cache may still grow after the second step."""
        quiet = 0
        while quiet < QUIET:
            before = self.allocator.peak_reserved_bytes
            self.end_step(gradients=False)
            self.play(self.script.later, zeroes=True)
            self.flash(self.script.step_temporaries)
            quiet = quiet + 1 if self.allocator.peak_reserved_bytes == before else 0

    def optimizer_step(self) -> None:
        if not self.has_states:
            self.hold_states()
        self.flash(self.script.step_temporaries)

    def hold_states(self) -> None:
        self.has_states = True  # set first: if memory runs out, some of them exist
        self.hold("states", self.script.states)

    def take(self, key: Hashable, nbytes: int) -> None:
        if nbytes:
            if key in self.blocks:
                self.drop(key)
            self.requested += nbytes  # counted even if malloc fails
            if self.requested > self.peak_requested:
                self.peak_requested = self.requested
            self.blocks[key] = self.malloc(nbytes), nbytes

    def drop(self, key: Hashable) -> None:
        found = self.blocks.pop(key, None)
        if found is not None:
            self.free(found[0])
            self.requested -= found[1]

    def hold(self, name: str, sizes: Iterable[int]) -> None:
        for index, nbytes in enumerate(sizes):
            self.take((name, index), nbytes)

    def flash(self, lists: tuple[tuple[int, ...], ...]) -> None:
        """For each list: allocate all its tensors, then free them."""
        for sizes in lists:
            self.hold("temporary", sizes)
            for index in range(len(sizes)):
                self.drop(("temporary", index))

    def play(self, stream: Iterable[Stamped], *, zeroes: bool = False) -> None:
        """Replay a stream. `zeroes`: the last step's gradients are freed at the end of forward. `take` and `drop` are
        inlined because a search plays millions of events."""
        blocks, apart, seen, waits = self.blocks, self.apart, "", False
        malloc, free = self.malloc, self.free
        for item in stream:
            phase, _, (sign, _, nbytes, kind, _), key = item
            if phase != seen:
                zeroes = self.begin_phase(phase, zeroes=zeroes)
                seen, waits = phase, self.waits(phase)
            if waits and sign > 0:
                self.born_of_products(item)
                waits = self.waits(phase)
            elif kind in apart:
                (self.born if sign > 0 else self.dies)(item)
            elif sign > 0:
                if key in blocks or type(nbytes) is not int or not nbytes:
                    self.take(key, int(nbytes))
                    continue
                self.requested = requested = self.requested + nbytes
                if requested > self.peak_requested:
                    self.peak_requested = requested
                blocks[key] = malloc(nbytes), nbytes
            elif key in blocks:
                block, nbytes = blocks.pop(key)
                free(block)
                self.requested -= nbytes

    def begin_phase(self, phase: str, *, zeroes: bool) -> bool:
        """Free what ends when the phase begins. Returns whether gradients remain to be freed in a later phase."""
        if zeroes and phase == BACKWARD:
            self.drop_gradients()
            zeroes = False
        if self.old and phase in (self.script.old_until, BACKWARD):
            self.drop_old()
        return zeroes

    def born(self, item: Stamped) -> None:
        self.take(item.key, int(item.event.nbytes))

    def born_of_products(self, item: Stamped) -> None:
        """cuBLAS allocates its workspace in a thread's first matrix product, right after the product's result."""
        self.born(item)
        if self.waits(item.phase) and self.multiplies(item):
            self.take(("small", "workspace", self.handles), self.script.workspaces[self.handles])
            self.handles += 1

    def waits(self, phase: str) -> bool:
        """Is the thread that runs this phase still without a cuBLAS workspace?"""
        return self.handles < len(self.script.workspaces) and (phase == BACKWARD) == bool(
            self.handles
        )

    def multiplies(self, item: Stamped) -> bool:
        """Is the tensor made in a section with matrix products?"""
        return (
            item.section < self.script.last_section if item.phase == BACKWARD else item.section > 0
        )

    def dies(self, item: Stamped) -> None:
        self.drop(item.key)

    def end_step(self, *, gradients: bool) -> None:
        """Free gradients if zero_grad comes before the next forward. Mark the rest (outputs, the loss) as held by a
        variable; it is freed when the next forward has returned."""
        if gradients:
            self.drop_gradients()
        for key in list(self.blocks):
            if isinstance(key, tuple) and key[0] not in HELD and not _is_gradient(key):
                self.blocks[("old", key)] = self.blocks.pop(key)
                self.old.append(("old", key))

    def drop_gradients(self) -> None:
        for key in [key for key in self.blocks if _is_gradient(key)]:
            self.drop(key)

    def drop_old(self) -> None:
        for key in self.old:
            self.drop(key)
        self.old.clear()

    def result(self, *, out_of_memory: bool) -> Replayed:
        return Replayed(
            peak_requested_bytes=self.peak_requested,
            peak_allocated_bytes=self.allocator.peak_allocated_bytes,
            peak_reserved_bytes=self.allocator.peak_reserved_bytes,
            out_of_memory=out_of_memory,
        )


def _is_gradient(key: Hashable) -> bool:
    """Is it the gradient of a parameter or of a unit of sharded parameters?"""
    if type(key) is not tuple or len(key) < 2:
        return False
    of = key[1]
    found: bool = (
        of[0] == "gradient" if type(of) is tuple else of == "gradient" and key[0] == "outer"
    )
    return found
