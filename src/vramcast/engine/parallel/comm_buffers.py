"""Buffers of frameworks, in addition to the tensors of a step: gradient buckets, reduction buffers, NCCL's own memory.

Each is an Entry with its source. Gathered parameters and reduce-scatter inputs are not here: they come and go with the
layers (see `windows`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from vramcast.catalog.gpus import Gpu
from vramcast.engine.lines.overheads import context_entries
from vramcast.engine.parallel.sharding import RankStates
from vramcast.engine.parallel.topology import Topology
from vramcast.engine.parallel.zero3 import REDUCE_BUCKET
from vramcast.ledger import (
    BACKWARD,
    FORWARD,
    LOAD,
    LOSS,
    NEXT_BACKWARD,
    NEXT_FORWARD,
    NEXT_LOSS,
    NEXT_STEP,
    PHASES,
    STEP,
    Category,
    Entry,
    Level,
    Origin,
)
from vramcast.models.record.tape import Param
from vramcast.setup import Setup
from vramcast.setup.records import Parallel, Versions
from vramcast.units import MiB

STEPS = (STEP, NEXT_STEP)
BACKWARDS = (BACKWARD, NEXT_BACKWARD)
PASSES = (FORWARD, LOSS, BACKWARD, NEXT_FORWARD, NEXT_LOSS, NEXT_BACKWARD)
BROADCAST = 250 * MiB  # torch/nn/parallel/distributed.py broadcast_bucket_size
NCCL_SOURCE = "NCCL src/include/device.h and measurements in NVIDIA/nccl issues 964, 864 and 1685"
# Their constructors talk to the other ranks: DistributedDataParallel compares shapes and sends the model,
# deepspeed/runtime/engine.py _broadcast_model and zero.Init send it too.
TALKS_WHILE_LOADING = ("ddp", "zero1", "zero2", "zero3")
NCCL_FIRST = 544 * MiB  # measured for one communicator within a node (nccl#964)


def buffer_entries(
    setup: Setup, states: RankStates, topology: Topology, place: str
) -> Iterator[Entry]:
    if topology.strategy == "ddp" and topology.data * topology.cp > 1:
        yield from _ddp(setup, states, place)
    elif (
        topology.strategy in ("zero1", "zero2", "zero3") and setup.versions.framework != "megatron"
    ):
        yield from _zero(setup, states, topology, place)


def _line(
    component: str, place: str, phases: tuple[str, ...], nbytes: int, formula: str, source: str
) -> Entry:
    return Entry(
        category=Category.COMMUNICATION,
        component=component,
        place=place,
        phases=phases,
        nbytes=nbytes,
        origin=Origin.FORMULA,
        formula=formula,
        source=source,
    )


def statistics_entry(states: RankStates, place: str) -> Iterator[Entry]:
    if states.statistics_bytes:
        yield Entry(
            category=Category.WEIGHTS,
            component="statistics of 4-bit blocks, not sharded",
            place=place,
            phases=PHASES,
            nbytes=states.statistics_bytes,
            origin=Origin.FORMULA,
            formula="of the whole model",
            source="bitsandbytes functional.py QuantState: an attribute of the parameter, which FSDP does not see",
        )


def is_bucketed(versions: Versions, topology: Topology) -> bool:
    """Does torch's DDP reduce gradients in buckets?"""
    return (
        topology.strategy == "ddp"
        and topology.data * topology.cp > 1
        and versions.framework != "megatron"
    )


def is_bucket_view(parallel: Parallel, topology: Topology) -> bool:
    """With gradient_as_bucket_view gradients are the buckets, which zero_grad leaves where they are."""
    return parallel.bucket_view and topology.strategy == "ddp" and topology.data * topology.cp > 1


def _ddp(setup: Setup, states: RankStates, place: str) -> Iterator[Entry]:
    """Megatron's DDP gives gradients their buffer; torch's keeps buckets of their own unless they are views."""
    if setup.versions.framework == "megatron":
        return
    nbytes = 0 if setup.parallel.bucket_view else states.gradient_bytes
    vectors = list(sent_vectors(states))
    two = max(map(sum, pairwise((0, *vectors))), default=0)
    yield _line(
        "the model on its way from rank 0",
        place,
        (LOAD,),
        max(two - nbytes, 0),
        "two vectors of 250 MiB or more; gradient buckets come when they have gone",
        "torch/csrc/distributed/c10d/comm.cpp broadcast_coalesced, called by DistributedDataParallel",
    )
    if setup.parallel.bucket_view:
        return
    yield _line(
        "DDP's gradient buckets",
        place,
        PHASES,
        nbytes,
        "as large as all gradients",
        "torch/csrc/distributed/c10d/reducer.cpp: flat buckets, 25 MiB each; gradient_as_bucket_view=True saves them",
    )


def sent_vectors(states: RankStates) -> Iterator[int]:
    """In which DDP sends the model from rank 0; a parameter that fills a bucket alone is sent as it is
    (flatten_dense_tensors copies nothing)."""
    for total, several in _buckets(states.weights.sizes, (BROADCAST,)):
        yield total if several else 0


