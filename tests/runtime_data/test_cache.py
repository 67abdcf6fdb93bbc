"""The Arrow cache: built once for all processes, never half, and never for other files."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

from parquet_samples import Write

from vramcast.host.parquet import read_facts
from vramcast.runtime import LowMemDataset
from vramcast.runtime import arrow_cache as cache


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
    ranks = [context.Process(target=build_and_count, args=(str(path), str(tmp_path), queue)) for _ in range(4)]
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
    names = {cache.cache_path(read_facts(path, columns), tmp_path) for columns in (None, ["prompt"], ["response"])}
    write(100, start=7)
    names.add(cache.cache_path(read_facts(path), tmp_path))
    assert len(names) == 4
