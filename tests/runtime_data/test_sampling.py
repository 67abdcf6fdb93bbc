"""Every row once, the same order whatever the workers, and exact resumption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parquet_samples import Write

from vramcast.errors import InputError, UnsupportedError
from vramcast.host.data_files import DataFile
from vramcast.host.parquet import read_facts
from vramcast.host.parquet_facts import ParquetFacts, RowGroup
from vramcast.runtime import LowMemDataset, RowGroupSampler
from vramcast.runtime.data.stores import GroupReader
from vramcast.units import MiB


def facts_of(groups: list[int], row_bytes: int = 100) -> ParquetFacts:
    return ParquetFacts(
        files=(DataFile(path="x", size_bytes=0, modified_ns=0),), columns=(), schema_text="", opened_bytes=0,
        row_groups=tuple(
            RowGroup(file=0, group=n, num_rows=rows, encoded_bytes=rows, decoded_bytes=rows * row_bytes)
            for n, rows in enumerate(groups)
        ),
        ends=tuple(accumulate(groups)),
    )  # fmt: skip


def dataset_of(groups: list[int]) -> SimpleNamespace:
    return SimpleNamespace(facts=facts_of(groups), mode="row-groups", budget_bytes=2**26)


layouts = st.lists(st.integers(1, 40), min_size=1, max_size=12)


@settings(max_examples=300, deadline=None)
@given(
    groups=layouts, batch=st.integers(1, 17), ranks=st.integers(1, 7), window=st.integers(0, 5000),
    shuffle=st.sampled_from(["groups", "full", "none"]), epoch=st.integers(0, 3), seed=st.integers(0, 2**40),
    lanes=st.integers(1, 5),
)  # fmt: skip
def test_every_row_comes_exactly_once_over_all_ranks(
    groups: list[int],
    batch: int,
    ranks: int,
    window: int,
    shuffle: str,
    epoch: int,
    seed: int,
    lanes: int,
) -> None:
    seen: list[int] = []
    counts: list[int] = []
    for rank in range(ranks):
        sampler = RowGroupSampler(
            dataset_of(groups), batch_size=batch, shuffle=shuffle, seed=seed, rank=rank, world_size=ranks,
            window_bytes=window, allow_uneven=True, lanes=lanes if shuffle == "groups" else None,
        )  # fmt: skip
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert len(batches) == len(sampler)
        assert all(1 <= len(rows) <= batch for rows in batches)
        counts.append(len(batches))
        seen += [row for rows in batches for row in rows]
    assert sorted(seen) == list(range(sum(groups)))
    assert max(counts) - min(counts) <= 1
    if batch > 1 and sum(groups) >= 2 * ranks:
        assert len(set(counts)) == 1


@settings(max_examples=100, deadline=None)
@given(groups=layouts, batch=st.integers(1, 9), ranks=st.integers(1, 4), lanes=st.integers(1, 4))
def test_drop_last_gives_full_batches_and_no_row_twice(
    groups: list[int], batch: int, ranks: int, lanes: int
) -> None:
    options = {"batch_size": batch, "world_size": ranks, "drop_last": True, "lanes": lanes}
    rows = [
        row
        for rank in range(ranks)
        for b in RowGroupSampler(dataset_of(groups), rank=rank, **options)
        for row in (b if len(b) == batch else pytest.fail("a short batch"))
    ]
    assert len(rows) == len(set(rows)) == ranks * batch * (sum(groups) // ranks // batch)


@settings(max_examples=200, deadline=None)
@given(
    groups=layouts, batch=st.integers(1, 9), window=st.integers(0, 5000), lanes=st.integers(1, 4), data=st.data()
)  # fmt: skip
def test_a_state_continues_where_it_was_taken(
    groups: list[int], batch: int, window: int, lanes: int, data: st.DataObject
) -> None:
    def sampler() -> RowGroupSampler:
        return RowGroupSampler(
            dataset_of(groups), batch_size=batch, seed=3, window_bytes=window, lanes=lanes
        )

    first = sampler()
    first.set_epoch(5)
    whole = list(first)
    cut = data.draw(st.integers(0, len(whole)))
    again = sampler()
    again.load_state_dict(json.loads(json.dumps(first.state_dict(batches=cut))))
    again.set_epoch(5)  # a training loop names the epoch it resumes
    assert list(again) == whole[cut:]
    assert list(again) == whole  # the next pass is whole again


def test_epochs_and_seeds_differ_and_repeat() -> None:
    def rows(seed: int, epoch: int) -> list[list[int]]:
        sampler = RowGroupSampler(dataset_of([50] * 20), batch_size=10, seed=seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    assert rows(0, 0) == rows(0, 0)
    assert len({str(rows(seed, epoch)) for seed in (0, 1) for epoch in (0, 1, 2)}) == 6


def test_the_order_is_pinned() -> None:
    """A state saved by one version must be continued by the next, so a change of this order is a breaking change."""
    sampler = RowGroupSampler(dataset_of([3, 4, 5]), batch_size=4, seed=7, window_bytes=500)
    assert list(sampler) == PINNED


PINNED = [[0, 2, 1, 10], [8, 11, 9, 7], [3, 6, 4, 5]]


def test_a_state_of_another_order_is_refused() -> None:
    state = RowGroupSampler(dataset_of([50] * 4), batch_size=10, rank=0, world_size=2).state_dict()
    other = RowGroupSampler(dataset_of([50] * 4), batch_size=12, rank=0, world_size=2)
    with pytest.raises(InputError, match="batch_size 10 then, 12 now"):
        other.load_state_dict(state)
    with pytest.raises(InputError, match="row_groups"):
        RowGroupSampler(
            dataset_of([40, 60] * 2), batch_size=10, rank=0, world_size=2
        ).load_state_dict(state)


def test_ranks_that_would_wait_for_ever_are_refused() -> None:
    with pytest.raises(InputError, match="3 rows cannot give 2 ranks"):
        RowGroupSampler(dataset_of([3]), batch_size=1, rank=0, world_size=2)
    with pytest.raises(InputError, match="rank=2 is not one of 2"):
        RowGroupSampler(dataset_of([3]), batch_size=1, rank=2, world_size=2)
    with pytest.raises(UnsupportedError, match="groups"):
        RowGroupSampler(dataset_of([3]), batch_size=1, shuffle="group")


def batch_label_spread(order: list[int], batch: int = 50) -> float:
    """Standard deviation over batches of the share of label 1, where the second half of the file has label 1."""
    labels = np.array(order) >= len(order) // 2
    return float(labels[: len(labels) // batch * batch].reshape(-1, batch).mean(axis=1).std())


def test_shuffle_quality_is_close_to_a_full_shuffle() -> None:
    """A file sorted by label, 1 % of it held at a time: batches are almost as mixed as in a full shuffle."""
    groups = [100] * 1000
    window = 10 * 100 * 100  # ten row groups
    spread = {}
    adjacent = {}
    for shuffle in ("groups", "full", "none"):
        sampler = RowGroupSampler(
            dataset_of(groups), batch_size=50, shuffle=shuffle, seed=1, window_bytes=window
        )
        order = [row for rows in sampler for row in rows]
        spread[shuffle] = batch_label_spread(order)
        adjacent[shuffle] = float(np.mean(np.abs(np.diff(order)) == 1))
    assert spread["none"] > 0.45  # whole batches of one label
    assert spread["full"] == pytest.approx(0.5 / 50**0.5, rel=0.1)  # binomial
    # ten groups of one label each, then fifty rows of those: 2.4 times the spread of a full shuffle
    assert spread["groups"] == pytest.approx((0.25 / 10 + 0.25 / 50) ** 0.5, rel=0.1)
    assert adjacent["groups"] < 0.005


def test_a_window_of_half_the_file_is_as_good_as_a_full_shuffle() -> None:
    orders = {
        shuffle: [
            row
            for rows in RowGroupSampler(
                dataset_of([10] * 2000),
                batch_size=50,
                shuffle=shuffle,
                window_bytes=1000 * 10 * 100,
            )
            for row in rows
        ]
        for shuffle in ("groups", "full")
    }
    assert batch_label_spread(orders["groups"]) == pytest.approx(
        batch_label_spread(orders["full"]), rel=0.15
    )
    moved = {
        name: float(np.mean(np.abs(np.array(order) - np.arange(20_000))))
        for name, order in orders.items()
    }
    assert moved["groups"] == pytest.approx(moved["full"], rel=0.05)
    assert moved["full"] == pytest.approx(20_000 / 3, rel=0.02)


@pytest.mark.parametrize("batch", [8, 32, 100])
def test_workers_that_divide_the_lanes_decode_different_row_groups(
    write: Write, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four hundred row groups, forty in a window, read by workers that take batches in turn as DataLoader's do."""
    decoded: list[int] = []
    real = GroupReader.read
    monkeypatch.setattr(
        GroupReader, "read", lambda self, index: decoded.append(index) or real(self, index)
    )
    path = write(4000, group=10)
    facts = read_facts(path)
    budget = facts.scratch_bytes(0) + 41 * facts.max_held_bytes

    def count(lanes: int, workers: int) -> int:
        decoded.clear()
        readers = [LowMemDataset(path, budget_bytes=budget) for _ in range(workers)]
        sampler = RowGroupSampler(readers[0], batch_size=batch, lanes=lanes)
        rows = [
            row for n, rows in enumerate(sampler) for row in readers[n % workers].__getitems__(rows)
        ]
        assert sorted(row["number"] for row in rows) == list(range(4000))
        return len(decoded)

    assert count(1, 1) == 400
    assert count(1, 2) > 1.9 * 400
    # Lanes meet at the edges of row groups, save in the last window, which has to come out even.
    assert max(count(4, workers) for workers in (1, 2, 4)) <= 400 + 3 + 4


