"""The host bill by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.errors import InputError, UnsupportedError
from vramcast.host.entries import host_entries
from vramcast.host.host_job import HostData, HostJob, Loader, ModelOnHost, token_batch
from vramcast.host.libraries import KNOWN
from vramcast.host.lines import pinned_block_bytes
from vramcast.host.parquet import read_facts
from vramcast.host.parquet_facts import ParquetFacts
from vramcast.ledger import FORWARD, LOAD, SAVE, Ledger, Level
from vramcast.units import GiB, KiB, MiB


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> ParquetFacts:
    path = tmp_path_factory.mktemp("bill") / "rows.parquet"
    pq.write_table(pa.table({"text": ["x" * 1000] * 20_000}), path, row_group_size=1000)
    return read_facts(path)


def lines(job: HostJob) -> dict[str, int]:
    ledger = Ledger(entries=host_entries(job))
    ledger.check()
    return {entry.component: entry.nbytes for entry in ledger.entries}


def test_a_batch_of_token_ids_is_kilobytes() -> None:
    """24 rows of 512: 48 KiB as int32, as was once thought to be 50 MB; three int64 tensors are 288 KiB."""
    assert 24 * 512 * 4 == 49_152
    assert sum(token_batch(24, 512)) == 294_912
    assert sum(token_batch(24, 512)) - sum(token_batch(8, 512)) == 192 * KiB


@pytest.mark.parametrize(
    ("asked", "given_"), [(0, 0), (1, 1), (4096, 4096), (4097, 8192), (9 * GiB // 4, 4 * GiB)]
)
def test_pinned_memory_is_rounded_to_a_power_of_two(asked: int, given_: int) -> None:
    assert pinned_block_bytes(asked) == given_


@given(st.integers(1, 2**40))
def test_pinned_rounding_never_more_than_doubles(nbytes: int) -> None:
    assert nbytes <= pinned_block_bytes(nbytes) < 2 * nbytes


def test_batches_in_flight_follow_workers_and_prefetch() -> None:
    tensors = token_batch(24, 512)  # each 98,304 B: 24 whole pages
    shown = lines(
        HostJob(ranks=2, loader=Loader(tensor_bytes=tensors, workers=4, prefetch=3, steady=True))
    )
    assert shown["batches in flight, shared memory"] == 2 * 12 * 294_912
    assert shown["batches in use"] == 2 * 294_912
    alone = lines(HostJob(loader=Loader(tensor_bytes=tensors)))
    assert "batches in flight, shared memory" not in alone
    assert alone["batches in use"] == 2 * 294_912  # the one trained on and the one being made
    accelerate = lines(HostJob(loader=Loader(tensor_bytes=tensors, workers=1, accelerate=True)))
    assert accelerate["batches in flight, shared memory"] == 2 * 294_912
    assert accelerate["batches in use"] == 2 * 294_912


def test_pinned_batches_are_rounded_each() -> None:
    shown = lines(
        HostJob(loader=Loader(tensor_bytes=(98_304,) * 3, workers=2, pin_memory=True, steady=True))
    )
    assert shown["pinned batches"] == (2 * 2 + 1) * 3 * 131_072
    assert shown["batches in flight, shared memory"] == 2 * 294_912


def test_a_cpu_build_pins_nothing() -> None:
    """DataLoader says so in a warning and goes on."""
    loader = Loader(tensor_bytes=(98_304,) * 3, workers=2, pin_memory=True, steady=True)
    shown = lines(HostJob(build="cpu", loader=loader))
    assert "pinned batches" not in shown
    assert shown["batches in flight, shared memory"] == 4 * 294_912


def test_several_ranks_have_a_launcher_beside_them() -> None:
    assert "launcher of the ranks" not in lines(HostJob(build="cpu"))
    shown = lines(HostJob(build="cpu", ranks=4))
    parts = ("python 3.11.7", "numpy 2.4.6", "torch 2.13.0+cpu")
    assert shown["launcher of the ranks"] == sum(shown[part] for part in parts) // 4


def test_a_forked_worker_may_copy_its_parents_objects_unless_the_dataset_froze_them(
    facts: ParquetFacts,
) -> None:
    loader = Loader(tensor_bytes=(8,), workers=2)
    bare = HostJob(imports=("torch", "transformers"), loader=loader)
    frozen = HostJob(imports=("torch", "transformers"), loader=loader, data=HostData(facts=facts))

    def most(job: HostJob) -> int:
        entry = next(entry for entry in host_entries(job) if entry.component == "forked workers")
        assert entry.range_bytes is not None
        return entry.range_bytes[1]

    assert most(frozen) == 2 * 17 * MiB
    assert most(bare) == 2 * (17 + 37 + 51) * MiB


def test_dataset_modes(facts: ParquetFacts) -> None:
    def shown(mode: str, **loader: object) -> dict[str, int]:
        data = HostData(facts=facts, mode=mode, budget_bytes=16 * MiB)
        return lines(HostJob(ranks=2, data=data, loader=Loader(tensor_bytes=(8,), **loader)))

    decoded = 20_000 * 1004
    assert facts.decoded_bytes == decoded
    held = decoded + 20 * 2 * 900  # twenty row groups of one text column with two buffers
    assert facts.held_bytes == held
    assert shown("table")["whole table, decoded"] == 2 * held
    assert shown("table", workers=3)["whole table, decoded"] == 2 * held
    assert (
        shown("table", workers=3)["table's objects, copied by counting references"]
        == 6 * 20 * 2 * 560
    )
    assert shown("table", workers=3, start_method="spawn")["whole table, decoded"] == 2 * 4 * held
    room = 16 * MiB - facts.scratch_bytes(16 * MiB)
    assert shown("row-groups", workers=3)["row groups held"] == 6 * room
    assert shown("row-groups")["row groups held"] == 2 * room
    assert shown("ultra")["row groups or slice held"] == 2 * 8 * MiB
    assert shown("mmap", workers=3)["Arrow cache, mapped from disk"] == decoded


def test_a_small_budget_is_not_spent_on_segments_of_the_pool(facts: ParquetFacts) -> None:
    assert facts.decoding_bytes(64 * MiB) == 32 * MiB + facts.max_decoding_bytes
    assert facts.decoding_bytes(40 * MiB) == facts.max_decoding_bytes < 8 * MiB
    assert facts.table_budget_bytes(16 * MiB) + facts.scratch_bytes(16 * MiB) == 16 * MiB
    assert facts.min_budget_bytes == facts.max_held_bytes + facts.scratch_bytes(0)


def test_a_kept_pool_is_billed_with_two_decodings_and_its_range(facts: ParquetFacts) -> None:
    data, loader = (
        HostData(facts=facts, budget_bytes=64 * MiB),
        Loader(tensor_bytes=(8,), workers=2),
    )
    entries = host_entries(HostJob(data=data, loader=loader))
    pool = next(entry for entry in entries if entry.component == "decoding buffers")
    one = facts.max_decoding_bytes
    assert pool.range_bytes == (2 * one, 2 * (32 * MiB + one))
    assert pool.nbytes == 2 * 2 * one


def test_ultra_keeps_its_pool_where_two_decodings_fit_in_a_segment(facts: ParquetFacts) -> None:
    def pool(facts: ParquetFacts) -> tuple[int, tuple[int, int] | None]:
        entries = host_entries(HostJob(data=HostData(facts=facts, mode="ultra")))
        return next((e.nbytes, e.range_bytes) for e in entries if e.component == "decoding buffers")

    one = facts.max_decoding_bytes
    assert pool(facts) == (2 * one, (one, 32 * MiB + one))
    large = replace(facts.row_groups[0], decoded_bytes=5 * MiB, widest_bytes=3 * MiB)
    slice_of_it = 5 * MiB + 4 * 3 * MiB + large.pages_bytes
    assert slice_of_it > 16 * MiB
    assert pool(replace(facts, row_groups=(large, *facts.row_groups[1:]))) == (slice_of_it, None)


def test_mapped_pages_are_shown_but_not_needed(facts: ParquetFacts) -> None:
    job = HostJob(data=HostData(facts=facts, mode="mmap"))
    moment = Ledger(entries=host_entries(job)).moment(FORWARD, "host")
    assert moment.process_bytes - moment.allocated_bytes == facts.decoded_bytes
    assert {e.level for e in host_entries(job) if "mapped from disk" in e.component} == {
        Level.PROCESS
    }


def test_each_rank_maps_no_more_of_the_cache_than_its_budget(facts: ParquetFacts) -> None:
    quarter = facts.decoded_bytes // 4
    data, loader = (
        HostData(facts=facts, mode="mmap", budget_bytes=quarter),
        Loader(tensor_bytes=(8,), workers=3),
    )
    entries = host_entries(HostJob(ranks=2, data=data, loader=loader))
    mapped = next(entry for entry in entries if "mapped from disk" in entry.component)
    assert (mapped.nbytes, mapped.range_bytes) == (2 * quarter, (0, facts.decoded_bytes))


def test_loading_a_model_by_format_and_ranks() -> None:
    def at(phase: str, **model: object) -> int:
        job = HostJob(
            ranks=4, model=ModelOnHost(checkpoint_bytes=2 * GiB, weights_bytes=4 * GiB, **model)
        )
        bare = Ledger(entries=host_entries(HostJob(ranks=4))).moment(phase, "host").process_bytes
        return Ledger(entries=host_entries(job)).moment(phase, "host").process_bytes - bare

    assert at(LOAD) == 2 * GiB + 4 * 4 * GiB
    assert at(LOAD, format="bin") == 4 * (2 + 4) * GiB
    assert at(LOAD, format="bin", low_cpu_mem=False) == 4 * (2 + 4 + 4) * GiB
    assert at(LOAD, straight_to_gpu=True) == 2 * GiB
    assert at(LOAD, rank0_only=True) == 2 * GiB + 4 * GiB
    assert at(FORWARD) == 0
    assert at(FORWARD, stays_on_host=True) == 4 * 4 * GiB


def test_offload_is_pinned_and_saving_is_one_ranks() -> None:
    job = HostJob(ranks=2, offloaded_bytes=(3 * GiB, GiB), save_bytes=5 * GiB)
    shown = lines(job)
    assert shown["offloaded states"] == 2 * (4 + 1) * GiB
    assert shown["checkpoint being saved"] == 5 * GiB
    ledger = Ledger(entries=host_entries(job))
    assert ledger.moment(SAVE, "pinned").allocated_bytes == 10 * GiB


def test_a_workers_heap_is_billed_unless_it_is_kept_steady() -> None:
    large = Loader(tensor_bytes=(MiB,), workers=2)
    assert lines(HostJob(loader=large))["heap of workers, fragmented"] == 200 * MiB
    small = Loader(tensor_bytes=(64 * KiB,), workers=2)
    assert "heap of workers, fragmented" not in lines(HostJob(loader=small))


def test_what_is_unknown_or_impossible_is_named(facts: ParquetFacts) -> None:
    with pytest.raises(UnsupportedError, match="row-groups"):
        host_entries(HostJob(data=HostData(facts=facts, mode="streaming")))
    with pytest.raises(UnsupportedError, match="jax"):
        host_entries(HostJob(imports=("jax",)))
    with pytest.raises(InputError, match="prefetch=2 without workers"):
        host_entries(HostJob(loader=Loader(tensor_bytes=(8,), prefetch=2)))
    with pytest.raises(InputError, match="ranks=0"):
        host_entries(HostJob(ranks=0))


def test_every_library_has_a_version_and_a_source() -> None:
    assert all(library.version and library.source for library in KNOWN.values())


def test_the_bill_imports_neither_torch_nor_pyarrow(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys, vramcast.host.entries, vramcast.cli.host; "
        "print({'torch', 'pyarrow', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
