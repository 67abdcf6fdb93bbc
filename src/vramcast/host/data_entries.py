"""Host memory of the data pipeline: the dataset in its mode, DataLoader's workers, and the batches.

In: a HostJob. Out: entries for all ranks of the node together, alive while the job trains. Does not know what a user's
own `collate_fn` or transforms keep.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from vramcast.host.host_job import HostData, HostJob, Loader
from vramcast.host.libraries import (
    FORKED_WORKER_BYTES,
    FORKED_WORKER_RANGE,
    FRAGMENTED_WORKER_BYTES,
    SPAWN_TRACKER_BYTES,
    collected_bytes,
    libraries,
)
from vramcast.host.lines import TRAINING, format_count, host_entry, pinned_block_bytes
from vramcast.ledger import HOST, PINNED, SHM, Category, Entry, Level, Origin
from vramcast.units import KiB, format_bytes, round_up

PAGE_BYTES = 4 * KiB


def data_entries(job: HostJob) -> Iterator[Entry]:
    data = job.data
    if data is None:
        return
    # Every rank reads the footers and keeps what it needs of them.
    yield _per_process_entry("row groups, as records", job.ranks, data.facts.records_bytes)
    if data.mode == "table":
        yield from _table_entries(job, data)
    elif data.mode == "mmap":
        yield _mapped_cache_entry(job, data)
        yield _per_process_entry(
            "chunks of the cache, as objects", job.readers, data.facts.open_chunks_bytes
        )
    else:
        yield from _parquet_reader_entries(job.readers, data)


def _per_process_entry(component: str, count: int, nbytes: int) -> Entry:
    formula = f"{format_count(count, 'reader')} × {format_bytes(nbytes)}"
    return host_entry(Category.DATA, component, count * nbytes, formula, phases=TRAINING)


def _parquet_reader_entries(readers: int, data: HostData) -> Iterator[Entry]:
    """Modes `row-groups` and `ultra`: every reader opens the files and decodes row groups by itself."""
    facts = data.facts
    yield _per_process_entry("parquet footers, opened", readers, facts.opened_bytes)
    if data.mode == "ultra":
        yield _per_process_entry("row groups or slice held", readers, facts.ultra_held_bytes)
    else:
        held = min(facts.table_budget_bytes(data.budget_bytes), facts.held_bytes)
        yield _per_process_entry("row groups held", readers, held)
    yield _decoding_entry(readers, data)


def _decoding_entry(readers: int, data: HostData) -> Entry:
    """pyarrow's pool: one decoding if it is emptied after each, up to a segment more if it is kept."""
    facts, budget = data.facts, data.budget_bytes
    if data.mode == "ultra":
        least, usual, most = facts.ultra_decoding_bytes
    else:
        least = facts.max_decoding_bytes
        usual = facts.typical_decoding_bytes(budget)
        most = facts.decoding_bytes(budget)
    entry = _per_process_entry("decoding buffers", readers, usual)
    if least == most:
        return entry
    return replace(entry, range_bytes=(readers * least, readers * most))


def _mapped_cache_entry(job: HostJob, data: HostData) -> Entry:
    """Workers of a rank read the same part of the cache; at most each of them maps another."""
    decoded, budget = data.facts.decoded_bytes, data.budget_bytes
    return host_entry(
        Category.DATA,
        "Arrow cache, mapped from disk",
        min(decoded, job.ranks * budget),
        f"{format_count(job.ranks, 'rank')} × {format_bytes(budget)}, or the columns decoded if that is less; the "
        "kernel may drop it",
        phases=TRAINING,
        level=Level.PROCESS,
        range_bytes=(0, min(decoded, job.readers * budget)),
    )


def _table_entries(job: HostJob, data: HostData) -> Iterator[Entry]:
    """Forked workers share the table of their rank, all but the objects around it; spawned ones load their own."""
    spawned = job.loader is not None and job.loader.start_method != "fork"
    copies = job.ranks + job.workers if spawned else job.ranks
    yield host_entry(
        Category.DATA,
        "whole table, decoded",
        copies * data.facts.held_bytes,
        f"{format_count(copies, 'process')} × {format_bytes(data.facts.held_bytes)}",
        phases=TRAINING,
    )
    if spawned:
        return
    objects = data.facts.python_objects_bytes
    yield host_entry(
        Category.DATA,
        "table's objects, copied by counting references",
        job.workers * objects,
        f"{format_count(job.workers, 'worker')} × {format_bytes(objects)}",
        phases=TRAINING,
    )


