"""The host side of a training job as ledger entries.

In: a HostJob: ranks of one node, libraries, model load, dataset facts and mode, DataLoader settings, offloaded and
saved bytes. Out: entries at the places host, pinned and shm, for all ranks of the node together. Level `allocated` is
memory that must be there; level `process` adds mapped file pages that PSS shows but the kernel may drop. A pure
function: reads no file and no clock. Does not know what the user's own code keeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from vramcast.errors import InputError, unknown
from vramcast.host.libraries import (
    CUDA_CONTEXT,
    FIRST_STEP,
    FORKED_WORKER_BYTES,
    FORKED_WORKER_RANGE,
    FRAGMENTED_WORKER_BYTES,
    SPAWN_TRACKER_BYTES,
    Library,
    collected_bytes,
    launcher,
    libraries,
)  # fmt: skip
from vramcast.host.parquet import ParquetFacts
from vramcast.ledger import (
    BACKWARD,
    FORWARD,
    HOST,
    LOAD,
    LOSS,
    NEXT_BACKWARD,
    NEXT_FORWARD,
    NEXT_LOSS,
    NEXT_STEP,
    PINNED,
    SAVE,
    SHM,
    STEP,
    Category,
    Entry,
    Level,
    Origin,
)  # fmt: skip
from vramcast.units import KiB, MiB, format_bytes, round_up

TRAINING = (FORWARD, LOSS, BACKWARD, STEP, NEXT_FORWARD, NEXT_LOSS, NEXT_BACKWARD, NEXT_STEP)
ALWAYS = (LOAD, *TRAINING, SAVE)
MODES = ("table", "row-groups", "mmap", "ultra")
START_METHODS = ("fork", "spawn")
FORMATS = ("safetensors", "bin")
PAGE_BYTES = 4 * KiB
LARGE_BLOCK_BYTES = 128 * KiB  # glibc's first threshold between heap and mapping
ID_BYTES = 8  # token ids, masks and labels are int64


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOnHost:
    """How weights pass through, or stay in, host memory."""

    checkpoint_bytes: int
    weights_bytes: int  # in the dtype the model has after loading
    format: str = "safetensors"
    low_cpu_mem: bool = True  # built on the meta device; else a second, initialised copy waits for the weights
    stays_on_host: bool = False  # CPU training; else it leaves for the GPU after loading
    straight_to_gpu: bool = False  # device_map: each tensor goes from the mapped file to the GPU
    rank0_only: bool = False  # the others receive it by broadcast


@dataclass(frozen=True, slots=True, kw_only=True)
class HostData:
    """A parquet dataset and the mode it is read in."""

    facts: ParquetFacts
    mode: str = "row-groups"
    budget_bytes: int = 256 * MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """DataLoader's settings and the tensors of one batch."""

    tensor_bytes: tuple[int, ...]  # each tensor of a batch
    workers: int = 0
    prefetch: int | None = None  # DataLoader's rule: None without workers, where None with workers means 2
    pin_memory: bool = False
    start_method: str = "fork"
    accelerate: bool = False  # holds one more batch, to know which is the last
    steady: bool = False  # workers return large blocks at once (vramcast.runtime.return_large_blocks)

    @property
    def in_flight(self) -> int:
        return self.workers * (2 if self.prefetch is None else self.prefetch)

    @property
    def in_use(self) -> int:
        """The batch trained on; without workers the next is made while the loop still holds it."""
        return (1 if self.workers else 2) + self.accelerate

    @property
    def fragments(self) -> bool:
        return self.workers > 0 and not self.steady and max(self.tensor_bytes) >= LARGE_BLOCK_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class HostJob:
    """Everything the host side of a node's bill follows from."""

    ranks: int = 1
    build: str = "cuda"
    imports: tuple[str, ...] = ("torch", "transformers", "pyarrow")
    model: ModelOnHost | None = None
    data: HostData | None = None
    loader: Loader | None = None
    offloaded_bytes: tuple[int, ...] = ()  # buffers that live in host memory, per rank
    offload_pinned: bool = True
    states_bytes: int = 0  # gradients and optimizer states of a job that trains on the CPU, per rank
    activations_bytes: int = 0  # of a job that trains on the CPU, per rank
    save_bytes: int = 0  # a checkpoint gathered on the host by one rank


def token_batch(batch: int, seq: int, target_seq: int | None = None) -> tuple[int, ...]:
    """Bytes of `input_ids`, `attention_mask` and `labels`."""
    ids, labels = batch * seq * ID_BYTES, batch * (seq if target_seq is None else target_seq) * ID_BYTES
    return ids, ids, labels


