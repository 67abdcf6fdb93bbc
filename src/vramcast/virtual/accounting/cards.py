"""The virtual cards and the host's memory: every allocation and free of a trace, stamped and counted.

In come tensors that ops have made (`enroll`), storages that Python drops, and phases that end. Each allocation is
stamped with phase, module, source line and op, and gets a block from the meter of its place. Out come a Ledger, a
timeline and notes about what was assumed. Knows nothing about kernels, and patches nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _device
from torch.utils.weak import WeakIdKeyDictionary

from vramcast.allocator import OutOfMemory
from vramcast.catalog.gpus import Gpu
from vramcast.ledger import Ledger, Word
from vramcast.virtual.accounting.bill import Bill, Shortage
from vramcast.virtual.accounting.card import (
    DEFAULT_CAPABILITY,
    CardMemory,
    allocator_settings,
    check_card,
)
from vramcast.virtual.accounting.handlers import somebody_catches
from vramcast.virtual.accounting.history import History
from vramcast.virtual.accounting.meter import HostMemory, Meter, PinnedMemory, Point
from vramcast.virtual.accounting.module_path import ModulePath
from vramcast.virtual.accounting.phases import Phases
from vramcast.virtual.accounting.source_lines import format_line, source_line, source_lines
from vramcast.virtual.accounting.storages import (
    ADOPTED,
    HOST_PLACE,
    NOWHERE,
    PINNED_PLACE,
    Record,
    Storages,
    inner_tensors,
    is_meta,
    meta_twin,
    storage_of,
    strided_parts,
)

_ORDINARY = (torch.Tensor, torch.nn.Parameter)


class Lifting(Word):
    """When a card that is too small becomes as large as it has to be, so that the run can say what it needs."""

    NEVER = "never"
    UNCAUGHT = "where nobody catches the error"
    ALWAYS = "always"


class Cards:
    """One or more virtual cards of the same kind, and the host."""

    def __init__(self, card: Gpu, count: int) -> None:
        check_card(card)
        self.card = card
        self.capability = card.compute_capability or DEFAULT_CAPABILITY
        self.count = count
        self.places = tuple(f"cuda:{index}" for index in range(count))
        self.devices = {place: torch.device(place) for place in (*self.places, HOST_PLACE)}
        settings = allocator_settings()
        self.memories = tuple(CardMemory(card, index, settings) for index in range(count))
        self.meters = {
            place: Meter(place, memory)
            for place, memory in zip(self.places, self.memories, strict=True)
        }
        self.meters[HOST_PLACE] = Meter(HOST_PLACE, HostMemory())
        self.meters[PINNED_PLACE] = Meter(PINNED_PLACE, PinnedMemory())
        self.storages = Storages(self.record_allocation, self.record_free)
        self.phases = Phases(self.end_phase)
        self.path = ModulePath(self.phases)
        # In the order of their first step: a WeakSet's order would differ from run to run.
        self.optimizers: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()
        self.trained = (
            WeakIdKeyDictionary()
        )  # parameters that an optimizer was made for  # parameters that an optimizer was made for
        self.bill = Bill(
            card,
            self.meters,
            self.storages.records,
            self.path.roots,
            self.optimizers,
            self.trained,
        )
        self.current_index = 0  # of torch.cuda.current_device()
        self.clock = 0  # counts allocations, frees and ends of phases
        self.cause = ""  # the op that makes what is allocated next
        self.last_place = self.places[0]  # of the latest allocation that was not on the host
        self.place_of_latest_op = HOST_PLACE
        self.notes: dict[str, int] = {}  # what was assumed or stood in for, and how often
        self.out_of_memory: Shortage | None = None  # the latest, or the one that lifted the limit
        self.lifts_limit = Lifting.NEVER
        self.forked: Any = (
            None  # in a forked process: a byte that tells its parent that it used a card
        )
        self.lost: list[str] = []  # work of the script that was not followed
        self.is_uncounted = False  # what is allocated now is not the script's memory
        self.attributed: Any = (
            None  # module and source lines of what is allocated next, if known better
        )

    # -- places ----------------------------------------------------------------------------------------------------

    def place_named(self, device: torch.device) -> str:
        index = self.current_index if device.index is None else device.index
        if device.type == "cpu":
            return HOST_PLACE
        if device.type == "meta":
            return NOWHERE
        if device.type != "cuda" or not 0 <= index < self.count:
            raise torch.AcceleratorError(
                f"CUDA error: invalid device ordinal ({device} asked for, {self.count} virtual card(s) exist)"
            )
        return self.places[index]

    def recorded_place(self, tensor: torch.Tensor) -> str:
        """Where the storage of a tensor was enrolled; nowhere if it was not."""
        record = self.storages.find(strided_parts(tensor)[-1])
        return NOWHERE if record is None else record.place

    def place_of_bare_meta(self) -> str:
        """For a factory call with device="meta": torch's own one (inside an op or backward), or the user's."""
        if _device.CURRENT_DEVICE is not None and _device.CURRENT_DEVICE.type == "meta":
            return NOWHERE
        if self.path.stack:
            return self.last_place
        if torch._C._current_autograd_node() is not None:  # beside the gradients it works on
            return self.place_of_latest_op
        return NOWHERE

    def memory_at(self, place: str) -> CardMemory:
        return self.memories[self.places.index(place)]

    def meter_of(self, record: Record) -> Meter:
        return self.meters[PINNED_PLACE if record.pinned else record.place]

    # -- tensors ---------------------------------------------------------------------------------------------------

    def enroll(
        self, tensor: torch.Tensor, place: str, cause: str, *, pinned: bool = False
    ) -> Record | None:
        """Count the storage of a new tensor; None if it is counted already."""
        if tensor.layout != torch.strided:
            for part in inner_tensors(tensor):
                self.enroll(part, place, cause)
            return None
        if storage_of(tensor)._cdata in self.storages.records:
            return None
        self.cause = cause
        return self.storages.add(tensor, place, known=not is_meta(tensor), pinned=pinned)

    def enroll_all(self, result: Any, place: str, cause: str) -> None:
        """Enroll every tensor in what an op returned."""
        if isinstance(result, torch.Tensor):
            self.enroll(result, place, cause)
        elif isinstance(result, (list, tuple)):
            for item in result:
                self.enroll_all(item, place, cause)

    def adopt(self, tensor: torch.Tensor) -> Record:
        """Count a tensor that no op of the script made: from numpy, a file, another process, or from before."""
        self.cause = ADOPTED
        if is_meta(tensor):
            return self.storages.add(tensor, NOWHERE, known=False)
        return self.storages.add(tensor, HOST_PLACE, known=True)

    def shared_twin(self, tensor: torch.Tensor) -> torch.Tensor:
        """A second tensor for the same bytes, without their values."""
        if self.storages.find(tensor) is None:
            self.adopt(tensor)
        with torch._C._DisableTorchDispatch():
            twin = meta_twin(tensor)
        self.storages.share(tensor, twin)
        return twin

    def without_values(self, tensor: Any) -> Any:
        """The tensor itself, unless it is one of a virtual card whose values are known."""
        if not isinstance(tensor, torch.Tensor) or type(tensor) not in _ORDINARY or is_meta(tensor):
            return tensor
        record = self.storages.find(tensor)
        if record is None or record.place == HOST_PLACE:
            return tensor
        return self.shared_twin(tensor)

    def move(self, record: Record, place: str) -> None:
        """Free a storage where it is, and allocate it at another place."""
        self.record_free(record)
        record.place, record.call_site, record.freed_at = place, None, None
        self.record_allocation(record, record.nbytes)

    # -- allocations and frees -------------------------------------------------------------------------------------

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Ops run as they would, and what they allocate is counted nowhere."""
        before = self.is_uncounted
        self.is_uncounted = True
        try:
            with self.phases.paused():
                yield
        finally:
            self.is_uncounted = before

    def record_allocation(self, record: Record, requested_bytes: int) -> None:
        if self.is_uncounted:
            record.is_uncounted = True
            return
        self.clock += 1
        record.cause = self.cause
        record.phase = self.phases.current
        if self.attributed is None:
            record.module = self.path.current()
            record.line, record.library_line = source_lines()
        else:
            record.module, (record.line, record.library_line) = self.attributed
        record.recomputed = bool(self.path.stack)
        place = record.place
        if place != HOST_PLACE:
            self.last_place = place
            if self.forked is not None:
                self.forked[0] = 1
        try:
            self.meter_of(record).allocate(record, requested_bytes, self.clock, record.phase)
        except OutOfMemory as error:
            self.run_out(record, requested_bytes, error)
            self.meter_of(record).allocate(record, requested_bytes, self.clock, record.phase)

    def run_out(self, record: Record, requested_bytes: int, error: OutOfMemory) -> None:
        """The card is too small. Raises torch's error, or lifts the limit; what is allocated is kept."""
        is_lifted = self.lifts_limit == Lifting.ALWAYS or (
            self.lifts_limit == Lifting.UNCAUGHT and not somebody_catches()
        )
        self.bill.identify()
        meter = self.meters[record.place]
        allocator = self.memory_at(record.place).allocator
        record.nbytes = allocator.rounded(requested_bytes)
        self.out_of_memory = Shortage(
            message=str(error),
            line=format_line(source_line()),
            steps=self.phases.steps,
            was_lifted=is_lifted,
            phase=self.phases.current,
            place=record.place,
            request=record,
            moment=error.moment,
            alive=tuple(meter.live.values()),
        )
        if not is_lifted:
            raise torch.OutOfMemoryError(str(error)) from None
        for memory in self.memories:
            memory.lift_limit()

    def record_free(self, record: Record) -> None:
        if record.is_uncounted:
            return
        self.clock += 1
        self.meter_of(record).free(record, self.clock, self.phases.current)

    def end_phase(self, phase: str) -> None:
        self.clock += 1
        self.complete_streams()
        self.bill.identify()
        for meter in self.meters.values():
            self.bill.keep_peak(meter.end_phase(phase, self.clock))

    def complete_streams(self) -> None:
        """Work on all streams is done: blocks that waited for another stream become free."""
        for memory in self.memories:
            memory.allocator.complete_pending()

    def keep_history(self, *, with_frames: bool = True) -> None:
        """From now on every allocation and free on the cards is remembered, one by one."""
        for place in self.places:
            if self.meters[place].history is None:
                self.meters[place].history = History(with_frames=with_frames)

    def drop_history(self) -> None:
        for place in self.places:
            self.meters[place].history = None

    # -- answers ---------------------------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """Tell the report what was assumed or stood in for."""
        self.notes[text] = self.notes.get(text, 0) + 1

    def note_once(self, text: str) -> None:
        """As `note`, for what holds for the whole trace, however often it occurs."""
        self.notes.setdefault(text, 1)

    def ledger(self) -> Ledger:
        return self.bill.ledger()

    def timeline(self, place: str = "cuda:0") -> tuple[Point, ...]:
        return tuple(self.meters[place].timeline)