def loader_entries(job: HostJob) -> Iterator[Entry]:
    loader = job.loader
    if loader is None:
        return
    yield _worker_entry(job, loader)
    if loader.fragments:
        yield _fragmentation_entry(job.workers)
    yield from _batch_entries(job.ranks, loader)


def _worker_entry(job: HostJob, loader: Loader) -> Entry:
    if loader.start_method == "fork":
        return _forked_entry(job)
    return _spawned_entry(job)


def _forked_entry(job: HostJob) -> Entry:
    workers = job.workers
    low, high = FORKED_WORKER_RANGE
    if job.data is None:
        high += collected_bytes(job.imports)  # LowMemDataset prevents it
    return host_entry(
        Category.DATA,
        "forked workers",
        workers * FORKED_WORKER_BYTES,
        f"{format_count(workers, 'worker')} × {format_bytes(FORKED_WORKER_BYTES)} of pages made private",
        phases=TRAINING,
        origin=Origin.MEASURED,
        source="torch 2.13.0+cpu, transformers 5.22.2 imported, 1 to 4 workers",
        range_bytes=(workers * low, workers * high),
    )


def _spawned_entry(job: HostJob) -> Entry:
    workers = job.workers
    private = sum(library.private_bytes for library in libraries(job.imports, job.build))
    trackers = job.ranks * SPAWN_TRACKER_BYTES if workers else 0
    return host_entry(
        Category.DATA,
        "spawned workers",
        workers * private + trackers,
        f"{format_count(workers, 'worker')} × {format_bytes(private)} of libraries imported again, "
        "and a tracker per rank",
        phases=TRAINING,
        origin=Origin.MEASURED,
    )


def _fragmentation_entry(workers: int) -> Entry:
    return host_entry(
        Category.SLACK,
        "heap of workers, fragmented",
        workers * FRAGMENTED_WORKER_BYTES,
        f"{format_count(workers, 'worker')} × {format_bytes(FRAGMENTED_WORKER_BYTES)}; none with return_large_blocks",
        phases=TRAINING,
        origin=Origin.ASSUMED,
        source="glibc 2.36, 100 batches of three 1 MiB tensors",
        range_bytes=(0, workers * 2 * FRAGMENTED_WORKER_BYTES),
    )


def _batch_entries(ranks: int, loader: Loader) -> Iterator[Entry]:
    """Batches on their way from the workers, copied to pinned memory, and held by the training loop."""
    in_pages = sum(round_up(nbytes, PAGE_BYTES) for nbytes in loader.tensor_bytes)
    shared = loader.in_flight
    if loader.pin_memory:
        # The pinning thread empties the queue as it fills: shared memory holds only what workers are passing on.
        shared = min(loader.workers, loader.in_flight)
    yield host_entry(
        Category.INPUT,
        "batches in flight, shared memory",
        ranks * shared * in_pages,
        f"{format_count(ranks, 'rank')} × {shared} batches × {format_bytes(in_pages)} in whole pages",
        place=SHM,
        phases=TRAINING,
    )
    if loader.pin_memory:
        yield _pinned_entry(ranks, loader)
    one = in_pages if loader.workers else sum(loader.tensor_bytes)
    yield host_entry(
        Category.INPUT,
        "batches in use",
        ranks * loader.in_use * one,
        f"{format_count(ranks, 'rank')} × {loader.in_use} × {format_bytes(one)}",
        place=SHM if loader.workers and not loader.pin_memory else HOST,
        phases=TRAINING,
    )


def _pinned_entry(ranks: int, loader: Loader) -> Entry:
    rounded = sum(pinned_block_bytes(nbytes) for nbytes in loader.tensor_bytes)
    count = loader.in_flight + loader.in_use
    return host_entry(
        Category.INPUT,
        "pinned batches",
        ranks * count * rounded,
        f"{format_count(ranks, 'rank')} × {count} batches × {format_bytes(rounded)}, tensors rounded to powers of two",
        place=PINNED,
        phases=TRAINING,
    )
