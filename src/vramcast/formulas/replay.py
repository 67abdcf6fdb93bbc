"""The job's births and deaths through the caching allocator: what torch would reserve, and whether it suffices."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from vramcast.allocator import Allocator, AllocatorSettings, Block, OutOfMemory
from vramcast.formulas.timeline import Stamped
from vramcast.ledger import BACKWARD


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    peak_requested_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    out_of_memory: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Two steps of a job: what lies there from the start, what a step makes, what the optimizer adds."""

    weights: tuple[int, ...]
    first: list[Stamped]
    later: list[Stamped]
    states: tuple[int, ...]
    step_temporaries: tuple[tuple[int, ...], ...]  # lists, each made as a whole and dropped as a whole
    old_until: str = BACKWARD  # the phase before which a variable lets go of the last step's outputs
    zero_grad_first: bool  # gradients are dropped before the next forward
    accumulates: bool = False  # further micro-batches come before the first optimizer step
    earlier: tuple[list[Stamped], ...] = ()  # steps with batches of other lengths
    small: tuple[int, ...] = ()  # workspaces and inputs


def replay(script: Script, *, capacity_bytes: int | None, conf: str) -> Replayed:
    """Load, steps of other lengths if there are any, one whole step, a second one."""
    allocator = Allocator(capacity_bytes=capacity_bytes, settings=AllocatorSettings.parse(conf))
    zeroed = not script.zero_grad_first and script.later is script.first  # after the forward, all at once
    run = _Run(allocator, script.old_until, zeroed_before_backward=zeroed)
    try:
        run.hold("weights", script.weights)
        run.hold("small", script.small)
        for stream in script.earlier:
            run.play(stream)
            run.end_step(gradients=script.zero_grad_first)
        run.play(script.first)
        if script.accumulates:
            run.end_step(gradients=False)
            run.play(script.later)
        run.hold("states", script.states)
        run.flash(script.step_temporaries)
        run.end_step(gradients=script.zero_grad_first)
        run.play(script.later)
        run.flash(script.step_temporaries)
    except OutOfMemory:
        return run.result(out_of_memory=True)
    return run.result(out_of_memory=False)


HELD = ("weights", "small", "states", "old")


class _Run:
    def __init__(self, allocator: Allocator, old_until: str, *, zeroed_before_backward: bool) -> None:
        self.allocator, self.old_until, self.zeroed_before_backward = allocator, old_until, zeroed_before_backward
        self.blocks: dict[Hashable, tuple[Block, int]] = {}  # with the bytes asked for
        self.requested = self.peak_requested = 0
        self.old: list[Hashable] = []

    def take(self, key: Hashable, nbytes: int) -> None:
        if nbytes:
            if key in self.blocks:
                self.drop(key)
            self.blocks[key] = self.allocator.malloc(nbytes), nbytes
            self.requested += nbytes
            if self.requested > self.peak_requested:
                self.peak_requested = self.requested

    def drop(self, key: Hashable) -> None:
        found = self.blocks.pop(key, None)
        if found is not None:
            self.allocator.free(found[0])
            self.requested -= found[1]

    def hold(self, name: str, sizes: Iterable[int]) -> None:
        for index, nbytes in enumerate(sizes):
            self.take((name, index), nbytes)

    def flash(self, lists: tuple[tuple[int, ...], ...]) -> None:
        """Lists that are made as a whole and dropped as a whole, one after the other."""
        for sizes in lists:
            self.hold("temporary", sizes)
            for index in range(len(sizes)):
                self.drop(("temporary", index))

    def play(self, stream: list[Stamped]) -> None:
        take, drop = self.take, self.drop
        zeroes = self.zeroed_before_backward
        for item in stream:
            if zeroes and item.phase == BACKWARD:
                self.drop_gradients()
                zeroes = False
            if self.old and item.phase in (self.old_until, BACKWARD):
                self.drop_old()
            if item.event.sign > 0:
                take(item.key, int(item.event.nbytes))
            else:
                drop(item.key)

    def end_step(self, *, gradients: bool) -> None:
        """Gradients go if zero_grad comes before the next forward. What a variable holds (outputs, the loss) goes when
        the next forward has returned."""
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
            peak_requested_bytes=self.peak_requested, peak_allocated_bytes=self.allocator.peak_allocated_bytes,
            peak_reserved_bytes=self.allocator.peak_reserved_bytes, out_of_memory=out_of_memory,
        )  # fmt: skip


def _is_gradient(key: Hashable) -> bool:
    return isinstance(key, tuple) and len(key) == 2 and isinstance(key[1], tuple) and key[1][0] == "gradient"
