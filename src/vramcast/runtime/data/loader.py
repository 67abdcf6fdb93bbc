"""DataLoader settings that fit the machine, each with its reason.

In: what one batch and one worker take, and what the machine allows. Out: a LoaderPolicy whose settings DataLoader
accepts as they are. Under torch.distributed all ranks agree on the smallest proposal, so that no rank runs another
batch size. Does not open the dataset and does not start workers.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vramcast.errors import InputError
from vramcast.host.host_job import Loader
from vramcast.host.libraries import FORKED_WORKER_BYTES
from vramcast.host.limits import Limits, read_limits
from vramcast.host.lines import pinned_block_bytes
from vramcast.units import KiB, format_bytes, round_up

MAX_WORKERS = 8  # more rarely feed one GPU faster, and each costs memory
PREFETCH = 2  # DataLoader's own default
HEADROOM = 0.1  # of free memory, left for what is not on the bill
_M_MMAP_THRESHOLD = -3  # malloc.h
_LARGE_BLOCK_BYTES = (
    32 * KiB
)  # eight pages: from here a mapping of its own costs less than a heap in pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderNeeds:
    """What the data pipeline of one rank takes."""

    batch_size: int
    tensor_bytes: tuple[int, ...]  # the tensors of one batch of that size
    main_bytes: int = (
        0  # what this rank still will take besides loading data: model, states, libraries to come
    )
    worker_bytes: int = (
        FORKED_WORKER_BYTES  # private memory of a worker, the dataset's share in it included
    )
    dataset_bytes: int = 0  # held by the training process itself where there are no workers
    uses_gpu: bool = True
    lanes: int | None = (
        None  # `RowGroupSampler.lanes`: workers that divide them decode row groups of their own
    )

    def __post_init__(self) -> None:
        if self.lanes is not None and self.lanes < 1:
            raise InputError(f"lanes={self.lanes}: a sampler has at least one")
        if self.batch_size < 1 or not self.tensor_bytes or min(self.tensor_bytes) < 1:
            raise InputError(
                f"batch_size={self.batch_size}, tensor_bytes={self.tensor_bytes}: both must be positive"
            )

    @property
    def batch_bytes(self) -> int:
        return sum(self.tensor_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderPolicy:
    """Settings, and a sentence for each."""

    num_workers: int
    prefetch_factor: int | None
    pin_memory: bool
    batch_size: int
    max_batch_size: int
    reasons: tuple[str, ...]

    def dataloader_kwargs(self) -> dict[str, Any]:
        """For `DataLoader(dataset, batch_sampler=..., **kwargs)`; the batch size goes to the sampler."""
        return {
            "num_workers": self.num_workers,
            "prefetch_factor": self.prefetch_factor,
            "pin_memory": self.pin_memory,
            "persistent_workers": self.num_workers > 0,
            "worker_init_fn": return_large_blocks,
        }


def loader_policy(
    needs: LoaderNeeds, *, limits: Limits | None = None, ranks: int | None = None, group: Any = None
) -> LoaderPolicy:
    """Choose for this rank, then agree with the others.

    `ranks`: processes of this node that share it; by default what the launcher says (LOCAL_WORLD_SIZE), else one.
    """
    limits = limits or read_limits()
    count = ranks or _local_ranks()
    mine = _propose(needs, limits, count)
    return _agreed(mine, group)


def return_large_blocks(worker: int = 0) -> None:
    """Make glibc give freed tensors back at once. For `worker_init_fn`, or called once by a training process.

    A worker builds batches in one thread and frees them in another, so small blocks pin the top of the heap above the
    holes that tensors left. After a first large free glibc serves large blocks from there too: measured 100 MiB per
    worker after 100 batches of 3 MiB. Tensors of 96 KiB, below glibc's own threshold, left 0 to 12 MiB by chance. With
    this, tensors of 32 KiB and more never enter the heap.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)


def _propose(needs: LoaderNeeds, limits: Limits, ranks: int) -> LoaderPolicy:
    free = (
        None
        if limits.free_bytes is None
        else int(limits.free_bytes * (1 - HEADROOM)) // ranks - needs.main_bytes
    )
    workers, why_workers = _workers(needs, limits, ranks, free)
    pin, why_pin = _pin(needs, workers, free)
    limit, why_limit = _max_batch(needs, limits, ranks, free, workers, pin)
    if limit < needs.batch_size and workers:
        # The batch matters more than its workers: without them no batch waits in shared memory.
        workers, why_workers = 0, f"0 workers: with {workers} the {why_limit}"
        pin, why_pin = _pin(needs, workers, free)
        limit, why_limit = _max_batch(needs, limits, ranks, free, workers, pin)
    batch = max(1, min(needs.batch_size, limit))
    prefetch = PREFETCH if workers else None
    why_prefetch = (
        f"prefetch_factor {PREFETCH}: {workers} × {PREFETCH} batches of {format_bytes(needs.batch_bytes)} wait."
        if workers
        else "prefetch_factor None: DataLoader accepts nothing else without workers."
    )
    return LoaderPolicy(
        num_workers=workers,
        prefetch_factor=prefetch,
        pin_memory=pin,
        batch_size=batch,
        max_batch_size=limit,
        reasons=(why_workers, why_prefetch, why_pin, why_limit),
    )


