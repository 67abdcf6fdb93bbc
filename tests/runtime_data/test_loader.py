"""Loader settings: valid for DataLoader on any machine, agreed between ranks, explained."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parquet_samples import Write

from vramcast.errors import InputError
from vramcast.host.limits import Limits
from vramcast.runtime import LoaderNeeds, LowMemDataset, RowGroupSampler, loader_policy
from vramcast.runtime.data.stores import GroupReader
from vramcast.units import GiB, MiB

TOKENS = (98_304,) * 3


def limits(
    free: int | None = 64 * GiB,
    shm: int | None = 32 * GiB,
    cpus: int = 16,
    cgroup: int | None = None,
) -> Limits:
    return Limits(
        ram_bytes=128 * GiB, available_bytes=free, cgroup_limit_bytes=cgroup,
        cgroup_used_bytes=None if cgroup is None else 0, shm_bytes=shm, shm_free_bytes=shm, cpus=cpus,
    )  # fmt: skip


def needs(**changes: object) -> LoaderNeeds:
    return LoaderNeeds(**{"batch_size": 24, "tensor_bytes": TOKENS, **changes})  # type: ignore[arg-type]


def test_a_roomy_machine_gets_workers_and_pinning() -> None:
    policy = loader_policy(needs(), limits=limits(), ranks=2)
    assert (policy.num_workers, policy.prefetch_factor, policy.pin_memory, policy.batch_size) == (
        7,
        2,
        True,
        24,
    )
    assert "16 CPUs for 2 ranks" in policy.reasons[0]


def test_a_machine_with_one_cpu_gets_no_worker_and_no_prefetch() -> None:
    policy = loader_policy(needs(), limits=limits(cpus=1))
    assert (policy.num_workers, policy.prefetch_factor) == (0, None)


def test_dockers_64_mib_of_shared_memory_limit_the_workers() -> None:
    large = needs(batch_size=256, tensor_bytes=(8 * MiB,) * 3)
    policy = loader_policy(large, limits=limits(shm=64 * MiB))
    assert policy.num_workers <= 1
    assert any("/dev/shm" in reason for reason in policy.reasons)


def test_a_container_limit_counts_not_the_hosts_ram() -> None:
    heavy = needs(worker_bytes=400 * MiB)
    free = loader_policy(heavy, limits=limits())
    boxed = loader_policy(heavy, limits=limits(cgroup=2 * GiB))
    assert boxed.num_workers < free.num_workers
    assert "free per rank" in boxed.reasons[0]


def test_batch_is_lowered_only_when_the_batch_does_not_fit() -> None:
    """Token batches are kilobytes: little RAM is no reason for a batch of one, as a rule of thumb once had it."""
    assert loader_policy(needs(main_bytes=2 * GiB), limits=limits(free=4 * GiB)).batch_size == 24
    images = needs(tensor_bytes=(24 * 100 * MiB,))
    assert loader_policy(images, limits=limits(free=3 * GiB)).batch_size < 24


@settings(max_examples=200, deadline=None)
@given(
    batch=st.integers(1, 4096), row=st.integers(1, 2 * MiB), free=st.none() | st.integers(0, 2**42),
    shm=st.none() | st.integers(0, 2**40), cpus=st.integers(1, 512), ranks=st.integers(1, 16),
    main=st.integers(0, 2**40), worker=st.integers(1, 2**36), gpu=st.booleans(), tensors=st.integers(1, 5),
)  # fmt: skip
def test_any_machine_gets_settings_dataloader_accepts(
    batch: int, row: int, free: int | None, shm: int | None, cpus: int, ranks: int, main: int, worker: int, gpu: bool,
    tensors: int,
) -> None:  # fmt: skip
    from torch.utils.data import DataLoader

    asked = LoaderNeeds(
        batch_size=batch,
        tensor_bytes=(row * batch,) * tensors,
        main_bytes=main,
        worker_bytes=worker,
        uses_gpu=gpu,
    )
    policy = loader_policy(asked, limits=limits(free, shm, cpus), ranks=ranks)
    DataLoader([0, 1], **policy.dataloader_kwargs())  # raises on a combination it does not accept
    assert 1 <= policy.batch_size <= batch
    assert policy.batch_size <= policy.max_batch_size
    assert len(policy.reasons) == 4
    assert all(reason.endswith(".") for reason in policy.reasons)
    if free is not None and policy.num_workers:
        held = policy.num_workers * (worker + 2 * row * tensors * policy.batch_size)
        assert held + main <= free // ranks


@pytest.mark.parametrize(
    ("cpus", "lanes", "workers"),
    [(4, 4, 2), (4, None, 3), (4, 1, 3), (5, 4, 4), (9, 4, 4), (3, 2, 2), (2, 4, 1), (1, 4, 0)],
)
def test_workers_divide_the_lanes(cpus: int, lanes: int | None, workers: int) -> None:
    policy = loader_policy(needs(lanes=lanes), limits=limits(cpus=cpus), ranks=1)
    assert policy.num_workers == workers
    assert ("lanes" in policy.reasons[0]) == (workers < min(cpus - 1, 8))


def test_three_workers_would_decode_what_two_share(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why: row groups decoded by workers that take batches in turn, as DataLoader's do."""
    decoded: list[int] = []
    real = GroupReader.read
    monkeypatch.setattr(
        GroupReader, "read", lambda self, index: decoded.append(index) or real(self, index)
    )
    path = write(2000, group=10)

    def count(workers: int) -> int:
        decoded.clear()
        readers = [LowMemDataset(path) for _ in range(workers)]
        for number, batch in enumerate(RowGroupSampler(readers[0], batch_size=20, lanes=4)):
            readers[number % workers].__getitems__(batch)
        return len(decoded)

    assert count(2) < 1.1 * 200
    assert count(3) > 2.5 * 200