@pytest.mark.parametrize(("ranks", "batch"), [(1, 64), (3, 50)])
def test_a_giant_row_group_is_decoded_once_by_ultra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, batch: int
) -> None:
    """One row group of 30 MB, read in four slices: each rank goes through it once, whatever the shuffle."""
    started: list[int] = []
    real = GroupReader.slices
    monkeypatch.setattr(
        GroupReader,
        "slices",
        lambda self, index, rows: started.append(index) or real(self, index, rows),
    )
    texts = [f"{n}:" + "x" * 3000 for n in range(10_000)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "giant.parquet", row_group_size=10_000)
    seen: list[int] = []
    for rank in range(ranks):
        data = LowMemDataset(tmp_path / "giant.parquet", mode="ultra")
        sampler = RowGroupSampler(data, batch_size=batch, rank=rank, world_size=ranks)
        batches = [[row["text"] for row in data.__getitems__(rows)] for rows in sampler]
        numbers = [int(text.partition(":")[0]) for texts in batches for text in texts]
        assert numbers != sorted(numbers)
        seen += numbers
    assert sorted(seen) == list(range(10_000))
    assert started == [0] * ranks
    assert RowGroupSampler(data, batch_size=batch).state_dict()["order"]["slice_bytes"] == 8 * MiB


