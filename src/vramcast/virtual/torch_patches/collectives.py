"""What a single rank answers in the place of the others: process groups of any backend, objects, checkpoints.

In come calls of torch.distributed. Tensors go through torch's fake process group. Objects of other ranks cannot be
known: where all ranks send one, this rank's own stands for theirs; what only another rank has stays as it is, and the
report says so.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed import device_mesh, distributed_c10d

from vramcast.ledger import SAVE
from vramcast.patches import Patches
from vramcast.virtual.state import GpuState
from vramcast.virtual.world import World

_OWN = "objects of other ranks are unknown: this rank's own stand for them"
_THEIRS = "objects that only another rank has are unknown: they stay as the script made them"
_NOT_WRITTEN = (
    "torch.distributed.checkpoint wrote and read no weights: virtual tensors have no values"
)


def install(gpu: GpuState, world: World, patches: Patches) -> None:
    for name in ("wait_tensor", "_wrap_tensor_autograd"):  # newer torch has the second
        # They give back what they got; torch's kernels for shapes alone would make a second one.
        if hasattr(torch.ops._c10d_functional, name):
            op = getattr(torch.ops._c10d_functional, name).default
            gpu.mode.specials[op] = lambda func, args, kwargs: args[0]
    # A group's own method, `group.monitored_barrier()`, is an op, and the fake backend has none.
    gpu.mode.specials[torch.ops.c10d.monitored_barrier_.default] = lambda func, args, kwargs: None
    for name, function in {**_groups(gpu, world), **_objects(gpu, world)}.items():
        for owner in (dist, distributed_c10d, device_mesh):
            if hasattr(owner, name):
                patches.set(owner, name, function)
    for name in ("save", "load", "save_state_dict", "load_state_dict", "async_save"):
        patches.set(dcp, name, _without_weights(gpu, writes="save" in name))


def _groups(gpu: GpuState, world: World) -> dict[str, Callable[..., Any]]:
    """Every group is a fake one, whatever backend and options it was asked for with."""
    import torch.testing._internal.distributed.fake_pg  # noqa: F401  # registers the backend "fake"

    true_init, true_group = distributed_c10d.init_process_group, distributed_c10d.new_group

    def init_process_group(
        backend: Any = None,
        init_method: Any = None,
        timeout: Any = None,
        world_size: int = -1,
        rank: int = -1,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        world.update(rank, world_size)
        gpu.made_process_group = True
        true_init("fake", store=dist.HashStore(), rank=world.rank, world_size=world.size)

    def new_group(
        ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        return true_group(ranks, backend="fake")

    def monitored_barrier(*args: Any, **kwargs: Any) -> None: ...

    return {
        "init_process_group": init_process_group,
        "new_group": new_group,
        "monitored_barrier": monitored_barrier,
        "is_nccl_available": lambda: True,
    }


def _objects(gpu: GpuState, world: World) -> dict[str, Callable[..., Any]]:
    def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
        gpu.note(_OWN)
        object_list[:] = [copy.deepcopy(obj) for _ in object_list]

    def gather_object(obj: Any, object_gather_list: Any = None, *args: Any, **kwargs: Any) -> None:
        if object_gather_list is not None:
            all_gather_object(object_gather_list, obj)

    def broadcast_object_list(
        object_list: list[Any],
        src: int | None = None,
        group: Any = None,
        device: Any = None,
        group_src: int | None = None,
        **kwargs: Any,
    ) -> None:
        sender = src or 0
        if group_src is not None:
            sender = dist.get_global_rank(group or dist.group.WORLD, group_src)
        if sender != world.rank:
            gpu.note(_THEIRS)

    def scatter_object_list(
        scatter_object_output_list: list[Any],
        scatter_object_input_list: Any = None,
        src: Any = None,
        group: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if scatter_object_input_list:
            scatter_object_output_list[0] = scatter_object_input_list[dist.get_rank(group)]
        else:
            gpu.note(_THEIRS)

    def recv_object_list(
        object_list: list[Any], src: int | None = None, *args: Any, **kwargs: Any
    ) -> int:
        gpu.note(_THEIRS)
        return src or 0

    return {
        "all_gather_object": all_gather_object,
        "gather_object": gather_object,
        "broadcast_object_list": broadcast_object_list,
        "scatter_object_list": scatter_object_list,
        "recv_object_list": recv_object_list,
        "send_object_list": lambda *args, **kwargs: None,
    }


def _without_weights(gpu: GpuState, *, writes: bool) -> Callable[..., Any]:
    """Ranks write and read their own shards, tensor by tensor: nothing is made on the device for it."""

    def save_or_load(state_dict: Any, *args: Any, checkpoint_id: Any = None, **kwargs: Any) -> None:
        before = gpu.phases.current
        gpu.phases.enter(SAVE)
        gpu.note(_NOT_WRITTEN)
        writer = kwargs.get("storage_writer", args[0] if args else None)
        folder = checkpoint_id if checkpoint_id is not None else getattr(writer, "path", None)
        if writes and isinstance(folder, (str, os.PathLike)):
            _write_placeholders(Path(folder))
        gpu.phases.enter(before)

    return save_or_load


def _write_placeholders(folder: Path) -> None:
    os.makedirs(folder, exist_ok=True)
    rank = dist.get_rank() if dist.is_initialized() else 0
    for name in (".metadata", f"__{rank}_0.distcp"):
        (folder / name).touch()
