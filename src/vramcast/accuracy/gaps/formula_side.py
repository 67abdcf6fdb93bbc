"""What the formulas say of a job: each phase's peak, and the tensors of the moment that is most like a traced one.

The bill has lines; single tensors come from the stream behind it (`engine/stream`). The traced peak and the formulas'
own need not be the same moment of a phase: the stream is searched for the moment whose tensors agree best with the
traced ones, and what the formulas' peak is higher than that moment is told apart.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from vramcast.accuracy.gaps.tensors import COMPARED, ONE_PHASE, Side, Tensor
from vramcast.catalog.gpus import find_gpu
from vramcast.engine import Drafts, Stamped, alive_at, estimate, phase_peaks
from vramcast.job import Job
from vramcast.ledger import Category, Entry, Level
from vramcast.setup import complete, model_of
from vramcast.setup.resolve import resolve

DEVICE = "cuda:0"
GROUPS = {
    Category.WEIGHTS: "weights",
    Category.GRADIENTS: "gradients",
    Category.OPTIMIZER: "optimizer states",
    Category.MASTER: "master weights",
    Category.INPUT: "inputs",
    Category.WORKSPACE: "library workspaces",
    Category.SLACK: "rounding",
}
HELD = "still holds"  # of a line: what a variable keeps from the step before
GRADIENT = "gradient"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A position of a stream and how far its tensors are from the traced ones."""

    distance: int
    position: int
    pass_bytes: int
    gradient_bytes: int


class FormulaSide:
    def __init__(self, job: Job) -> None:
        assert job.model is not None
        assert job.gpu is not None
        config = model_of(complete(job)).config
        assert config is not None
        self.ledger = estimate(job, with_scaling=False).ledger
        self.draft = Drafts(config, find_gpu(job.gpu)).of(resolve(job))
        self._phase_of: dict[str, str] = {}  # a compared phase → the phase of the bill
        self.peaks: dict[str, int] = {}
        for phase in self.ledger.phases(DEVICE):
            compared = ONE_PHASE.get(phase, phase)
            allocated = self.ledger.moment(phase, DEVICE).allocated_bytes
            if compared in COMPARED and allocated > self.peaks.get(compared, 0):
                self.peaks[compared], self._phase_of[compared] = allocated, phase

    def side(self, phase: str, traced: Side) -> tuple[Side, int]:
        """The moment of that phase that is most like the traced one, and how much higher the phase's peak is."""
        entries = [
            entry
            for entry in self.ledger.alive(self._phase_of[phase], DEVICE)
            if entry.level == Level.ALLOCATED
        ]
        if phase.endswith(("forward", "backward")):
            return self._in_a_pass(phase, entries, traced)
        tensors = tuple(_of_entry(entry, "step temporaries") for entry in entries)
        return Side(allocated_bytes=self.peaks[phase], tensors=tensors), 0

    def _in_a_pass(self, phase: str, entries: list[Entry], traced: Side) -> tuple[Side, int]:
        outside = [
            entry for entry in entries if entry.category in GROUPS or HELD in entry.component
        ]
        gradients = sum(e.nbytes for e in outside if e.category == Category.GRADIENTS)
        stream = self._stream(gradients)
        peak = self._own_peak(stream, self._phase_of[phase])
        offset = gradients - peak.gradient_bytes  # gradients that another micro-batch has left
        found = _most_alike(stream, phase, traced, offset)
        own = [_of_event(item, self._where(item)) for item in alive_at(stream, found.position)]
        kept = [
            _of_entry(entry, "pass") for entry in outside if entry.category != Category.GRADIENTS
        ]
        held = found.gradient_bytes + offset
        tensors = (
            *own,
            *kept,
            Tensor(group="gradients", name="of trained parameters", nbytes=held),
        )
        higher = peak.pass_bytes + peak.gradient_bytes - found.pass_bytes - found.gradient_bytes
        rest = self.peaks[phase] - higher - sum(tensor.total for tensor in tensors)
        lines = Tensor(group="pass", name="lines outside the stream", nbytes=rest)
        allocated = self.peaks[phase] - higher
        return Side(allocated_bytes=allocated, tensors=(*tensors, lines)), higher

    def _stream(self, gradient_bytes: int) -> list[Stamped]:
        """Of a later micro-batch where the bill has every gradient in a pass."""
        every = gradient_bytes == self.draft.step.states.gradient_bytes
        return self.draft.later if every else self.draft.stream

    def _own_peak(self, stream: list[Stamped], phase: str) -> Moment:
        in_stream = phase.removeprefix("next ")
        peaks = phase_peaks(stream, self.draft.step.program.sections)
        peak = next(each for each in peaks if each.phase == in_stream)
        gradients = sum(int(i.event.nbytes) for i in peak.alive if i.event.kind == GRADIENT)
        return Moment(
            distance=0, position=0, pass_bytes=peak.nbytes - gradients, gradient_bytes=gradients
        )

    def _where(self, item: Stamped) -> str:
        return self.draft.step.program.sections[item.section].name


def _most_alike(stream: list[Stamped], phase: str, traced: Side, offset: int) -> Moment:
    """The position in that phase whose tensors differ from the traced ones by the fewest bytes; the fullest of them."""
    wanted: Counter[int] = Counter()
    for tensor in traced.tensors:
        if tensor.group == "pass" and tensor.nbytes:
            wanted[_size_class(tensor.nbytes)] += tensor.total
    gradients = sum(tensor.total for tensor in traced.tensors if tensor.group == "gradients")
    in_stream = ("forward", "loss") if phase.endswith("forward") else ("backward",)
    reached = (moment for moment in _walk(stream, wanted, gradients - offset))
    there = [moment for moment in reached if stream[moment.position].phase in in_stream]
    return min(there, key=lambda each: (each.distance, -each.pass_bytes - each.gradient_bytes))


def _walk(stream: list[Stamped], wanted: Counter[int], gradients: int) -> Iterator[Moment]:
    """After each event: the distance of what is alive from what is wanted, kept up to date class by class."""
    short = Counter(wanted)  # bytes of a class that are wanted and not there; negative: too many
    distance = sum(wanted.values())
    pass_bytes = gradient_bytes = 0
    for position, item in enumerate(stream):
        event = item.event
        change = event.sign * int(event.nbytes)
        if event.kind == GRADIENT:
            gradient_bytes += change
        elif change:
            kind = _size_class(abs(change))
            distance += abs(short[kind] - change) - abs(short[kind])
            short[kind] -= change
            pass_bytes += change
        yield Moment(
            distance=distance + abs(gradient_bytes - gradients),
            position=position,
            pass_bytes=pass_bytes,
            gradient_bytes=gradient_bytes,
        )


def _size_class(nbytes: int) -> int:
    """Sixteen to a doubling, with borders beside the round numbers: s and s − 1 tokens are of one class."""
    return round(16 * math.log2(nbytes) + 0.37)


def _of_event(item: Stamped, section: str) -> Tensor:
    if item.event.kind == GRADIENT:
        return Tensor(group="gradients", name=item.event.label, nbytes=0)
    return Tensor(
        group="pass", name=f"{_folded(section)}: {item.event.label}", nbytes=int(item.event.nbytes)
    )


def _folded(section: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in section.split("."))


def _of_entry(entry: Entry, otherwise: str) -> Tensor:
    held = HELD in entry.component
    group = GROUPS.get(entry.category, "held outputs" if held else otherwise)
    return Tensor(group=group, name=entry.component, nbytes=entry.nbytes)
