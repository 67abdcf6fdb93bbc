"""A run of the allocator that keeps what every allocation is for, and when it is freed: for timelines."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vramcast.allocator import Block, OutOfMemory
from vramcast.engine.lines.setting import OtherLines
from vramcast.engine.lines.training_step import line_of
from vramcast.engine.parallel.rank_replay import RankRun, RankScript
from vramcast.engine.replay.card import Held
from vramcast.engine.replay.extras import LATER
from vramcast.engine.replay.run import Run, Script
from vramcast.engine.stream.timeline import Stamped
from vramcast.ledger import LOAD, NEXT_STEP, STEP, Category
from vramcast.models.record.program import Program
from vramcast.timelines.record import Label, Recorder

# Tensors that a run holds by name: the category, and what they are called.
NAMED = {
    "weights": (Category.WEIGHTS, "weight"),
    "states": (Category.OPTIMIZER, "optimizer state"),
    "small": (Category.INPUT, "input"),
    "temporary": (Category.TEMPORARY, "optimizer step"),
    "companion": (Category.COMPANION, "weight of a companion"),
    "shard": (Category.WEIGHTS, "shard of the weights"),
    "moved": (Category.LOADING, "weight before it is sharded"),
    "whole": (Category.LOADING, "whole weight before it is cut"),
    "vector": (Category.LOADING, "weights joined before they are cut"),
    "tried": (Category.COMMUNICATION, "tried when FSDP first runs"),
    "broadcast": (Category.COMMUNICATION, "weights sent from rank 0"),
    "bucket": (Category.COMMUNICATION, "bucket of gradients"),
}


GENERATED: Mapping[Hashable, Category] = {
    "logits": Category.LOGITS,
    "inputs_embeds": Category.ACTIVATIONS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What tensors of a run are called that carry no name of their own."""

    program: Program
    extra: OtherLines = field(default_factory=OtherLines)
    held: Mapping[str, Sequence[Held]] = field(default_factory=dict)  # by NAMED's key, in order

    def of_event(self, item: Stamped, phase: str) -> Label:
        event = item.event
        if item.key in GENERATED:
            return Label(str(GENERATED[item.key]), "", "", str(item.key))
        if (
            event.label == "keys and values"
        ):  # joined layer by layer, outside of the recorded passes
            return Label(str(Category.CACHE), "", "", event.label)
        for line in self.extra.blocks:
            if line.component == event.label and event.kind == "working":
                return Label(str(line.category), "", "", event.label)
        sections = self.program.sections
        placed = sections[item.section] if item.section < len(sections) else sections[0]
        if event.kind == "gradient":
            return Label(str(Category.GRADIENTS), placed.name, "", event.label)
        category, _ = line_of(placed, item, phase)
        return Label(str(category), placed.name, "", event.label)

    def of_key(self, key: Hashable) -> Label:
        name, number = _parts(key)
        if name == "small" and number == "workspace":
            return Label(str(Category.WORKSPACE), "", "", "cuBLAS workspace")
        held = self.held.get(name, ())
        if isinstance(number, int) and number < len(held):
            category, param, _ = held[number]
            module, _, tensor = param.rpartition(".")
            return Label(str(category), module, "", tensor)
        category, text = NAMED[name]
        return Label(str(category), "", "", text)


def _parts(key: Hashable) -> tuple[str, Any]:
    if isinstance(key, tuple):
        return str(key[0]), key[1] if len(key) > 1 else None
    return str(key), None


def _is_named(key: Hashable) -> bool:
    """Held by the run itself, and not an event of a pass?"""
    is_line = isinstance(key, tuple) and key[:2] == ("small", "other line")
    return not is_line and _parts(key)[0] in NAMED


class RecordedRun(Run):
    def __init__(
        self,
        script: Script,
        *,
        capacity_bytes: int | None,
        conf: str,
        names: Names,
    ) -> None:
        super().__init__(script, capacity_bytes=capacity_bytes, conf=conf)
        self.recorder = Recorder()
        self._names = names
        self._item: Stamped | None = None
        self._key: Hashable = None
        self._has_stepped = False
        self._labels: dict[Hashable, Label] = {}
        self._own_malloc, self._own_free = self.malloc, self.free
        self.malloc, self.free = self._malloc, self._free
        self.recorder.begin_phase(LOAD)

    def _malloc(self, nbytes: int, *stream: int) -> Block:
        block = self._own_malloc(nbytes, *stream)
        self.recorder.allocate(id(block), block.size, self._label())
        self.recorder.reserve(self.allocator.reserved_bytes)
        return block

    def _free(self, block: Block) -> None:
        self.recorder.free(id(block))
        self._own_free(block)
        self.recorder.reserve(self.allocator.reserved_bytes)

    def _label(self) -> Label:
        if self._item is None or _is_named(self._key):
            return self._names.of_key(self._key)
        item = self._item
        name = item.key if isinstance(item.key, str) else _parts(item.key)[0] == "border"
        known = (item.section, item.event.kind, item.event.label, item.phase, name)
        if known not in self._labels:
            self._labels[known] = self._names.of_event(item, item.phase)
        return self._labels[known]

    def take(self, key: Hashable, nbytes: int, *stream: int) -> None:
        self._key = key
        super().take(key, nbytes, *stream)

    def play(self, stream: Iterable[Stamped], *, zeroes: bool = False) -> None:
        super().play(self._announced(stream), zeroes=zeroes)
        self._item = None

    def _announced(self, stream: Iterable[Stamped]) -> Iterator[Stamped]:
        for item in stream:
            phase = item.phase
            self.recorder.begin_phase(LATER.get(phase, phase) if self._has_stepped else phase)
            self._item, self._key = item, item.key
            yield item

    def flash(self, lists: tuple[tuple[int, ...], ...]) -> None:
        self.recorder.begin_phase(NEXT_STEP if self._has_stepped else STEP)
        super().flash(lists)

    def optimizer_step(self) -> None:
        self.recorder.begin_phase(STEP)
        super().optimizer_step()
        self._has_stepped = True

    def played(self) -> bool:
        """Does the card suffice?"""
        try:
            self.load()
            self.steps()
        except OutOfMemory:
            return False
        return True


class RecordedRankRun(RecordedRun, RankRun):
    script: RankScript
