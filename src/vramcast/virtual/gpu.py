"""The virtual GPU: `with virtual_gpu("rtx4090") as gpu:` runs CUDA code on tensors without data and bills storages.

Start reading the package here. Births and deaths of storages arrive from `storages`; phases, module path and source
line are asked for at birth; the meters keep each phase's peak; `bill` turns peaks into a Ledger.
"""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any

import torch
import torch._dynamo  # before any patch: it looks at torch.cuda once, when it is imported

from vramcast.allocator import OutOfMemory
from vramcast.catalog.gpus import Gpu, find_gpu
from vramcast.errors import InputError
from vramcast.ledger import Ledger
from vramcast.patches import Patches
from vramcast.sandbox.guard import guarded_process
from vramcast.virtual.accounting.bill import Bill, Shortage
from vramcast.virtual.accounting.card import DEFAULT_CAPABILITY, CardMemory, allocator_settings, check_card
from vramcast.virtual.accounting.meter import HostMemory, Meter, PinnedMemory, Point
from vramcast.virtual.accounting.module_path import ModulePath
from vramcast.virtual.accounting.phases import Phases
from vramcast.virtual.accounting.source_lines import source_line
from vramcast.virtual.accounting.storages import HOST_PLACE, NOWHERE, PINNED_PLACE, Record, Storages
from vramcast.virtual.kernels import autocast
from vramcast.virtual.kernels import cuda_kernels as kernels
from vramcast.virtual.kernels import unknown_values as special
from vramcast.virtual.kernels.dispatch_mode import VirtualMode
from vramcast.virtual.torch_patches import (
    cuda_api,
    distributed,
    gradients,
    inplace,
    leaves,
    libraries,
    tensors,
    training,
)
from vramcast.virtual.torch_patches import cuda_graphs as graphs
from vramcast.virtual.torch_patches import data_parallel as parallel
from vramcast.virtual.torch_patches import gradient_sums as sums
from vramcast.virtual.torch_patches import torchscript as scripted
from vramcast.virtual.torch_patches.collectives import World

GPUS_PER_NODE = 8
_active: list[VirtualGpu] = []


