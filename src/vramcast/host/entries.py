"""The host memory of one node as ledger entries.

In: a HostJob: ranks of one node, libraries, model load, dataset facts and mode, DataLoader settings, offloaded and
saved bytes. Out: entries at the places host, pinned and shm, for all ranks of the node together. Level `allocated` is
memory that must be there; level `process` adds mapped file pages that PSS shows but the kernel may drop. A pure
function: reads no file and no clock. Does not know what the user's own code keeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from vramcast.host.data_entries import data_entries, loader_entries
from vramcast.host.host_job import HostJob, ModelOnHost
from vramcast.host.libraries import CUDA_CONTEXT, FIRST_STEP, Library, launcher, libraries
from vramcast.host.lines import ALWAYS, TRAINING, format_count, host_entry, pinned_block_bytes
from vramcast.ledger import HOST, LOAD, PINNED, SAVE, Category, Entry, Level
from vramcast.units import format_bytes


def host_entries(job: HostJob) -> tuple[Entry, ...]:
    """All entries of one node that are not zero."""
    job.check()
    if job.build == "cpu" and job.loader is not None:
        # DataLoader warns and pins nothing.
        job = replace(job, loader=replace(job.loader, pin_memory=False))
    entries = (
        *_library_entries(job),
        *_model_entries(job),
        *data_entries(job),
        *loader_entries(job),
        *_state_entries(job),
    )
    return tuple(entry for entry in entries if entry.nbytes)


def _library_entries(job: HostJob) -> Iterator[Entry]:
    for library in libraries(job.imports, job.build):
        yield from _entries_of_library(library, job.ranks)
    if "torch" not in job.imports:
        return
    yield from _entries_of_library(CUDA_CONTEXT if job.build == "cuda" else FIRST_STEP, job.ranks)
    if job.ranks > 1:
        yield _launcher_entry(launcher(job.build))


def _entries_of_library(library: Library, ranks: int) -> Iterator[Entry]:
    range_bytes = None
    if library.range_bytes is not None:
        low, high = library.range_bytes
        range_bytes = (low * ranks, high * ranks)
    yield host_entry(
        Category.LIBRARIES,
        f"{library.name} {library.version}",
        library.private_bytes * ranks,
        f"{format_count(ranks, 'rank')} × {format_bytes(library.private_bytes)}",
        origin=library.origin,
        source=library.source,
        range_bytes=range_bytes,
    )
    yield host_entry(
        Category.LIBRARIES,
        f"{library.name}, mapped files",
        library.file_bytes,
        f"{format_bytes(library.file_bytes)}, once per node",
        origin=library.origin,
        source=library.source,
    )


def _launcher_entry(library: Library) -> Entry:
    return host_entry(
        Category.LIBRARIES,
        "launcher of the ranks",
        library.private_bytes,
        f"{format_bytes(library.private_bytes)}, once per node: torchrun imports torch too",
        origin=library.origin,
        source=library.source,
        range_bytes=library.range_bytes,
    )


def _model_entries(job: HostJob) -> Iterator[Entry]:
    model = job.model
    if model is None:
        return
    copies = 1 if model.rank0_only else job.ranks
    yield _checkpoint_entry(model, copies)
    if model.straight_to_gpu and not model.stays_on_host:
        return
    weights = model.weights_bytes * copies
    formula = f"{format_count(copies, 'copy')} × {format_bytes(model.weights_bytes)}"
    phases = ALWAYS if model.stays_on_host else (LOAD,)
    yield host_entry(Category.WEIGHTS, "weights", weights, formula, phases=phases)
    if not model.low_cpu_mem:
        yield host_entry(
            Category.COPIES, "initialised before loading", weights, formula, phases=(LOAD,)
        )


def _checkpoint_entry(model: ModelOnHost, copies: int) -> Entry:
    if model.format == "safetensors":
        return host_entry(
            Category.WEIGHTS,
            "checkpoint, mapped from disk",
            model.checkpoint_bytes,
            "the file, once per node",
            phases=(LOAD,),
            level=Level.PROCESS,
        )
    return host_entry(
        Category.WEIGHTS,
        "checkpoint, unpickled",
        model.checkpoint_bytes * copies,
        f"{format_count(copies, 'copy')} × {format_bytes(model.checkpoint_bytes)}",
        phases=(LOAD,),
    )


def _state_entries(job: HostJob) -> Iterator[Entry]:
    ranks = format_count(job.ranks, "rank")
    yield _offload_entry(job)
    yield host_entry(
        Category.OPTIMIZER,
        "gradients and optimizer states on the CPU",
        job.ranks * job.states_bytes,
        f"{ranks} × {format_bytes(job.states_bytes)}",
        phases=TRAINING,
    )
    yield host_entry(
        Category.ACTIVATIONS,
        "activations on the CPU",
        job.ranks * job.activations_bytes,
        f"{ranks} × {format_bytes(job.activations_bytes)}",
        phases=TRAINING,
    )
    yield host_entry(
        Category.COPIES,
        "checkpoint being saved",
        job.save_bytes,
        "gathered by one rank",
        phases=(SAVE,),
    )


def _offload_entry(job: HostJob) -> Entry:
    buffers = job.offloaded_bytes
    if job.offload_pinned:
        buffers = tuple(pinned_block_bytes(nbytes) for nbytes in buffers)
    return host_entry(
        Category.OPTIMIZER,
        "offloaded states",
        job.ranks * sum(buffers),
        f"{format_count(job.ranks, 'rank')} × {len(buffers)} buffers, {format_bytes(sum(buffers))}",
        place=PINNED if job.offload_pinned else HOST,
        phases=(*TRAINING, SAVE),
    )
