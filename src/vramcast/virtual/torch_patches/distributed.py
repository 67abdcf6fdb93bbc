"""One rank of a distributed job, at any world size: torchrun's environment, and torch's fake process group.

In come a rank and a world size; the script starts as torchrun would start it, with RANK, WORLD_SIZE and LOCAL_RANK
set. Without a rank it may still call `init_process_group("nccl")` or `torch.multiprocessing.spawn`: it is then the
rank it says it is, or the first one. Collectives move nothing, but every buffer a framework makes for them is made,
and counted. Does not know what other ranks do, nor NCCL's own buffers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.rpc
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import _dispatch, _op_schema, _random
from torch.distributed.tensor._redistribute import clear_redistribute_planner_cache
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

from vramcast.ledger import Category
from vramcast.patches import Patches
from vramcast.virtual.state import GpuState
from vramcast.virtual.torch_patches import collectives
from vramcast.virtual.world import World


@contextmanager
def as_rank(gpu: GpuState, rank: int, world_size: int, patches: Patches) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(rank_environment(rank, world_size, gpu.count))
    try:
        with process_groups(gpu, World(rank=rank, size=world_size, fixed=True), patches):
            yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def rank_environment(rank: int, world_size: int, local_size: int) -> dict[str, str]:
    """What torchrun tells a process by its environment."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(rank % local_size),
        "LOCAL_WORLD_SIZE": str(local_size),
        "GROUP_RANK": str(rank // local_size),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "none",
    }


@contextmanager
def process_groups(gpu: GpuState, world: World, patches: Patches) -> Iterator[None]:
    gpu.world = world
    collectives.install(gpu, world, patches)
    patches.set(torch._C, "_get_accelerator", lambda check=None: torch.device("cuda"))
    patches.set(_op_schema, "_rebuild_tensor_from_dtensor_meta", _shape_only)
    _install_data_parallel(gpu, patches)
    patches.set(_dispatch, "run_dtensor_rng_op", _run_random_op)
    for owner in (torch.multiprocessing, sys.modules["torch.multiprocessing.spawn"]):
        patches.set(owner, "spawn", _first_process(gpu, world))
        patches.set(owner, "start_processes", _first_process(gpu, world))
    if dist.rpc.is_available():
        patches.set(dist.rpc, "init_rpc", _refuse_remote_calls)
    _forget_other_ranks()
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _refuse_remote_calls(name: str, *args: Any, **kwargs: Any) -> None:
    """It would wait for the others for ever."""
    raise RuntimeError(
        f"torch.distributed.rpc: {name!r} waits for other processes that work for it, and a trace has one process. "
        "Trace the part that trains as a script of its own."
    )


def _first_process(gpu: GpuState, world: World) -> Callable[..., Any]:
    """`mp.spawn(main, args, nprocs=8)`: one of the processes it would start is run, in this one."""

    def spawn(
        fn: Callable[..., Any], args: Any = (), nprocs: int = 1, join: bool = True, **options: Any
    ) -> Any:
        index = world.rank % nprocs
        gpu.note(
            f"torch.multiprocessing.spawn: process {index} of {nprocs} was run, the others were left out"
        )
        fn(index, *args)
        if join:
            return None
        return SimpleNamespace(join=lambda *args, **kwargs: True, processes=[], pids=list)

    return spawn


def _forget_other_ranks() -> None:
    """Clear what DTensor cached when this process was another rank: shapes with their device, groups, a generator."""
    FakeTensorMode.cache_clear()
    _clear_sharding_prop_cache()
    clear_redistribute_planner_cache()
    _random._rng_tracker = None


def _run_random_op(start: int, end: int, op: Any, *args: Any, **kwargs: Any) -> Any:
    """The op alone: what its generator is moved on by leaves no trace in memory."""
    return op(*args, **kwargs)


def _shape_only(spec: Any) -> torch.Tensor:
    """DTensor finds out shapes with fake tensors; on cuda, random ops would ask for a driver."""
    meta = spec.tensor_meta
    return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device="cpu")


def _install_data_parallel(gpu: GpuState, patches: Patches) -> None:
    """The fake group's all-reduce gives no result to DDP's reducer; the bucket itself is one."""
    kind = torch.nn.parallel.DistributedDataParallel
    true_init = kind.__init__

    def keep(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    keep.__annotations__ = {}  # DDP wants them exact or absent

    def init(model: Any, *args: Any, **kwargs: Any) -> None:
        true_init(model, *args, **kwargs)
        model.register_comm_hook(None, keep)

    patches.set(kind, "__init__", init)
    for owner, name in ((kind, "_ddp_init_helper"), (dist.Reducer, "_rebuild_buckets")):
        patches.set(owner, name, _with_buckets_on_card(gpu, getattr(owner, name)))


def _with_buckets_on_card(gpu: GpuState, make: Callable[..., Any]) -> Callable[..., Any]:
    """The reducer makes its buckets in C++, where the parameters' device is not the virtual one."""

    def make_buckets(*args: Any, **kwargs: Any) -> Any:
        before = set(gpu.storages.records.values())
        gpu.mode.target = gpu.last_place
        try:
            return make(*args, **kwargs)
        finally:
            gpu.mode.target = None
            for record in set(gpu.storages.records.values()) - before:
                record.category, record.name = Category.COMMUNICATION, "DDP's gradient buckets"

    return make_buckets
