"""The memory breakdown of a trace: the peaks of phases → Ledger, each storage in the words of the ledger.

In come the peaks that the meters hand out when a phase ends. A storage is identified while it is allocated:
parameters, gradients and optimizer states from the objects that own them, the rest from where it was made. It becomes
part of a line when its phase ends. Out comes a Ledger: lines with the same text and the same bytes in several phases
are one entry. Does not know single ops, nor what a job would take without running it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from vramcast.allocator import OomMoment
from vramcast.catalog.gpus import Gpu
from vramcast.ledger import (
    BACKWARD,
    LOAD,
    LOSS,
    NEXT_BACKWARD,
    NEXT_LOSS,
    Category,
    Entry,
    Ledger,
    Level,
    Origin,
)
from vramcast.virtual.accounting.meter import Meter, Peak
from vramcast.virtual.accounting.module_path import without_wrapper
from vramcast.virtual.accounting.source_lines import format_lines
from vramcast.virtual.accounting.storages import (
    ADOPTED,
    FROM_HOST,
    HOST_PLACE,
    HOST_PLACES,
    PINNED_PLACE,
    Record,
    has_storage,
    strided_parts,
)
from vramcast.virtual.kernels import convolution

_OUTPUT_HEADS = (".lm_head", ".embed_out", ".output_projection")
_SMALLEST_VOCABULARY = 1000  # below it, a width may be the same number by chance
_LOSS_OPS = ("log_softmax", "nll_loss", "cross_entropy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """The request that failed, and the records that were allocated then."""

    message: str  # torch's
    line: str  # the user's line that asked
    steps: int  # done by then
    phase: str
    place: str
    request: Record
    moment: OomMoment
    alive: tuple[Record, ...]
    was_lifted: bool  # the limit, so that the script never saw the error


class Line(NamedTuple):
    """Storages for which these three are equal are one line."""

    category: Category
    component: str
    source: str


class Bill:
    """`models` and `optimizers` are those the script has used so far, in order; both grow while it runs."""

    def __init__(
        self,
        card: Gpu,
        meters: Mapping[str, Meter],
        records: Mapping[int, Record],
        models: Iterable[torch.nn.Module],
        optimizers: Iterable[Any],
        trained: Container[torch.nn.Parameter],
    ) -> None:
        self._card = card
        self._meters = meters
        self._records = records
        self._models = models
        self._optimizers = optimizers
        self._trained = trained
        self._vocabularies: frozenset[int] = frozenset()
        self._peaks: dict[tuple[str, str], Peak] = {}
        self._lines: dict[tuple[str, str], dict[Line, int]] = {}
        # told of every peak that is the largest of its phase so far, with the line of each storage
        self.watch: Callable[[Peak, tuple[Line, ...]], None] | None = None

    # -- while the script runs -------------------------------------------------------------------------------------

    def identify(self) -> None:
        """Name the storages that parameters, their gradients and the optimizers own now."""
        self._vocabularies = _vocabularies(self._models)
        for name, parameter, category in self._parameters():
            self._name(parameter, category, name)
            if parameter.grad is not None:
                self._name(parameter.grad, Category.GRADIENTS, name)
        for optimizer in self._optimizers:
            for values in optimizer.state.values():
                for key, tensor in _state_tensors(values):
                    self._name(tensor, Category.OPTIMIZER, key)

    def _parameters(self) -> Iterator[tuple[str, Any, Category]]:
        models = _outermost(list(self._models))
        yield from _model_parameters(models, self._trained)
        in_models = {id(parameter) for model in models for parameter in model.parameters()}
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for index, parameter in enumerate(group["params"]):
                    if id(parameter) not in in_models:
                        yield f"parameter {index}", parameter, Category.WEIGHTS

    def _name(self, tensor: torch.Tensor, category: Category, name: str) -> None:
        if hasattr(tensor, "_local_tensor"):  # of a DTensor
            tensor = tensor._local_tensor
        for part in strided_parts(tensor):
            if not has_storage(part):
                continue
            record = self._records.get(part.untyped_storage()._cdata)
            if record is not None:
                record.category, record.name = category, name

    def keep_peak(self, peak: Peak) -> None:
        """Keep the largest peak of each phase, of all times that the phase was run."""
        key = (peak.place, peak.phase)
        largest = self._peaks.get(key)
        reserved = peak.reserved_bytes
        if largest is not None:
            reserved = max(reserved, largest.reserved_bytes)
            if largest.allocated_bytes >= peak.allocated_bytes:
                self._peaks[key] = replace(largest, reserved_bytes=reserved)
                return
        lines = self._sum_by_line(peak.alive, peak.phase)
        inside_kernel_bytes = peak.allocated_bytes - sum(lines.values())
        if inside_kernel_bytes > 0:
            inside = Line(Category.TEMPORARY, "inside a kernel", "")
            lines[inside] = lines.get(inside, 0) + inside_kernel_bytes
        self._peaks[key] = replace(peak, reserved_bytes=reserved, alive=())
        self._lines[key] = lines
        if self.watch is not None:
            self.watch(peak, tuple(self.line(record, peak.phase) for record in peak.alive))

    def keep_shortage(self, shortage: Shortage, now: int) -> None:
        """For the phase that ran out of memory: what was allocated plus the request, so what the card lacked."""
        key = (shortage.place, shortage.phase)
        lines = self._sum_by_line((*shortage.alive, shortage.request), shortage.phase)
        moment = shortage.moment
        self._lines[key] = lines
        self._peaks[key] = Peak(
            phase=shortage.phase,
            place=shortage.place,
            event=now,
            allocated_bytes=sum(lines.values()),
            reserved_bytes=moment.reserved_bytes + moment.segment_bytes,
            alive=(),
        )

    def _sum_by_line(self, records: Iterable[Record], phase: str) -> dict[Line, int]:
        lines: dict[Line, int] = {}
        for record in records:
            line = self.line(record, phase)
            lines[line] = lines.get(line, 0) + record.nbytes
        return lines

    def line(self, record: Record, phase: str) -> Line:
        """What a storage is at the peak of `phase`."""
        category = record.category or _category(record, phase, self._vocabularies)
        component = record.name or record.module or record.cause
        return Line(category, component, format_lines(record.line, record.library_line))

    # -- afterwards ------------------------------------------------------------------------------------------------

    def ledger(self) -> Ledger:
        entries: list[Entry] = []
        for place in dict.fromkeys(place for place, _ in self._peaks):
            entries += self._storage_entries(place)
        for place in self._meters:
            phases = self._phases_at(place)
            used = any(self._lines[place, phase] for phase in phases)
            if used and place not in HOST_PLACES:  # a card that is not used has no CUDA context
                entries += self._slack_entries(place)
                entries += self._convolution_entries(place)
                entries.append(self._context_entry(place))
        entries += self._slack_entries(PINNED_PLACE)
        ledger = Ledger(entries=tuple(entries))
        ledger.check()
        return ledger

    def _phases_at(self, place: str) -> tuple[str, ...]:
        return tuple(phase for at, phase in self._peaks if at == place)

    def _storage_entries(self, place: str) -> Iterator[Entry]:
        phases_of: dict[tuple[Line, int], list[str]] = {}
        for (at, phase), lines in self._lines.items():
            if at != place:
                continue
            for line, nbytes in lines.items():
                if nbytes:
                    phases_of.setdefault((line, nbytes), []).append(phase)
        for (line, nbytes), phases in phases_of.items():
            yield Entry(
                category=line.category,
                component=line.component,
                source=line.source,
                nbytes=nbytes,
                place="host" if place == HOST_PLACE else place,
                phases=tuple(phases),
                origin=Origin.TRACED,
            )

    def _context_entry(self, place: str) -> Entry:
        card = self._card
        return Entry(
            category=Category.CONTEXT,
            component=f"CUDA context on {card.name}",
            place=place,
            phases=self._phases_at(place),
            nbytes=card.context_bytes or 0,
            origin=Origin.ASSUMED,
            level=Level.PROCESS,
            source=card.context_source,
            range_bytes=card.context_range_bytes,
        )

    def _slack_entries(self, place: str) -> Iterator[Entry]:
        """What the allocator has reserved beyond what is allocated."""
        for phase in self._phases_at(place):
            peak = self._peaks[place, phase]
            slack = peak.reserved_bytes - peak.allocated_bytes
            if slack:
                yield Entry(
                    category=Category.SLACK,
                    component="cached and unusable blocks",
                    place=place,
                    phases=(phase,),
                    nbytes=slack,
                    origin=Origin.SIMULATED,
                    level=Level.RESERVED,
                    range_bytes=self._slack_range(peak),
                    formula="reserved − allocated, replayed through the caching allocator",
                )

    def _slack_range(self, peak: Peak) -> tuple[int, int] | None:
        """Convolution workspaces are unknown and change what is reserved, from the first convolution on.

        At least what was allocated so far stays reserved; at most the card is full.
        """
        meter, card = self._meters[peak.place], self._card
        peaks = [other for (place, _), other in self._peaks.items() if place == peak.place]
        with_convolutions = [other.event for other in peaks if other.phase in meter.possible_bytes]
        if not with_convolutions or peak.event < min(with_convolutions):
            return None
        slack = peak.reserved_bytes - peak.allocated_bytes
        largest_so_far = max(other.allocated_bytes for other in peaks if other.event <= peak.event)
        least = min(slack, largest_so_far - peak.allocated_bytes)
        outside_slack = (
            (card.context_bytes or 0) + peak.allocated_bytes + self._workspace_limit_bytes(peak)
        )
        room = card.capacity_bytes() - outside_slack
        most = slack + convolution.EXTRA_SEGMENTS * meter.largest_workspace_bytes
        return least, max(slack, min(most, room))

    def _convolution_entries(self, place: str) -> Iterator[Entry]:
        """What workspaces may add to the peak of a phase that has convolutions: nothing, or up to a limit."""
        for phase in self._phases_at(place):
            if phase in self._meters[place].possible_bytes:
                limit_bytes = self._workspace_limit_bytes(self._peaks[place, phase])
                yield Entry(
                    category=Category.WORKSPACE,
                    component="cuDNN convolution workspace",
                    place=place,
                    phases=(phase,),
                    nbytes=0,
                    range_bytes=(0, limit_bytes),
                    origin=Origin.ASSUMED,
                    source=convolution.SOURCE,
                )

    def _workspace_limit_bytes(self, peak: Peak) -> int:
        """How much higher the peak may have been with workspaces."""
        possible = self._meters[peak.place].possible_bytes.get(peak.phase, 0)
        return max(0, possible - peak.allocated_bytes)


# -- whose storage it is -------------------------------------------------------------------------------------------


def _outermost(models: list[torch.nn.Module]) -> list[torch.nn.Module]:
    """Without those that are part of another one.

    Checkpointing calls a model's blocks again during backward, outside of the model. A parameter keeps the name it has
    in the whole model: `model.layers.0.mlp.up_proj.weight`, not the block's `mlp.up_proj.weight`.
    """
    inside = {id(part) for model in models for part in model.modules() if part is not model}
    return [model for model in models if id(model) not in inside]


def _model_parameters(
    models: list[torch.nn.Module],
    trained: Container[torch.nn.Parameter],
) -> Iterator[tuple[str, torch.nn.Parameter, Category]]:
    """A model that is not trained is a companion (reference, teacher) of one that is.

    Some frameworks leave a reference's parameters as they are; no optimizer was made for them.
    """
    trains = [any(parameter.requires_grad for parameter in m.parameters()) for m in models]
    optimized = [any(parameter in trained for parameter in m.parameters()) for m in models]
    if any(optimized):
        trains = optimized
    for model, is_trained in zip(models, trains, strict=True):
        is_companion = not is_trained and any(trains)
        category = Category.COMPANION if is_companion else Category.WEIGHTS
        for name, parameter in model.named_parameters():
            yield without_wrapper(name), parameter, category


def _state_tensors(values: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if not isinstance(values, dict):
        return
    for key, value in values.items():
        if isinstance(value, torch.Tensor):
            yield str(key), value


def _category(record: Record, phase: str, vocabularies: Collection[int]) -> Category:
    """What a storage is that no parameter or optimizer owns, at the peak of `phase`."""
    if _belongs_to_loss(record) or _is_over_vocabulary(record, vocabularies):
        return Category.LOGITS
    if "dequantize" in record.cause:
        return Category.COPIES
    if (
        "embedding_dense_backward" in record.cause
    ):  # of a tied table, before it is added to the head's
        return Category.GRADIENTS
    if record.phase in (BACKWARD, NEXT_BACKWARD) and not record.recomputed:
        return Category.TEMPORARY
    if record.module:
        freed_in_its_own_phase = record.freed_at is not None and record.phase == phase
        return Category.TEMPORARY if freed_in_its_own_phase else Category.ACTIVATIONS
    if record.cause in (FROM_HOST, ADOPTED):
        return Category.INPUT
    if record.phase in (LOSS, NEXT_LOSS):  # after the model has returned, before backward
        return Category.LOGITS
    return Category.TEMPORARY


def _vocabularies(models: Iterable[torch.nn.Module]) -> frozenset[int]:
    """How many tokens the models know, by their embeddings."""
    return frozenset(
        part.num_embeddings
        for model in models
        for part in model.modules()
        if isinstance(part, torch.nn.Embedding) and part.num_embeddings >= _SMALLEST_VOCABULARY
    )


def _is_over_vocabulary(record: Record, vocabularies: Collection[int]) -> bool:
    """Logits, whatever was made of them, and their gradients: floating-point numbers with one for every token."""
    if len(record.shape) < 2 or record.shape[-1] not in vocabularies or record.dtype is None:
        return False
    is_many = math.prod(record.shape[:-1]) > 1
    return is_many and record.dtype.is_floating_point and record.phase != LOAD


def _belongs_to_loss(record: Record) -> bool:
    if record.module.endswith(_OUTPUT_HEADS):
        return True
    return any(word in record.cause for word in _LOSS_OPS)
