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
    earlier: tuple[list[Stamped], ...] = ()  # batches of other lengths, before the longest
    stepped_after: int | None = None  # of those; None: the optimizer's first step comes behind the longest
    small: tuple[int, ...] = ()  # workspaces and inputs


def replay(script: Script, *, capacity_bytes: int | None, conf: str) -> Replayed:
    return Run(script, capacity_bytes=capacity_bytes, conf=conf).whole()


HELD = ("weights", "small", "states", "old", "shard", "bucket", "companion")


class Run:
    """Load, steps of other lengths if there are any, one whole step, a second one."""

    def __init__(self, script: Script, *, capacity_bytes: int | None, conf: str) -> None:
        self.script = script
        settings = AllocatorSettings.parse(conf)
        self.allocator = Allocator(capacity_bytes=capacity_bytes, settings=settings, statistics=False)
        self.blocks: dict[Hashable, tuple[Block, int]] = {}  # with the bytes asked for
        self.requested = self.peak_requested = 0
        self.old: list[Hashable] = []
        self.has_states = False

    def whole(self) -> Replayed:
        try:
            self.load()
            self.steps()
        except OutOfMemory:
            return self.result(out_of_memory=True)
        return self.result(out_of_memory=False)

    def load(self) -> None:
        self.hold("weights", self.script.weights)
        self.hold("small", self.script.small)

    def steps(self) -> None:
        script = self.script
        for count, stream in enumerate(script.earlier, 1):
            self.play(stream)
            if count == script.stepped_after:
                self.optimizer_step()
            self.end_step(gradients=script.zero_grad_first)
        self.play(script.first)
        if script.accumulates:
            self.end_step(gradients=False)
            self.play(script.later)
        self.optimizer_step()
        self.end_step(gradients=script.zero_grad_first)
        if script.accumulates and script.zero_grad_first:
            self.play(script.first)
            self.end_step(gradients=False)
        self.play(script.later)
        self.flash(script.step_temporaries)

    def optimizer_step(self) -> None:
        if not self.has_states:
            self.hold("states", self.script.states)
            self.has_states = True
        self.flash(self.script.step_temporaries)

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
        born, dies, old_until = self.born, self.dies, self.script.old_until
        zeroes = not self.script.zero_grad_first and self.script.later is self.script.first  # behind forward, at once
        for item in stream:
            if zeroes and item.phase == BACKWARD:
                self.drop_gradients()
                zeroes = False
            if self.old and item.phase in (old_until, BACKWARD):
                self.drop_old()
            if item.event.sign > 0:
                born(item)
            else:
                dies(item)

    def born(self, item: Stamped) -> None:
        self.take(item.key, int(item.event.nbytes))

    def dies(self, item: Stamped) -> None:
        self.drop(item.key)

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
    """Of a parameter, or of a unit of sharded ones."""
    if not isinstance(key, tuple) or len(key) < 2:
        return False
    return key[:2] == ("outer", "gradient") or (isinstance(key[1], tuple) and key[1][0] == "gradient")