class VirtualGpu:
    """One or more virtual cards of the same kind, for as long as the context lasts."""

    def __init__(
        self,
        card: Gpu,
        *,
        count: int = 1,
        cuda_kernels: bool = True,
        steps: int | None = None,
        empty_weights: bool = False,
        rank: int | None = None,
        world_size: int = 1,
        protect: bool = False,
    ) -> None:
        check_card(card)
        self.card = card
        self.capability = card.compute_capability or DEFAULT_CAPABILITY
        self.count = count
        self.places = tuple(f"cuda:{index}" for index in range(count))
        settings = allocator_settings()
        self.memories = tuple(CardMemory(card, index, settings) for index in range(count))
        self.meters = dict(
            zip(self.places, (Meter(p, m) for p, m in zip(self.places, self.memories, strict=True)), strict=True)
        )
        self.meters[HOST_PLACE] = Meter(HOST_PLACE, HostMemory())
        self.meters[PINNED_PLACE] = Meter(PINNED_PLACE, PinnedMemory())
        self.devices = {place: torch.device(place) for place in (*self.places, HOST_PLACE)}
        self.storages = Storages(self.born, self.died)
        self.phases = Phases(self._phase_ends)
        self.path = ModulePath(self)
        self.bill = Bill(self)
        self.kernels = kernels.Kernels(self, cuda=cuda_kernels)
        self.mode = VirtualMode(self)
        self.step_limit = steps
        self._empty_weights = empty_weights
        self._rank, self._world_size = rank, world_size
        self._protect = protect
        self.current_index = 0
        self.clock = 0
        self.cause = ""
        self.last_place = self.places[0]
        self.notes: dict[str, int] = {}  # what was assumed or stood in for, and how often
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.out_of_memory: Shortage | None = None
        self.exit = ExitStack()

    # -- the context -----------------------------------------------------------------------------------------------

    def __enter__(self) -> VirtualGpu:
        if _active:
            raise InputError("a virtual GPU is already active: leave its context first.")
        sums.install(self)
        patches = Patches()
        _active.append(self)
        self.exit.callback(_active.clear)
        self.exit.callback(self.storages.close)
        self.exit.callback(libraries.forget_devices)
        self.exit.callback(patches.restore)
        try:
            if self._protect:
                self.exit.enter_context(guarded_process())
            for part in (cuda_api, graphs, tensors, leaves, inplace, training):
                part.install(self, patches)
            parallel.install(patches)
            scripted.name_replacements(self, patches)
            self.path.install(patches)
            libraries.install_safetensors(self, patches)
            if self._empty_weights:
                libraries.install_empty_weights(self, patches)
            libraries.forget_devices()
            self.exit.enter_context(self._processes(patches))
            self.exit.enter_context(self.kernels)
            self.exit.enter_context(autocast.Autocast(self, patches))
            special.install(self)
            gradients.install(self)
            self.exit.enter_context(self.mode)
        except BaseException:
            self.exit.close()
            raise
        return self

    def _processes(self, patches: Patches) -> AbstractContextManager[None]:
        if self._rank is None:
            return distributed.process_groups(self, World(), patches)
        return distributed.as_rank(self, self._rank, self._world_size, patches)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Leaves torch as it was. The end of the steps asked for is not an error."""
        try:
            self._phase_ends(self.phases.current)
            if self.out_of_memory is not None and isinstance(error, torch.OutOfMemoryError):
                self.bill.take_shortage(self.out_of_memory)
        finally:
            self.exit.close()
        return isinstance(error, training.StepsDone)

    # -- what the parts ask ----------------------------------------------------------------------------------------

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

    def place_of_bare_meta(self) -> str:
        """A meta factory call: torch's own (inside an op or backward) or the user's own meta tensor."""
        from torch.utils import _device

        if _device.CURRENT_DEVICE is not None and _device.CURRENT_DEVICE.type == "meta":
            return NOWHERE
        inside = bool(self.path.stack) or torch._C._current_autograd_node() is not None
        return self.last_place if inside else NOWHERE

    def memory_at(self, place: str) -> CardMemory:
        return self.memories[self.places.index(place)]

    def move(self, record: Record, place: str) -> None:
        self.died(record)
        record.place, record.site, record.death = place, None, None
        self.born(record, record.nbytes)

    def meter_of(self, record: Record) -> Meter:
        return self.meters[PINNED_PLACE if record.pinned else record.place]

    def streams_caught_up(self) -> None:
        """Work on all streams is done: blocks that waited for another stream become free."""
        for memory in self.memories:
            memory.allocator.complete_pending()

    def note(self, text: str) -> None:
        self.notes[text] = self.notes.get(text, 0) + 1

    def forward_begins(self, module: torch.nn.Module) -> None:
        trainable = any(parameter.requires_grad for parameter in module.parameters())
        self.phases.forward_begins(with_gradients=torch.is_grad_enabled() and trainable, trainable=trainable)

    # -- births and deaths -----------------------------------------------------------------------------------------

    def born(self, record: Record, requested_bytes: int) -> None:
        self.clock += 1
        record.cause = self.cause
        record.phase = self.phases.current
        record.module = self.path.current()
        record.line = source_line()
        record.recomputed = bool(self.path.stack)
        place = record.place
        if place != HOST_PLACE:
            self.last_place = place
        try:
            self.meter_of(record).born(record, requested_bytes, self.clock, record.phase)
        except OutOfMemory as error:
            raise self.short_of_memory(record, requested_bytes, error) from None

    def short_of_memory(self, record: Record, requested_bytes: int, error: OutOfMemory) -> torch.OutOfMemoryError:
        """The error the script gets; what was alive is kept for the report."""
        self.bill.identify()
        meter = self.meters[record.place]
        allocator = self.memory_at(record.place).allocator
        record.nbytes = allocator.rounded(requested_bytes)
        self.out_of_memory = Shortage(
            phase=self.phases.current, place=record.place, request=record, moment=error.moment,
            alive=tuple(meter.live.values()),
        )  # fmt: skip
        return torch.OutOfMemoryError(str(error))

    def died(self, record: Record) -> None:
        self.clock += 1
        self.meter_of(record).died(record, self.clock, self.phases.current)

    def _phase_ends(self, phase: str) -> None:
        self.clock += 1
        self.streams_caught_up()
        self.bill.identify()
        for meter in self.meters.values():
            self.bill.take(meter.close(phase, self.clock), self.clock)

    # -- answers ---------------------------------------------------------------------------------------------------

    def ledger(self) -> Ledger:
        return self.bill.ledger()

    def timeline(self, place: str = "cuda:0") -> tuple[Point, ...]:
        return tuple(self.meters[place].timeline)


def virtual_gpu(
    name: str,
    *,
    count: int = 1,
    kernels: str = "cuda",
    steps: int | None = None,
    empty_weights: bool = False,
    rank: int | None = None,
    protect: bool = True,
) -> VirtualGpu:
    """Virtual cards by catalog name or size: `with virtual_gpu("a100-80gb", count=2) as gpu: ...`.

    With a rank, `count` is the world size of a distributed job, and the script runs as that one of its processes.

    Files: until the context is left, what Python code writes, renames or deletes goes into a scratch folder and is
    gone afterwards (the guard of `vramcast.sandbox`); what cannot be redirected, such as most other programs, is
    refused. Libraries that write files in C or Rust without asking Python are redirected where they are known: torch,
    safetensors, tokenizers, pyarrow, sqlite3, h5py. `vramcast trace` has the kernel's protection, which covers all.
    `protect=False` leaves files alone to what is run.
    """
    if kernels not in ("cuda", "cpu"):
        raise InputError(f"kernels {kernels!r} is neither cuda nor cpu.")
    for word, number in (("count", count), ("steps", steps)):
        if number is not None and number < 1:
            raise InputError(f"{word} {number} is not a positive number.")
    if rank is not None and not 0 <= rank < count:
        raise InputError(f"rank {rank} is not one of the {count} ranks 0 to {count - 1}.")
    visible = count if rank is None else min(count, GPUS_PER_NODE)
    return VirtualGpu(
        find_gpu(name), count=visible, cuda_kernels=kernels == "cuda", steps=steps, empty_weights=empty_weights,
        rank=rank, world_size=count, protect=protect,
    )  # fmt: skip