def test_one_of_a_kind_is_said_in_the_singular() -> None:
    assert (
        loader_policy(needs(), limits=limits(cpus=2))
        .reasons[0]
        .startswith("1 worker: 2 CPUs for 1 rank,")
    )
    assert (
        loader_policy(needs(), limits=limits(cpus=1))
        .reasons[0]
        .startswith("0 workers: 1 CPU for 1 rank,")
    )


def test_nonsense_is_refused() -> None:
    with pytest.raises(InputError, match="batch_size=0"):
        needs(batch_size=0)
    with pytest.raises(InputError, match="lanes=0"):
        needs(lanes=0)
    with pytest.raises(InputError, match="positive"):
        needs(tensor_bytes=())


AGREE = """
import json, os, sys
import torch.distributed as dist
from vramcast.host.limits import Limits
from vramcast.runtime import LoaderNeeds, loader_policy
from vramcast.units import GiB, MiB
dist.init_process_group("gloo")
rank = dist.get_rank()
free = (64 * GiB, 1 * GiB)[rank]
limits = Limits(ram_bytes=None, available_bytes=free, cgroup_limit_bytes=None, cgroup_used_bytes=None, shm_bytes=None,
                shm_free_bytes=None, cpus=16)
policy = loader_policy(LoaderNeeds(batch_size=24, tensor_bytes=(24 * MiB,) * 3, worker_bytes=100 * MiB), limits=limits)
print(json.dumps([rank, policy.num_workers, policy.prefetch_factor, policy.pin_memory, policy.batch_size,
                  list(policy.reasons)]), flush=True)
dist.destroy_process_group()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
def test_ranks_agree_on_what_the_tightest_can_bear(tmp_path: Path) -> None:
    script = tmp_path / "agree.py"
    script.write_text(AGREE)
    rendezvous = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    environment = {**os.environ, **rendezvous}
    runs = [
        subprocess.Popen(
            [sys.executable, str(script)], stdout=subprocess.PIPE, text=True,
            env={**environment, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"},
        )
        for rank in range(2)
    ]  # fmt: skip
    first, second = (json.loads(run.communicate(timeout=120)[0]) for run in runs)
    assert first[1:5] == second[1:5]
    assert any("another rank can bear no more" in reason for reason in first[5])
    assert not any("another rank" in reason for reason in second[5])


@pytest.mark.slow
@pytest.mark.parametrize("rows", [256, 24])
def test_a_worker_gives_large_blocks_back(rows: int) -> None:
    """Frees of one thread's tensors in another leave glibc's heap in pieces; with the threshold fixed they do not."""
    code = """
import sys, threading, queue
import torch
from vramcast.host.processes import family_use
from vramcast.runtime import return_large_blocks
if sys.argv[1] == "steady":
    return_large_blocks()
todo = queue.Queue(maxsize=3)
def drain():
    while (item := todo.get()) is not None:
        shared = [tensor.share_memory_() for tensor in item]
        todo.task_done()
def send(batches):
    for _ in range(batches):
        todo.put([torch.ones(int(sys.argv[2]), 512, dtype=torch.int64) for _ in range(3)])
thread = threading.Thread(target=drain); thread.start()
send(1); todo.join()  # what a thread and a first batch take is not what is compared
before = family_use().private_bytes
send(150)
todo.put(None); thread.join()
print(family_use().private_bytes - before)
"""
    grown = {
        kind: int(
            subprocess.run(
                [sys.executable, "-c", code, kind, str(rows)], capture_output=True, text=True, check=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            ).stdout
        )
        for kind in ("steady", "plain")
    }  # fmt: skip
    batch_bytes = 3 * rows * 512 * 8
    # A queue of three, one being made and one being shared: more than these cannot be alive at once.
    assert grown["steady"] < 5 * batch_bytes
    assert grown["steady"] <= grown["plain"] + batch_bytes
