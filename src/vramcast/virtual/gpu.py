"""The virtual GPU: `with virtual_gpu("rtx4090") as gpu:` runs CUDA code on tensors without data and counts storages.

Start reading the package here. While the context lasts, torch believes in a CUDA device: `torch_patches` answer for it,
`kernels` run every op without data, `accounting` counts what is allocated. Out come `ledger()` and `timeline()`, also
after the context is left. Does not know how long anything takes.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType

import torch
import torch._dynamo  # before any patch: it looks at torch.cuda once, when it is imported

from vramcast.catalog.gpus import Gpu, find_gpu
from vramcast.errors import InputError
from vramcast.patches import Patches
from vramcast.sandbox.guard import guarded_process
from vramcast.virtual.accounting.cards import Lifting
from vramcast.virtual.kernels import autocast, unknown_values
from vramcast.virtual.state import GpuState
from vramcast.virtual.torch_patches import (
    absent_packages,
    cuda_api,
    cuda_graphs,
    data_parallel,
    distributed,
    gradient_sums,
    gradients,
    inplace,
    leaves,
    libraries,
    missing_weights,
    tensors,
    threads,
    torchscript,
    training,
    triton_library,
)
from vramcast.virtual.world import World

GPUS_PER_NODE = 8
_active: list[VirtualGpu] = []


class VirtualGpu(GpuState):
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
        lifts_limit: Lifting = Lifting.NEVER,
    ) -> None:
        super().__init__(card, count=count, cuda_kernels=cuda_kernels, steps=steps)
        self.lifts_limit = lifts_limit
        self._empty_weights = empty_weights
        self._rank, self._world_size = rank, world_size
        self._protect = protect

    def __enter__(self) -> VirtualGpu:
        if _active:
            raise InputError("a virtual GPU is already active: leave its context first.")
        gradient_sums.install(self)
        patches = Patches()
        _active.append(self)
        self.exit.callback(_active.clear)
        self.exit.callback(self.storages.close)
        self.exit.callback(libraries.forget_devices)
        self.exit.callback(patches.restore)
        try:
            if self._protect:
                self.exit.enter_context(guarded_process())
            self._install(patches)
        except BaseException:
            self.exit.close()
            raise
        return self

    def _install(self, patches: Patches) -> None:
        """The order matters: TorchScript is told what was replaced so far, and the dispatch mode comes last."""
        for part in (cuda_api, cuda_graphs, tensors, leaves, inplace, training):
            part.install(self, patches)
        data_parallel.install(patches)
        torchscript.name_replacements(self, patches)
        self.path.install(patches)
        libraries.install_safetensors(self, patches)
        if self._empty_weights:
            libraries.install_empty_weights(self, patches)
            missing_weights.install(self, patches)
        absent_packages.install(self)
        triton_library.install(self, patches)
        libraries.forget_devices()
        self.exit.enter_context(self._processes(patches))
        self.exit.enter_context(self.kernels)
        self.exit.enter_context(autocast.Autocast(self, patches))
        unknown_values.install(self.mode)
        gradients.install(self)
        self.exit.enter_context(self.mode)
        threads.install(self, patches)

    def _processes(self, patches: Patches) -> AbstractContextManager[None]:
        if self._rank is None:
            return distributed.process_groups(self, World(), patches)
        return distributed.as_rank(self, self._rank, self._world_size, patches)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Leaves torch as it was. The end of the steps asked for is not an error."""
        try:
            self.end_phase(self.phases.current)
            if self.out_of_memory is not None and isinstance(error, torch.OutOfMemoryError):
                self.bill.keep_shortage(self.out_of_memory, self.clock)
        finally:
            self.exit.close()
        return isinstance(error, training.StepsDone)


def virtual_gpu(
    name: str,
    *,
    count: int = 1,
    kernels: str = "cuda",
    steps: int | None = None,
    empty_weights: bool = False,
    rank: int | None = None,
    protect: bool = True,
    lifts_limit: Lifting = Lifting.NEVER,
) -> VirtualGpu:
    """Virtual cards by catalog name or size: `with virtual_gpu("a100-80gb", count=2) as gpu: ...`.

    With a rank, `count` is the world size of a distributed job, and the script runs as that one of its processes.

    Files: until the context is left, what Python code writes, renames or deletes goes into a scratch folder and is
    gone afterwards (the guard of `vramcast.sandbox`); what cannot be redirected, such as most other programs, is
    refused. Libraries that write files in C or Rust without asking Python are redirected where they are known: torch,
    safetensors, tokenizers, pyarrow, sqlite3, h5py. `vramcast trace` has the kernel's protection, which covers all.
    `protect=False` leaves files alone to what is run.

    A card that is too small raises torch.OutOfMemoryError. `lifts_limit` lets the run go on without the limit instead,
    to say what it needs: `gpu.out_of_memory` then has the request that failed first.
    """
    if kernels not in ("cuda", "cpu"):
        raise InputError(f"kernels {kernels!r} is neither cuda nor cpu.")
    _check_positive("count", count)
    _check_positive("steps", steps)
    if rank is not None and not 0 <= rank < count:
        raise InputError(f"rank {rank} is not one of the {count} ranks 0 to {count - 1}.")
    visible = count if rank is None else min(count, GPUS_PER_NODE)
    return VirtualGpu(
        find_gpu(name),
        count=visible,
        cuda_kernels=kernels == "cuda",
        steps=steps,
        empty_weights=empty_weights,
        rank=rank,
        world_size=count,
        protect=protect,
        lifts_limit=lifts_limit,
    )


def _check_positive(word: str, number: int | None) -> None:
    if number is not None and number < 1:
        raise InputError(f"{word} {number} is not a positive number.")