def _workers(needs: LoaderNeeds, limits: Limits, ranks: int, free: int | None) -> tuple[int, str]:
    by_cpu = max(0, limits.cpus // ranks - 1)  # one CPU stays with the training process
    each = needs.worker_bytes + PREFETCH * _shared_bytes(needs)
    candidates = [
        (MAX_WORKERS, f"{MAX_WORKERS} are enough for one GPU"),
        (
            by_cpu,
            f"{_count(limits.cpus, 'CPU')} for {_count(ranks, 'rank')}, one kept for the training process",
        ),
    ]
    if free is not None:
        room = max(0, free - needs.batch_bytes)
        candidates.append(
            (room // each, f"{format_bytes(max(free, 0))} free per rank, {format_bytes(each)} each")
        )
    if limits.shm_free_bytes is not None:
        shm = limits.shm_free_bytes // ranks // (PREFETCH * _shared_bytes(needs))
        candidates.append(
            (
                shm,
                f"/dev/shm has {format_bytes(limits.shm_free_bytes)} free for {_count(ranks, 'rank')}",
            )
        )
    most, why = min(candidates, key=lambda pair: pair[0])
    count = _dividing(most, needs.lanes)
    if count < most:
        why += (
            f"; not {most}: {needs.lanes} lanes of row groups cannot be shared among them "
            "without decoding some again"
        )
    return count, f"{_count(count, 'worker')}: {why}."


def _dividing(most: int, lanes: int | None) -> int:
    """The largest number of workers up to `most` of which none meets another's lane. One lane says nothing."""
    if lanes is None or lanes == 1 or most == 0:
        return most
    return max(count for count in range(1, most + 1) if lanes % count == 0)


def _count(number: int, what: str) -> str:
    return f"{number} {what if number == 1 else what + 's'}"


def _shared_bytes(needs: LoaderNeeds) -> int:
    return sum(round_up(nbytes, 4 * KiB) for nbytes in needs.tensor_bytes)


def _pinned_bytes(needs: LoaderNeeds, workers: int) -> int:
    loader = Loader(
        tensor_bytes=needs.tensor_bytes, workers=workers, prefetch=PREFETCH if workers else None
    )
    return (loader.in_flight + loader.in_use) * sum(
        pinned_block_bytes(nbytes) for nbytes in needs.tensor_bytes
    )


def _pin(needs: LoaderNeeds, workers: int, free: int | None) -> tuple[bool, str]:
    if not needs.uses_gpu:
        return False, "pin_memory False: there is no GPU to copy to."
    nbytes = _pinned_bytes(needs, workers)
    left = (
        None if free is None else free - workers * needs.worker_bytes - _held_alone(needs, workers)
    )
    if left is not None and nbytes > left:
        return (
            False,
            f"pin_memory False: {format_bytes(nbytes)} of pinned memory do not fit in {format_bytes(max(left, 0))}.",
        )
    return (
        True,
        f"pin_memory True: {format_bytes(nbytes)} of pinned memory buys copies that overlap the step.",
    )


def _held_alone(needs: LoaderNeeds, workers: int) -> int:
    return 0 if workers else needs.dataset_bytes


def _max_batch(
    needs: LoaderNeeds, limits: Limits, ranks: int, free: int | None, workers: int, pin: bool
) -> tuple[int, str]:
    """The largest batch whose copies in flight fit, by memory and by /dev/shm."""
    copies = workers * PREFETCH + 2
    per_row = max(1, -(-needs.batch_bytes // needs.batch_size))
    bounds = [(needs.batch_size, f"batch {needs.batch_size} as asked")]
    if free is not None:
        room = free - workers * needs.worker_bytes - _held_alone(needs, workers)
        # A pinned tensor can take twice its size.
        rows = max(0, room) // (copies * per_row * (3 if pin else 1))
        bounds = [
            (
                rows,
                f"up to {rows} rows: {copies} batches at {format_bytes(per_row)} per row fit in memory",
            )
        ]
    if workers and limits.shm_free_bytes is not None:
        rows = max(
            0, limits.shm_free_bytes // ranks - copies * len(needs.tensor_bytes) * 4 * KiB
        ) // (copies * per_row)
        bounds.append((rows, f"up to {rows} rows: {copies} batches must fit in /dev/shm"))
    limit, why = min(bounds, key=lambda pair: pair[0])
    if limit < 1:
        limit, why = (
            1,
            f"batch 1 only: less than one row's {format_bytes(copies * per_row)} is free; expect trouble",
        )
    return limit, f"batch limit, {why}."


def _local_ranks() -> int:
    text = os.environ.get("LOCAL_WORLD_SIZE", "1")
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"LOCAL_WORLD_SIZE={text!r} is not a number of processes")
    return int(text)


def _agreed(mine: LoaderPolicy, group: Any) -> LoaderPolicy:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return mine
    everyone: list[LoaderPolicy | None] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(everyone, mine, group=group)
    return combine([policy for policy in everyone if policy is not None], mine)


def combine(proposals: Sequence[LoaderPolicy], mine: LoaderPolicy) -> LoaderPolicy:
    """The smallest of every setting: what the tightest rank can bear."""
    workers = min(policy.num_workers for policy in proposals)
    agreed = LoaderPolicy(
        num_workers=workers,
        prefetch_factor=PREFETCH if workers else None,
        pin_memory=all(policy.pin_memory for policy in proposals),
        batch_size=min(policy.batch_size for policy in proposals),
        max_batch_size=min(policy.max_batch_size for policy in proposals),
        reasons=mine.reasons,
    )
    changed = [
        f"{name} {getattr(agreed, name)} instead of {getattr(mine, name)}: another rank can bear no more."
        for name in ("num_workers", "pin_memory", "batch_size", "max_batch_size")
        if getattr(agreed, name) != getattr(mine, name)
    ]
    return LoaderPolicy(
        num_workers=agreed.num_workers,
        prefetch_factor=agreed.prefetch_factor,
        pin_memory=agreed.pin_memory,
        batch_size=agreed.batch_size,
        max_batch_size=agreed.max_batch_size,
        reasons=(*mine.reasons, *changed),
    )
