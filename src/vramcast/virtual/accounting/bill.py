"""Peaks → Ledger: what each storage was, in the words of the ledger.

A storage is identified while it lives (parameters, gradients and optimizer states from the objects that own them, the
rest from where it was born) and becomes a line when its phase ends. Lines with the same text in several phases are one
entry, if they are the same bytes there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from vramcast.allocator import OomMoment
from vramcast.ledger import BACKWARD, LOSS, NEXT_BACKWARD, NEXT_LOSS, Category, Entry, Ledger, Level, Origin
from vramcast.virtual.accounting.meter import Peak
from vramcast.virtual.accounting.source_lines import format_line
from vramcast.virtual.accounting.storages import FROM_HOST, HOST_PLACE, PINNED_PLACE, Record, has_storage
from vramcast.virtual.kernels import convolution
from vramcast.virtual.kernels.sparse import parts_of

if TYPE_CHECKING:
    from vramcast.virtual.gpu import VirtualGpu

_OUTPUT_HEADS = (".lm_head", ".embed_out", ".output_projection")
_LOSS_OPS = ("log_softmax", "nll_loss", "cross_entropy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """The request that failed, and what was alive then."""

    phase: str
    place: str
    request: Record
    moment: OomMoment
    alive: tuple[Record, ...]


class Line(NamedTuple):
    """What makes two storages the same line."""

    category: Category
    component: str
    source: str


class Bill:
    def __init__(self, gpu: VirtualGpu) -> None:
        self._gpu = gpu
        self._peaks: dict[tuple[str, str], Peak] = {}
        self._lines: dict[tuple[str, str], dict[Line, int]] = {}

    def identify(self) -> None:
        """Name what parameters, their gradients and the optimizers own now."""
        records = self._gpu.storages.records
        for name, parameter, category in self._parameters():
            _name(records, parameter, category, name)
            if parameter.grad is not None:
                _name(records, parameter.grad, Category.GRADIENTS, name)
        for optimizer in self._gpu.optimizers:
            for values in optimizer.state.values():
                for key, tensor in _state_tensors(values):
                    _name(records, tensor, Category.OPTIMIZER, key)

    def take(self, peak: Peak, now: int) -> None:
        """Keep the most demanding instance of each phase."""
        key = (peak.place, peak.phase)
        best = self._peaks.get(key)
        if best is not None and best.allocated_bytes >= peak.allocated_bytes:
            if peak.reserved_bytes > best.reserved_bytes:
                self._peaks[key] = replace(best, reserved_bytes=peak.reserved_bytes)
            return
        reserved = max(peak.reserved_bytes, best.reserved_bytes if best else 0)
        lines = self._summed(peak.alive, peak.phase)
        known = sum(lines.values())
        if known < peak.allocated_bytes:
            inside = Line(Category.TEMPORARY, "inside a kernel", "")
            lines[inside] = lines.get(inside, 0) + peak.allocated_bytes - known
        self._peaks[key] = replace(peak, reserved_bytes=reserved, alive=())
        self._lines[key] = lines

    def take_shortage(self, shortage: Shortage) -> None:
        """The phase that ran out: what was alive plus the request, so that the sum is what the card lacked."""
        key = (shortage.place, shortage.phase)
        lines = self._summed((*shortage.alive, shortage.request), shortage.phase)
        moment = shortage.moment
        self._lines[key] = lines
        self._peaks[key] = Peak(
            phase=shortage.phase, place=shortage.place, event=self._gpu.clock, allocated_bytes=sum(lines.values()),
            reserved_bytes=moment.reserved_bytes + moment.segment_bytes, alive=(),
        )  # fmt: skip

    def _summed(self, records: Iterable[Record], phase: str) -> dict[Line, int]:
        lines: dict[Line, int] = {}
        for record in records:
            line = self._line(record, phase)
            lines[line] = lines.get(line, 0) + record.nbytes
        return lines

    def ledger(self) -> Ledger:
        entries = [entry for place in self._places() for entry in self._traced(place)]
        for place in self._gpu.places:
            phases = [phase for at, phase in self._peaks if at == place]
            if any(self._lines[place, phase] for phase in phases):  # an untouched card has no context
                entries += self._around(place, phases)
        entries += self._slack(PINNED_PLACE, [phase for at, phase in self._peaks if at == PINNED_PLACE])
        ledger = Ledger(entries=tuple(entries))
        ledger.check()
        return ledger

    # -- lines -----------------------------------------------------------------------------------------------------

    def _line(self, record: Record, phase: str) -> Line:
        category = record.category or self._category(record, phase)
        where = record.name or record.module or record.cause
        return Line(category, where, format_line(record.line))

    def _category(self, record: Record, phase: str) -> Category:
        if any(word in record.cause for word in _LOSS_OPS) or record.module.endswith(_OUTPUT_HEADS):
            return Category.LOGITS
        if record.phase in (BACKWARD, NEXT_BACKWARD) and not record.recomputed:
            return Category.TEMPORARY
        if not record.module and record.cause in (FROM_HOST, "adopted"):
            return Category.INPUT
        if not record.module and record.phase in (LOSS, NEXT_LOSS):  # between what the model returns and backward
            return Category.LOGITS
        if record.death is not None and record.phase == phase:
            return Category.TEMPORARY
        return Category.ACTIVATIONS if record.module else Category.TEMPORARY

    def _parameters(self) -> Iterator[tuple[str, Any, Category]]:
        roots = list(self._gpu.path.roots)
        trains = {id(root): any(p.requires_grad for p in root.parameters()) for root in roots}
        for root in roots:
            companion = not trains[id(root)] and any(trains.values())
            for name, parameter in root.named_parameters():
                yield name, parameter, Category.COMPANION if companion else Category.WEIGHTS
        seen = {id(p) for root in roots for p in root.parameters()}
        for optimizer in self._gpu.optimizers:
            for group in optimizer.param_groups:
                for index, parameter in enumerate(group["params"]):
                    if id(parameter) not in seen:
                        yield f"parameter {index}", parameter, Category.WEIGHTS

    # -- entries ---------------------------------------------------------------------------------------------------

    def _places(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(place for place, _ in self._peaks))

    def _traced(self, place: str) -> Iterator[Entry]:
        phases_of: dict[tuple[Line, int], list[str]] = {}
        for (at, phase), lines in self._lines.items():
            if at == place:
                for line, nbytes in lines.items():
                    if nbytes:
                        phases_of.setdefault((line, nbytes), []).append(phase)
        for (line, nbytes), phases in phases_of.items():
            yield Entry(
                category=line.category, component=line.component, source=line.source, nbytes=nbytes,
                place="host" if place == HOST_PLACE else place, phases=tuple(phases), origin=Origin.TRACED,
            )  # fmt: skip

    def _around(self, place: str, phases: Iterable[str]) -> Iterator[Entry]:
        """What the allocator keeps beyond what is allocated, and what the process holds outside it."""
        yield from self._slack(place, phases)
        yield from self._convolutions(place, phases)
        card = self._gpu.card
        yield Entry(
            category=Category.CONTEXT, component=f"CUDA context on {card.name}", place=place, phases=tuple(phases),
            nbytes=card.context_bytes or 0, origin=Origin.ASSUMED, level=Level.PROCESS, source=card.context_source,
            range_bytes=card.context_range_bytes,
        )  # fmt: skip

    def _slack(self, place: str, phases: Iterable[str]) -> Iterator[Entry]:
        for phase in phases:
            peak = self._peaks[place, phase]
            slack = peak.reserved_bytes - peak.allocated_bytes
            if slack:
                yield Entry(
                    category=Category.SLACK, component="cached and unusable blocks", place=place, phases=(phase,),
                    nbytes=slack, origin=Origin.SIMULATED, level=Level.RESERVED, range_bytes=self._slack_range(peak),
                    formula="reserved − allocated, replayed through the caching allocator",
                )  # fmt: skip

    def _slack_range(self, peak: Peak) -> tuple[int, int] | None:
        """From the first convolution on: at least what was allocated so far, at most what the card has left."""
        meter, card = self._gpu.meters[peak.place], self._gpu.card
        peaks = [other for (place, _), other in self._peaks.items() if place == peak.place]
        since = min((other.event for other in peaks if other.phase in meter.possible_bytes), default=None)
        if since is None or peak.event < since:
            return None
        slack = peak.reserved_bytes - peak.allocated_bytes
        held = max(other.allocated_bytes for other in peaks if other.event <= peak.event) - peak.allocated_bytes
        room = card.capacity_bytes() - (card.context_bytes or 0) - peak.allocated_bytes - self._workspace_bytes(peak)
        most = slack + convolution.EXTRA_SEGMENTS * meter.largest_workspace_bytes
        return min(slack, held), max(slack, min(most, room))

    def _convolutions(self, place: str, phases: Iterable[str]) -> Iterator[Entry]:
        """What workspaces would add to the peak of a phase that has convolutions: from nothing to the most."""
        for phase in phases:
            if phase in self._gpu.meters[place].possible_bytes:
                most = self._workspace_bytes(self._peaks[place, phase])
                yield Entry(
                    category=Category.WORKSPACE, component="cuDNN convolution workspace", place=place, phases=(phase,),
                    nbytes=0, range_bytes=(0, most), origin=Origin.ASSUMED, source=convolution.SOURCE,
                )  # fmt: skip

    def _workspace_bytes(self, peak: Peak) -> int:
        """The most that a workspace may have lifted the peak."""
        return max(0, self._gpu.meters[peak.place].possible_bytes.get(peak.phase, 0) - peak.allocated_bytes)


def _name(records: dict[int, Record], tensor: torch.Tensor, category: Category, name: str) -> None:
    if hasattr(tensor, "_local_tensor"):
        tensor = tensor._local_tensor
    for part in parts_of(tensor):
        if has_storage(part):  # torch.func's wrappers have none
            record = records.get(part.untyped_storage()._cdata)
            if record is not None:
                record.category, record.name = category, name


def _state_tensors(values: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if not isinstance(values, dict):
        return
    for key, value in values.items():
        if isinstance(value, torch.Tensor):
            yield str(key), value