def pinned_block_bytes(nbytes: int) -> int:
    """torch's pinned allocator rounds a request up to the next power of two (CachingHostAllocator.h, 2.13)."""
    return 0 if nbytes == 0 else 1 << (nbytes - 1).bit_length()


def host_entries(job: HostJob) -> tuple[Entry, ...]:
    """The bill of one node."""
    _check(job)
    if job.build == "cpu" and job.loader is not None:
        job = replace(job, loader=replace(job.loader, pin_memory=False))  # DataLoader warns and pins nothing
    parts = (_library_entries(job), _model_entries(job), _data_entries(job), _loader_entries(job), _state_entries(job))
    return tuple(entry for part in parts for entry in part if entry.nbytes)


def _check(job: HostJob) -> None:
    if job.ranks < 1:
        raise InputError(f"ranks={job.ranks}: a node runs at least one process")
    for what, value, known in (
        ("dataset mode", job.data.mode if job.data else MODES[0], MODES),
        ("start method", job.loader.start_method if job.loader else START_METHODS[0], START_METHODS),
        ("checkpoint format", job.model.format if job.model else FORMATS[0], FORMATS),
    ):
        if value not in known:
            raise unknown(what, value, known)
    if job.loader and job.loader.workers == 0 and job.loader.prefetch is not None:
        raise InputError(f"prefetch={job.loader.prefetch} without workers: DataLoader refuses it. Leave it out.")


def _entry(
    category: Category, component: str, nbytes: int, formula: str, *, place: str = HOST,
    phases: tuple[str, ...] = ALWAYS, origin: Origin = Origin.FORMULA, source: str = "", level: Level = Level.ALLOCATED,
    range_bytes: tuple[int, int] | None = None,
) -> Entry:  # fmt: skip
    return Entry(
        category=category, component=component, place=place, phases=phases, nbytes=nbytes, origin=origin,
        formula=formula, source=source, level=level, range_bytes=range_bytes,
    )  # fmt: skip


def _library_entries(job: HostJob) -> Iterator[Entry]:
    rows = libraries(job.imports, job.build)
    uses_torch = "torch" in job.imports
    extra = (CUDA_CONTEXT if job.build == "cuda" else FIRST_STEP,) if uses_torch else ()
    for row in (*rows, *extra):
        yield from _library_lines(row, job.ranks)
    if job.ranks > 1 and uses_torch:
        yield _launcher_entry(launcher(job.build))


def _launcher_entry(row: Library) -> Entry:
    return _entry(
        Category.LIBRARIES, "launcher of the ranks", row.private_bytes,
        f"{format_bytes(row.private_bytes)}, once per node: torchrun imports torch too", origin=row.origin,
        source=row.source, range_bytes=row.range_bytes,
    )  # fmt: skip


def _library_lines(row: Library, ranks: int) -> Iterator[Entry]:
    low_high = None if row.range_bytes is None else (row.range_bytes[0] * ranks, row.range_bytes[1] * ranks)
    yield _entry(
        Category.LIBRARIES, f"{row.name} {row.version}", row.private_bytes * ranks,
        f"{_times(ranks, 'rank')} × {format_bytes(row.private_bytes)}", origin=row.origin, source=row.source,
        range_bytes=low_high,
    )  # fmt: skip
    yield _entry(
        Category.LIBRARIES, f"{row.name}, mapped files", row.file_bytes,
        f"{format_bytes(row.file_bytes)}, once per node", origin=row.origin, source=row.source,
    )  # fmt: skip


def _model_entries(job: HostJob) -> Iterator[Entry]:
    model = job.model
    if model is None:
        return
    copies = 1 if model.rank0_only else job.ranks
    if model.format == "safetensors":
        yield _entry(
            Category.WEIGHTS, "checkpoint, mapped from disk", model.checkpoint_bytes, "the file, once per node",
            phases=(LOAD,), level=Level.PROCESS,
        )  # fmt: skip
    else:
        yield _entry(
            Category.WEIGHTS, "checkpoint, unpickled", model.checkpoint_bytes * copies,
            f"{_times(copies, 'copy')} × {format_bytes(model.checkpoint_bytes)}", phases=(LOAD,),
        )  # fmt: skip
    if model.straight_to_gpu and not model.stays_on_host:
        return
    initialised = 1 if model.low_cpu_mem else 2
    yield _entry(
        Category.WEIGHTS, "weights", model.weights_bytes * copies,
        f"{_times(copies, 'copy')} × {format_bytes(model.weights_bytes)}",
        phases=ALWAYS if model.stays_on_host else (LOAD,),
    )  # fmt: skip
    yield _entry(
        Category.COPIES, "initialised before loading", model.weights_bytes * copies * (initialised - 1),
        f"{_times(copies, 'copy')} × {format_bytes(model.weights_bytes)}", phases=(LOAD,),
    )  # fmt: skip


