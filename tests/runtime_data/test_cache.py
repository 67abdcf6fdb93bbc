"""The Arrow cache: built once for all processes, never half, and never for other files."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from parquet_samples import Write

from vramcast.host.parquet import read_facts
from vramcast.runtime import LowMemDataset
from vramcast.runtime.data import arrow_cache as cache
from vramcast.units import KiB, MiB


def build_and_count(path: str, folder: str, queue: multiprocessing.Queue) -> None:
    """Counts the builds of this process, then reads from the cache."""
    builds = []
    real = cache._build
    cache._build = lambda facts, target: (builds.append(1), time.sleep(0.3), real(facts, target))
    number = LowMemDataset(path, mode="mmap", cache_dir=folder)[499]["number"]
    queue.put((len(builds), number))


def test_one_of_many_ranks_builds_and_the_others_wait(write: Write, tmp_path: Path) -> None:
    path = write(500, group=50)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    ranks = [
        context.Process(target=build_and_count, args=(str(path), str(tmp_path), queue))
        for _ in range(4)
    ]
    for rank in ranks:
        rank.start()
    results = [queue.get(timeout=60) for _ in ranks]
    for rank in ranks:
        rank.join(timeout=60)
    assert sorted(count for count, _ in results) == [0, 0, 0, 1]
    assert {number for _, number in results} == {499}


def test_a_build_that_was_killed_leaves_nothing_that_counts(write: Write, tmp_path: Path) -> None:
    facts = read_facts(write(500, group=50))
    target = cache.cache_path(facts, tmp_path)
    pid = os.fork()
    if pid == 0:
        real = os.fsync
        os.fsync = lambda descriptor: (real(descriptor), os.kill(os.getpid(), signal.SIGKILL))  # type: ignore[assignment]
        cache.ensure_cache(facts, tmp_path)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert target.with_suffix(".partial").exists()
    assert not target.exists()
    data = LowMemDataset(tmp_path / "data.parquet", mode="mmap", cache_dir=tmp_path)
    assert [data[i]["number"] for i in (0, 250, 499)] == [0, 250, 499]
    assert not target.with_suffix(".partial").exists()


def test_other_columns_and_changed_files_get_their_own_cache(write: Write, tmp_path: Path) -> None:
    path = write(100)
    names = {
        cache.cache_path(read_facts(path, columns), tmp_path)
        for columns in (None, ["prompt"], ["response"])
    }
    write(100, start=7)
    names.add(cache.cache_path(read_facts(path), tmp_path))
    assert len(names) == 4


def mapped_bytes(path: Path) -> int:
    """Resident pages of a file in this process, as the kernel counts them."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    rss = (
        next(line for line in lines if line.startswith("Rss:"))
        for header in lines
        if header.endswith(path.name)
    )
    return sum(int(line.split()[1]) * KiB for line in rss)


@pytest.mark.slow
def test_no_more_of_the_cache_is_mapped_than_the_budget(tmp_path: Path) -> None:
    """Sixty-four chunks of a mebibyte, read twice from end to end with a budget of eight."""
    text = "x" * 1000
    source = tmp_path / "large.parquet"
    pq.write_table(
        pa.table({"text": [text] * 64_000}), source, row_group_size=1000, use_dictionary=False
    )
    data = LowMemDataset(source, mode="mmap", cache_dir=tmp_path, budget_bytes=8 * MiB)
    path = cache.cache_path(data.facts, tmp_path)
    seen = []
    for _ in range(2):
        for index in range(0, 64_000, 3):
            assert data[index]["text"] == text
            if index % 3000 == 0:
                seen.append(mapped_bytes(path))
    # The kernel maps up to 64 KiB around a page that is touched, so a chunk's ends can reach into its neighbours.
    assert 4 * MiB < max(seen) <= 8 * MiB + 8 * 2 * 64 * KiB


def test_small_row_groups_share_a_chunk(tmp_path: Path) -> None:
    """A chunk of a hundred rows of forty columns is three times as much objects as data, in every worker."""
    path = tmp_path / "wide.parquet"
    kinds = pa.DictionaryArray.from_arrays(
        pa.array([n // 100 % 7 for n in range(3000)]), pa.array(list("abcdefg"))
    )
    columns = {f"c{n}": range(3000) for n in range(40)}
    pq.write_table(pa.table({**columns, "kind": kinds}), path, row_group_size=100)
    data = LowMemDataset(path, mode="mmap", cache_dir=tmp_path)
    assert [data[n]["c7"] for n in (0, 99, 100, 2999)] == [0, 99, 100, 2999]
    assert [data[n]["kind"] for n in (0, 100, 2999)] == ["a", "b", "b"]
    store = cache.MappedStore(data.facts, tmp_path, 64 * MiB)
    assert len(store.ends) == -(-data.facts.decoded_bytes // MiB)


@pytest.mark.parametrize(("group", "chunks"), [(100, 4), (600, 6), (3900, 4)])
def test_a_chunk_holds_whole_row_groups_or_part_of_one(
    tmp_path: Path, group: int, chunks: int
) -> None:
    """Rows of a kilobyte: ten row groups to a chunk; one of 600 rows, but the last 300 fit in; one cut in four."""
    path = tmp_path / "t.parquet"
    pq.write_table(
        pa.table({"text": [f"{n:1020}" for n in range(3900)]}), path, row_group_size=group
    )
    data = LowMemDataset(path, mode="mmap", cache_dir=tmp_path)
    assert data[3899]["text"].strip() == "3899"
    ends = data._opened().ends
    edges = {min(edge + group, 3900) for edge in range(0, 3900, group)}
    assert set(ends) <= edges or set(ends) >= edges
    assert len(ends) == chunks
    assert data.facts.open_chunks_bytes == chunks * data.facts.row_groups[0].objects_bytes
