"""The host side of many ranks: what offloading moves there, per node; what loading and saving need for a while.

Pinned memory is rounded up to the next power of two for each tensor (CachingHostAllocator.h), and every rank of a node
takes its share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vramcast.formulas.optimizers import state_bytes
from vramcast.formulas.parallel.sharding import RankStates
from vramcast.formulas.parallel.topology import Topology
from vramcast.job import Job
from vramcast.ledger import HOST, LOAD, PHASES, PINNED, SAVE, Category, Entry, Origin

ROUNDING = "c10 CachingHostAllocator.h: pinned blocks are powers of two"


def pinned_bytes(nbytes: int) -> int:
    return 1 << max(nbytes - 1, 0).bit_length() if nbytes else 0


def offloads_optimizer(job: Job) -> bool:
    return job.offload in ("optimizer", "params", "all")


def offloads_params(job: Job) -> bool:
    return job.offload in ("params", "all")


def host_entries(job: Job, states: RankStates, topology: Topology, params_total_bytes: int) -> Iterator[Entry]:
    """Lines for one node: its ranks together."""
    ranks = topology.ranks_per_node
    if offloads_optimizer(job):
        yield from _optimizer(job, states, topology, ranks)
    if offloads_params(job):
        sizes = [param.nbytes for param in states.weights]
        yield _line("sharded weights of the node's ranks", PINNED, PHASES, _pinned(sizes) * ranks, Category.WEIGHTS, ROUNDING)
    yield _line(
        f"model copies while loading, {ranks} ranks", HOST, (LOAD,), params_total_bytes * ranks, Category.WEIGHTS,
        "from_pretrained in every rank; low_cpu_mem_usage with a broadcast from rank 0, or meta initialisation, avoids it",
    )  # fmt: skip
    yield _line(
        "whole state dict on rank 0 while saving", HOST, (SAVE,), params_total_bytes, Category.WEIGHTS,
        "a full state dict gathered to the host; sharded checkpoints avoid it",
    )  # fmt: skip


def _optimizer(job: Job, states: RankStates, topology: Topology, ranks: int) -> Iterator[Entry]:
    """Master weights, moments and gradients of the rank's share: fp32, in flat tensors under ZeRO."""
    trained = [param for param in states.params if param.trainable]
    item = states.recipe.states.nbytes if states.recipe.states else None
    moments = sum(state_bytes(param, job, item) for param in trained)
    yield _line(f"{job.optimizer} states", HOST, PHASES, moments * ranks, Category.OPTIMIZER, "offloaded optimizer")
    if states.recipe.master:
        master = 4 * sum(param.numel for param in trained)
        yield _line("fp32 master weights", HOST, PHASES, master * ranks, Category.MASTER, "offloaded optimizer")
    flat = topology.strategy in ("zero1", "zero2", "zero3")
    sizes = [states.gradient_bytes] if flat else [param.nbytes for param in trained]
    yield _line("gradients on their way to the optimizer", PINNED, PHASES, _pinned(sizes) * ranks, Category.GRADIENTS, ROUNDING)


def _pinned(sizes: Iterable[int]) -> int:
    return sum(pinned_bytes(nbytes) for nbytes in sizes)


def _line(component: str, place: str, phases: tuple[str, ...], nbytes: int, category: Category, source: str) -> Entry:
    return Entry(
        category=category, component=component, place=place, phases=phases, nbytes=nbytes, origin=Origin.FORMULA,
        formula="per node", source=source,
    )  # fmt: skip