def test_lanes_are_chosen_by_the_row_groups_of_a_window() -> None:
    def lanes(window_groups: int, **options: object) -> int:
        return RowGroupSampler(
            dataset_of([10] * 400), batch_size=5, window_bytes=window_groups * 1000, **options
        ).lanes

    assert [lanes(groups) for groups in (1, 15, 16, 31, 32, 400)] == [1, 1, 2, 2, 4, 4]
    assert lanes(400, shuffle="full") == lanes(400, shuffle="none") == 1
    with pytest.raises(InputError, match="lanes=2 with shuffle='full'"):
        lanes(400, shuffle="full", lanes=2)
    with pytest.raises(InputError, match="lanes=0"):
        lanes(400, lanes=0)


def numbers(batch: list[dict[str, object]]) -> list[object]:
    return [row["number"] for row in batch]


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_the_order_is_the_same_whatever_the_worker_count(write: Write, method: str) -> None:
    from torch.utils.data import DataLoader

    data = LowMemDataset(write(500, group=20))

    def order(workers: int) -> list[list[int]]:
        sampler = RowGroupSampler(data, batch_size=16, seed=2)
        context = method if workers else None
        return list(
            DataLoader(
                data, batch_sampler=sampler, num_workers=workers, collate_fn=numbers, multiprocessing_context=context,
                persistent_workers=workers > 0,
            )
        )  # fmt: skip

    alone = order(0)
    assert sorted(n for batch in alone for n in batch) == list(range(500))
    assert order(2) == alone
    if method == "fork":
        assert order(1) == order(3) == alone