def readers(job: HostJob) -> int:
    """Processes of the node that decode rows: the workers, or the ranks themselves."""
    return job.ranks * max(job.loader.workers if job.loader else 0, 1)


def _data_entries(job: HostJob) -> Iterator[Entry]:
    data = job.data
    if data is None:
        return
    count = readers(job)
    yield from _footer_entries(job, data)
    if data.mode == "table":
        yield from _table_entries(job, data)
    elif data.mode == "row-groups":
        held = min(data.facts.room_for_tables_bytes(data.budget_bytes), data.facts.held_bytes)
        yield _data_entry("row groups held", count, held)
    elif data.mode == "ultra":
        yield _data_entry("row groups or slice held", count, data.facts.held_by_ultra_bytes)
    else:
        yield _mapped_entry(job, data)
        yield _data_entry("chunks of the cache, as objects", count, data.facts.open_chunks_bytes)
    if data.mode in ("row-groups", "ultra"):
        yield _decoding_entry(count, data)


def _decoding_entry(count: int, data: HostData) -> Entry:
    """What the pool has: one decoding where it is emptied after each, up to a segment more where it is kept."""
    facts, budget = data.facts, data.budget_bytes
    if data.mode == "ultra":
        least, usual, most = facts.decoding_by_ultra_bytes
    else:
        least, usual, most = facts.most_decoding_bytes, facts.usual_decoding_bytes(budget), facts.decoding_bytes(budget)
    return replace(
        _data_entry("decoding buffers", count, usual),
        range_bytes=(count * least, count * most) if least < most else None,
    )  # fmt: skip


def _mapped_entry(job: HostJob, data: HostData) -> Entry:
    """Workers of a rank read the same part of the cache; at most each of them maps another."""
    mapped, most = (min(data.facts.decoded_bytes, count * data.budget_bytes) for count in (job.ranks, readers(job)))
    return _entry(
        Category.DATA, "Arrow cache, mapped from disk", mapped,
        f"{_times(job.ranks, 'rank')} × {format_bytes(data.budget_bytes)}, or the columns decoded if that is less; the "
        "kernel may drop it", phases=TRAINING, level=Level.PROCESS, range_bytes=(0, most),
    )  # fmt: skip


def _data_entry(component: str, count: int, nbytes: int) -> Entry:
    formula = f"{_times(count, 'reader')} × {format_bytes(nbytes)}"
    return _entry(Category.DATA, component, count * nbytes, formula, phases=TRAINING)


def _footer_entries(job: HostJob, data: HostData) -> Iterator[Entry]:
    """Every rank reads the footers and keeps what it needs of them; every reader of parquet opens the files again."""
    yield _data_entry("row groups, as records", job.ranks, data.facts.records_bytes)
    if data.mode in ("row-groups", "ultra"):
        yield _data_entry("parquet footers, opened", readers(job), data.facts.opened_bytes)


def _table_entries(job: HostJob, data: HostData) -> Iterator[Entry]:
    """Forked workers share the table of their rank, all but the objects around it; spawned ones load their own."""
    workers, forked = (job.loader.workers, job.loader.start_method == "fork") if job.loader else (0, True)
    copies = job.ranks * (1 if forked else 1 + workers)
    yield _entry(
        Category.DATA, "whole table, decoded", copies * data.facts.held_bytes,
        f"{_times(copies, 'process')} × {format_bytes(data.facts.held_bytes)}", phases=TRAINING,
    )  # fmt: skip
    count, each = job.ranks * workers if forked else 0, data.facts.python_bytes
    yield _entry(
        Category.DATA, "table's objects, copied by counting references", count * each,
        f"{_times(count, 'worker')} × {format_bytes(each)}", phases=TRAINING,
    )  # fmt: skip