def filled(sizes: Iterable[int], limits: tuple[int, ...]) -> Iterator[int]:
    return (total for total, _ in _buckets(sizes, limits))


def _buckets(sizes: Iterable[int], limits: tuple[int, ...]) -> Iterator[tuple[int, bool]]:
    """Bytes of each, and whether there are several tensors in it: compute_bucket_assignment_by_size in torch's
    reducer.cpp. A bucket is closed once it reaches its limit; the last limit serves all further ones."""
    total = count = number = 0
    limit = limits[0]
    for nbytes in sizes:
        total += nbytes
        count += 1
        if total >= limit:
            yield total, count > 1
            total, count, number = 0, 0, number + 1
            limit = limits[min(number, len(limits) - 1)]
    if count:
        yield total, count > 1


def reduce_bucket(parallel: Parallel) -> int:
    return parallel.reduce_bucket or REDUCE_BUCKET


def _zero(setup: Setup, states: RankStates, topology: Topology, place: str) -> Iterator[Entry]:
    trained = [param for param in states.weights if param.trainable]
    item = max((param.dtype.nbytes for param in trained), default=2)
    bucket = reduce_bucket(setup.parallel)
    always = topology.strategy == "zero3"
    where = "stage3" if always else "stage_1_and_2"
    yield _line(
        "ZeRO's gradient bucket",
        place,
        PHASES if always else BACKWARDS,
        bucket * item,
        f"reduce_bucket_size {bucket:,} × {item} B",
        f"deepspeed/runtime/zero/{where}.py",
    )
    if setup.offload.what not in ("optimizer", "all"):
        shard = _fp32_gradients(states.params)
        yield _line(
            "gradients of the rank's share in fp32",
            place,
            STEPS,
            shard,
            "4 B per element of the share",
            "deepspeed: the flat partition is cast to the master weights' dtype in step()",
        )


def _fp32_gradients(params: tuple[Param, ...]) -> int:
    """Sub-groups of 1e9 elements are updated one after the other."""
    numel = sum(param.numel for param in params if param.trainable and param.dtype.nbytes < 4)
    return 4 * min(numel, 1_000_000_000)


def loads_whole(versions: Versions, topology: Topology) -> bool:
    """Is the whole model on the GPU before it is partitioned? Hugging Face's trainers build it under zero.Init()."""
    return topology.strategy == "zero3" and versions.framework == "deepspeed"


def loading_entry(whole_bytes: int, persistent: Iterable[Entry], place: str) -> Entry:
    """The whole model less what stays of it: what is counted as persistent comes after the rest has gone."""
    stays = sum(
        entry.nbytes for entry in persistent if entry.place == place and LOAD in entry.phases
    )
    return Entry(
        category=Category.WEIGHTS,
        component="whole model before it is partitioned",
        place=place,
        phases=(LOAD,),
        nbytes=max(whole_bytes - stays, 0),
        origin=Origin.FORMULA,
        formula=f"{whole_bytes:,} B in all",
        source="deepspeed/runtime/engine.py _configure_distributed_model: module.to(device) unless made in zero.Init()",
    )


def communicators(topology: Topology) -> int:
    """Process groups that move data on the GPU; copies of sharded states have one more."""
    copies = topology.replicas if topology.shard > 1 else 1
    sizes = (topology.data, topology.tp, topology.pp, topology.cp, topology.ep, copies)
    return max(sum(size > 1 for size in sizes), 1)


def nccl_entries(topology: Topology, place: str) -> Iterator[Entry]:
    """Outside of torch's counters. Channels and protocols depend on links and versions, so it is a range."""
    if topology.gpus == 1:
        return
    groups = communicators(topology)
    yield Entry(
        category=Category.COMMUNICATION,
        component="NCCL's channel buffers",
        place=place,
        phases=PHASES if topology.strategy in TALKS_WHILE_LOADING else PHASES[1:],
        nbytes=groups * NCCL_FIRST,
        origin=Origin.ASSUMED,
        level=Level.PROCESS,
        source=NCCL_SOURCE,
        formula=f"{groups} communicators × {NCCL_FIRST // MiB} MiB",
        range_bytes=(groups * 91 * MiB, groups * 1640 * MiB),
    )


def outside_entries(
    setup: Setup, gpu: Gpu | None, topology: Topology, place: str
) -> tuple[Entry, ...]:
    """What a process has on the card in addition to torch's memory."""
    return (
        (*context_entries(setup.versions, gpu, place), *nccl_entries(topology, place))
        if gpu
        else ()
    )


def least_left(setup: Setup, gpu: Gpu, topology: Topology) -> int:
    """Of the card, where what is outside torch takes the most that is assumed."""
    outside = outside_entries(setup, gpu, topology, "")
    return gpu.capacity_bytes() - sum(
        entry.range_bytes[1] if entry.range_bytes else entry.nbytes for entry in outside
    )