def test_persistent_workers_serve_the_next_epoch(write: Write) -> None:
    from torch.utils.data import DataLoader

    data = LowMemDataset(write(200, group=20))
    sampler = RowGroupSampler(data, batch_size=16)
    loader = DataLoader(
        data, batch_sampler=sampler, num_workers=2, collate_fn=numbers, persistent_workers=True
    )
    epochs = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        epochs.append([n for batch in loader for n in batch])
        assert sorted(epochs[-1]) == list(range(200))
    assert len({tuple(order) for order in epochs}) == 3


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("cut", [0, 1, 9, 31, 32])
def test_torchdatas_stateful_loader_resumes_exactly(write: Write, workers: int, cut: int) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    data = LowMemDataset(write(500, group=20))

    def loader() -> StatefulDataLoader:
        sampler = RowGroupSampler(data, batch_size=16, seed=2)
        return StatefulDataLoader(
            data, batch_sampler=sampler, num_workers=workers, collate_fn=numbers
        )

    whole = list(loader())
    assert len(whole) == 32
    first = loader()
    iterator = iter(first)
    got = [next(iterator) for _ in range(cut)]
    state = first.state_dict()
    again = loader()
    again.load_state_dict(state)
    assert got + list(again) == whole


TRAINING = """
import json, os, sys
from torch.utils.data import DataLoader
from vramcast.runtime import LowMemDataset, RowGroupSampler

def numbers(rows):
    return [row["number"] for row in rows]

source, log, state, kill_after = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
data = LowMemDataset(source)
sampler = RowGroupSampler(data, batch_size=8, seed=4)
done = 0
if os.path.exists(state):
    saved = json.load(open(state))
    sampler.load_state_dict(saved)
    done = saved["batches"]
for batch in DataLoader(data, batch_sampler=sampler, num_workers=2, collate_fn=numbers, prefetch_factor=4):
    done += 1
    with open(state + ".new", "w") as file:
        json.dump({**sampler.state_dict(batches=done), "rows": batch}, file)
    os.replace(state + ".new", state)  # a step and its state are one: this is the commit of the step
    with open(log, "a") as file:
        file.write(json.dumps(batch) + "\\n")
    if done == kill_after:
        print("ready", flush=True)
        sys.stdin.read()
"""


@pytest.mark.slow
def test_a_killed_run_resumes_without_loss_or_repetition(write: Write, tmp_path: Path) -> None:
    source, log, state = write(400, group=20), tmp_path / "log", tmp_path / "state.json"
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    for kill_after in (13, 31):
        run = subprocess.Popen(
            [sys.executable, str(script), str(source), str(log), str(state), str(kill_after)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
    subprocess.run(
        [sys.executable, str(script), str(source), str(log), str(state), "-1"], check=True
    )
    batches = [json.loads(line) for line in log.read_text().splitlines()]
    data = LowMemDataset(source)
    expected = list(RowGroupSampler(data, batch_size=8, seed=4))
    assert batches == expected
    assert sorted(n for batch in batches for n in batch) == list(range(400))