def _loader_entries(job: HostJob) -> Iterator[Entry]:
    loader = job.loader
    if loader is None:
        return
    yield from _worker_entries(job, loader)
    if loader.fragments:
        yield _fragmentation_entry(job.ranks * loader.workers)
    batch = sum(loader.tensor_bytes)
    pages = sum(round_up(nbytes, PAGE_BYTES) for nbytes in loader.tensor_bytes)
    # The pinning thread empties the queue as it fills, so shared memory then holds what workers are handing over.
    shared = min(loader.workers, loader.in_flight) if loader.pin_memory else loader.in_flight
    yield _entry(
        Category.INPUT, "batches in flight, shared memory", job.ranks * shared * pages,
        f"{_times(job.ranks, 'rank')} × {shared} batches × {format_bytes(pages)} in whole pages", place=SHM,
        phases=TRAINING,
    )  # fmt: skip
    if loader.pin_memory:
        yield _pinned_entry(job, loader)
    in_use = pages if loader.workers else batch
    yield _entry(
        Category.INPUT, "batches in use", job.ranks * loader.in_use * in_use,
        f"{_times(job.ranks, 'rank')} × {loader.in_use} × {format_bytes(in_use)}",
        place=SHM if loader.workers and not loader.pin_memory else HOST, phases=TRAINING,
    )  # fmt: skip


def _worker_entries(job: HostJob, loader: Loader) -> Iterator[Entry]:
    count = job.ranks * loader.workers
    if loader.start_method == "fork":
        most = FORKED_WORKER_RANGE[1] + (0 if job.data else collected_bytes(job.imports))
        yield _entry(
            Category.DATA, "forked workers", count * FORKED_WORKER_BYTES,
            f"{_times(count, 'worker')} × {format_bytes(FORKED_WORKER_BYTES)} of pages made private", phases=TRAINING,
            origin=Origin.MEASURED, source="torch 2.13.0+cpu, transformers 5.22.2 imported, 1 to 4 workers",
            range_bytes=(count * FORKED_WORKER_RANGE[0], count * most),
        )  # fmt: skip
        return
    yield from _spawned_entries(job, count)


def _fragmentation_entry(count: int) -> Entry:
    return _entry(
        Category.SLACK, "heap of workers, fragmented", count * FRAGMENTED_WORKER_BYTES,
        f"{_times(count, 'worker')} × {format_bytes(FRAGMENTED_WORKER_BYTES)}; none with return_large_blocks",
        phases=TRAINING, origin=Origin.ASSUMED, source="glibc 2.36, 100 batches of three 1 MiB tensors",
        range_bytes=(0, count * 2 * FRAGMENTED_WORKER_BYTES),
    )  # fmt: skip


def _spawned_entries(job: HostJob, count: int) -> Iterator[Entry]:
    private = sum(row.private_bytes for row in libraries(job.imports, job.build))
    yield _entry(
        Category.DATA, "spawned workers", count * private + (job.ranks * SPAWN_TRACKER_BYTES if count else 0),
        f"{_times(count, 'worker')} × {format_bytes(private)} of libraries imported again, and a tracker per rank",
        phases=TRAINING, origin=Origin.MEASURED,
    )  # fmt: skip


def _pinned_entry(job: HostJob, loader: Loader) -> Entry:
    rounded = sum(pinned_block_bytes(nbytes) for nbytes in loader.tensor_bytes)
    count = loader.in_flight + loader.in_use
    return _entry(
        Category.INPUT, "pinned batches", job.ranks * count * rounded,
        f"{_times(job.ranks, 'rank')} × {count} batches × {format_bytes(rounded)}, tensors rounded to powers of two",
        place=PINNED, phases=TRAINING,
    )  # fmt: skip


def _state_entries(job: HostJob) -> Iterator[Entry]:
    each = [pinned_block_bytes(nbytes) if job.offload_pinned else nbytes for nbytes in job.offloaded_bytes]
    yield _entry(
        Category.OPTIMIZER, "offloaded states", job.ranks * sum(each),
        f"{_times(job.ranks, 'rank')} × {len(each)} buffers, {format_bytes(sum(each))}",
        place=PINNED if job.offload_pinned else HOST, phases=(*TRAINING, SAVE),
    )  # fmt: skip
    yield _entry(
        Category.OPTIMIZER, "gradients and optimizer states on the CPU", job.ranks * job.states_bytes,
        f"{_times(job.ranks, 'rank')} × {format_bytes(job.states_bytes)}", phases=TRAINING,
    )  # fmt: skip
    yield _entry(
        Category.ACTIVATIONS, "activations on the CPU", job.ranks * job.activations_bytes,
        f"{_times(job.ranks, 'rank')} × {format_bytes(job.activations_bytes)}", phases=TRAINING,
    )  # fmt: skip
    yield _entry(Category.COPIES, "checkpoint being saved", job.save_bytes, "gathered by one rank", phases=(SAVE,))


def _times(count: int, what: str) -> str:
    plural = {"copy": "copies", "process": "processes"}.get(what, f"{what}s")
    return f"{count} {what if count == 1 else plural}"
