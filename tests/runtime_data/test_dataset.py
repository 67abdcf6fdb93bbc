"""Every mode gives every row, from any layout of files, in any process."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from parquet_samples import Write, table

from vramcast.errors import InputError, UnsupportedError
from vramcast.host.parquet import read_facts
from vramcast.runtime import LowMemDataset, rewrite_row_groups
from vramcast.runtime.data.dataset import MODES
from vramcast.runtime.data.rows import Rows
from vramcast.runtime.data.stores import GroupStore, SliceStore
from vramcast.units import MiB


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def open_mode(path: object, mode: str, folder: Path, **options: object) -> LowMemDataset:
    return LowMemDataset(path, mode=mode, cache_dir=folder / "cache", **options)


def test_every_mode_gives_every_row(write: Write, mode: str, tmp_path: Path) -> None:
    data = open_mode(write(97, group=10), mode, tmp_path)
    expected = table(97).to_pylist()
    assert len(data) == 97
    assert [data[i] for i in range(97)] == expected
    assert data[-1] == expected[96]


def test_many_rows_come_in_the_asked_order(write: Write, mode: str, tmp_path: Path) -> None:
    data = open_mode(write(60, group=7), mode, tmp_path)
    wanted = [59, 0, 31, 31, 8, 58, -60]
    assert [row["number"] for row in data.__getitems__(wanted)] == [59, 0, 31, 31, 8, 58, 0]


@pytest.mark.parametrize("index", [97, -98, 10**9])
def test_a_row_outside_is_an_index_error(write: Write, index: int) -> None:
    with pytest.raises(IndexError, match="97 rows"):
        LowMemDataset(write(97))[index]


def test_the_length_comes_from_the_footer_alone(write: Write) -> None:
    path = write(100, compression="none")
    data = bytearray(path.read_bytes())
    data[4:400] = bytes(396)  # the pages of the first row group
    path.write_bytes(data)
    assert len(LowMemDataset(path)) == 100


def test_columns_are_projected_and_keep_the_asked_order(
    write: Write, mode: str, tmp_path: Path
) -> None:
    data = open_mode(write(20), mode, tmp_path, columns=["response", "prompt"])
    assert list(data[3]) == ["response", "prompt"]
    with pytest.raises(UnsupportedError, match=r"'respons'.*response"):
        open_mode(write(20), mode, tmp_path, columns=["respons"])


def test_many_files_are_one_dataset(write: Write, mode: str, tmp_path: Path) -> None:
    for part in range(3):
        write(11, name=f"parts/{part}.parquet", start=11 * part, group=4)
    for source in (
        tmp_path / "parts",
        str(tmp_path / "parts/*.parquet"),
        sorted((tmp_path / "parts").iterdir()),
    ):
        data = open_mode(source, mode, tmp_path)
        assert [data[i]["number"] for i in range(33)] == list(range(33))


def test_hive_partitions_become_columns(write: Write, mode: str, tmp_path: Path) -> None:
    for year, lang in ((2023, "zh"), (2024, "en"), (2024, "__HIVE_DEFAULT_PARTITION__")):
        write(5, name=f"hive/year={year}/lang={lang}/part.parquet", start=year)
    write(5, name="hive/_temporary/part.parquet")  # left by a writer that died
    data = open_mode(tmp_path / "hive", mode, tmp_path)
    assert len(data) == 15
    assert [(data[i]["year"], data[i]["lang"]) for i in (0, 5, 10)] == [
        (2023, "zh"),
        (2024, None),
        (2024, "en"),
    ]


def test_nested_columns_come_back_as_python_values(mode: str, tmp_path: Path) -> None:
    rows = [
        {
            "id": n,
            "turns": [{"role": "user", "text": "你好" * n}] * (n % 3),
            "tags": {"a": [n, None]},
            "none": None,
        }
        for n in range(25)
    ]
    path = tmp_path / "nested.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=6)
    data = open_mode(path, mode, tmp_path)
    assert [data[i] for i in range(25)] == rows
    assert open_mode(path, mode, tmp_path, columns=["turns"])[4] == {"turns": rows[4]["turns"]}


def test_a_nested_size_is_an_estimate_and_says_so(tmp_path: Path) -> None:
    rows = pa.table(
        {"deep": [[[{"a": [n, None]}] * (n % 3)] for n in range(3000)], "n": range(3000)}
    )
    pq.write_table(rows, tmp_path / "deep.parquet")
    facts = read_facts(tmp_path / "deep.parquet")
    assert {column.name: column.exact for column in facts.columns} == {"deep": False, "n": True}
    assert rows.nbytes / 2 < facts.decoded_bytes < rows.nbytes * 2


def test_a_column_name_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    pq.write_table(
        pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]),
        tmp_path / "twice.parquet",
    )
    with pytest.raises(InputError, match=r"twice.parquet: \['a'\] occur more than once"):
        LowMemDataset(tmp_path / "twice.parquet")


def test_facts_give_arrows_size_without_reading_data(write: Write) -> None:
    path = write(5000, group=5000)
    facts = read_facts(path)
    real = pq.read_table(path)
    assert facts.exact
    assert facts.decoded_bytes == real.nbytes
    assert {c.name: c.decoded_bytes for c in facts.columns}["number"] == 40_000 + 625


def test_repeated_text_is_counted_decoded_not_as_its_dictionary(tmp_path: Path) -> None:
    path = tmp_path / "repeated.parquet"
    pq.write_table(pa.table({"text": ["x" * 1000] * 2000}), path)
    assert read_facts(path).encoded_bytes < 10_000
    assert read_facts(path).decoded_bytes == pytest.approx(2_008_000, rel=0.001)


def test_five_thousand_chat_rows_are_mebibytes_not_gigabytes(tmp_path: Path) -> None:
    """The rows of the chat model's data: about 3.3 KB of UTF-8 each, 16 MiB in Arrow."""
    path = tmp_path / "chat.parquet"
    rows = {"prompt": ["问题" * 130] * 5000, "response": ["回答" * 430] * 5000}
    pq.write_table(pa.table(rows), path)
    facts = read_facts(path)
    assert facts.decoded_bytes == pq.read_table(path).nbytes == 5000 * (780 + 2580) + 2 * 4 * 5000
    assert 15 * MiB < facts.decoded_bytes < 17 * MiB


def test_a_giant_row_group_is_refused_with_the_ways_out(write: Write, tmp_path: Path) -> None:
    path = write(5000, group=5000)
    with pytest.raises(InputError, match=r"row group 0 of 1: 5,000 rows.*rewrite_row_groups.*mmap"):
        LowMemDataset(path, budget_bytes=100_000)
    facts = rewrite_row_groups(path, tmp_path / "small.parquet", group_bytes=50_000)
    assert facts.num_rows == 5000
    assert facts.largest_group.decoded_bytes < 60_000
    with pytest.warns(
        UserWarning,
        match=r"budget of 97\.66 KiB holds the largest row group.*Raise budget_bytes to",
    ):
        data = LowMemDataset(tmp_path / "small.parquet", budget_bytes=100_000)
    assert [data[i]["number"] for i in range(0, 5000, 111)] == list(range(0, 5000, 111))
    with pytest.raises(InputError, match="exists already"):
        rewrite_row_groups(path, tmp_path / "small.parquet")
    assert not list(tmp_path.glob("*.partial"))


def row_of(rows: Rows, offset: int) -> dict[str, object]:
    row: dict[str, object] = {}
    rows.fill([(row, offset)])
    return row


def test_a_giant_row_group_is_read_in_slices_by_ultra(write: Write) -> None:
    facts = read_facts(write(5000, group=5000))
    store = SliceStore(facts, slice_bytes=20_000)
    assert len(store.ends) > 10
    for index in (4999, 0, 1, 2500, 2499, 4998):
        chunk = next(number for number, end in enumerate(store.ends) if index < end)
        held = store.load(chunk)
        start = store.ends[chunk - 1] if chunk else 0
        assert row_of(held, index - start)["number"] == index
        assert held.nbytes < 30_000


def test_the_cache_of_row_groups_never_exceeds_its_room(write: Write) -> None:
    facts = read_facts(write(1000, group=10))
    room = 5 * facts.max_held_bytes
    store = GroupStore(facts, room + facts.scratch_bytes(0))
    for chunk in [*range(100), *range(99, -1, -1), 5, 50, 5]:
        store.load(chunk)
        assert (
            store.held.held_bytes == sum(rows.nbytes for rows in store.held._rows.values()) <= room
        )
    assert len(store.held._rows) >= 4


def test_what_is_held_of_many_columns_is_more_than_their_data(tmp_path: Path) -> None:
    """Forty columns of ten numbers: 3 KB of data, 36 KB of objects."""
    columns: dict[str, object] = {f"c{n}": range(100) for n in range(38)}
    columns |= {"text": ["a"] * 100, "ids": [[1]] * 100}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=10)
    facts = read_facts(tmp_path / "t.parquet")
    assert facts.row_groups[0].objects_bytes == (38 + 2 + 2) * 900
    store = GroupStore(facts, 4 * MiB)
    store.load(0)
    assert store.held.held_bytes >= facts.row_groups[0].objects_bytes


def test_ultra_holds_small_row_groups_up_to_a_slice(write: Write) -> None:
    facts = read_facts(write(1000, group=10))
    store = SliceStore(facts, slice_bytes=5 * facts.max_held_bytes)
    for chunk in [*range(100), 3, 99]:
        store.load(chunk, wanted=10)
        assert store.held.held_bytes <= store.held.limit_bytes
    assert len(store.held._rows) >= 4


def test_memory_of_a_dropped_row_group_serves_the_next(tmp_path: Path) -> None:
    """Row groups of different sizes, each above what gets a mapping of its own, in room for two."""
    texts = [f"{n}:" + chr(0x4E00 + n % 3000) * (120 + n // 1000 * 3) for n in range(10_000)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "t.parquet", row_group_size=1000)
    facts = read_facts(tmp_path / "t.parquet")
    store = GroupStore(facts, 2 * facts.max_held_bytes + facts.scratch_bytes(0))
    seen: set[int] = set()
    for chunk in [*range(9, -1, -1), *range(10), 4, 9, 0]:
        rows = store.load(chunk)
        assert rows.memory is not None
        seen.add(id(rows.memory))
        assert [row_of(rows, n)["text"] for n in (0, 500, 999)] == [
            texts[chunk * 1000 + n] for n in (0, 500, 999)
        ]
    assert len(seen) < 23


COLUMNS = {
    "text": ["a", "问题", "", "x" * 300],
    "text or null": [None, "b", None, "d"],
    "number": [1, -(2**62), 0, 7],
    "number or null": [1.5, None, None, -2.0],
    "ids": [[1, 2, 3], [], [4], [5, 6]],
    "ids or null": [[1], None, [], [2, 3]],
    "ids with nulls": [[1, None], [None], [], [2]],
    "flag": [True, None, False, True],
    "nested": [
        {"role": "user", "turns": ["a"]},
        None,
        {"role": None, "turns": []},
        {"role": "x", "turns": ["b", "c"]},
    ],
    "all null": [None] * 4,
    "view": ["short", "longer than twelve bytes", None, ""],
}


@pytest.mark.parametrize("copies", [1, 3000], ids=["small", "large"])
def test_rows_are_what_arrow_says(mode: str, tmp_path: Path, copies: int) -> None:
    types = {
        "number": pa.int64(),
        "ids": pa.list_(pa.int32()),
        "number or null": pa.float32(),
        "all null": pa.string(),
        "view": pa.string_view(),
    }
    table = pa.table(
        {name: pa.array(values * copies, type=types.get(name)) for name, values in COLUMNS.items()}
    )
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=3000)
    data = open_mode(tmp_path / "t.parquet", mode, tmp_path)
    assert data.__getitems__(range(4)) == table.slice(0, 4).to_pylist()
    last = table.num_rows - 3
    assert data.__getitems__([last, last + 1, last + 2]) == table.slice(last, 3).to_pylist()


def test_a_row_group_is_decoded_once_while_it_is_held(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = GroupStore(read_facts(write(100, group=10)), 64 * MiB)
    first = store.load(3)
    monkeypatch.setattr(store._reader, "read", lambda index: pytest.fail(f"decoded {index} again"))
    assert store.load(3) is first


def test_pickling_leaves_open_files_behind(write: Write, mode: str, tmp_path: Path) -> None:
    data = open_mode(write(50), mode, tmp_path)
    assert data[7]["number"] == 7
    packed = pickle.dumps(data)
    assert len(packed) < 20_000
    assert pickle.loads(packed)[7] == data[7]


def read_in_child(data: LowMemDataset, queue: multiprocessing.Queue) -> None:
    queue.put([data[i]["number"] for i in (0, 49, 25)])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_read_what_the_parent_opened(
    write: Write, mode: str, method: str, tmp_path: Path
) -> None:
    data = open_mode(write(50), mode, tmp_path)
    assert data[25]["number"] == 25
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=read_in_child, args=(data, queue))
    child.start()
    assert queue.get(timeout=60) == [0, 49, 25]
    child.join(timeout=60)
    assert child.exitcode == 0


def test_a_fork_opens_its_own_files_but_shares_a_table(write: Write) -> None:
    for mode, shared in (("row-groups", False), ("table", True)):
        data = LowMemDataset(write(50), mode=mode)
        before = data._opened()
        pid = os.fork()
        if pid == 0:
            os._exit(0 if (data._opened() is before) is shared else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_torch_is_not_needed(write: Write) -> None:
    path = write(20)
    code = (
        "import sys; sys.modules['torch'] = None; from vramcast.runtime import LowMemDataset, RowGroupSampler; "
        f"d = LowMemDataset({str(path)!r}); "
        "print(sum(len(d.__getitems__(b)) for b in RowGroupSampler(d, batch_size=3)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "20"


def test_an_unknown_mode_and_a_bad_budget_are_named(write: Write) -> None:
    with pytest.raises(UnsupportedError, match="row-groups"):
        LowMemDataset(write(5), mode="rowgroups")
    with pytest.raises(InputError, match="budget_bytes=0"):
        LowMemDataset(write(5), budget_bytes=0)


@pytest.mark.slow
def test_tiny_row_groups_do_not_use_up_the_mappings_of_a_process(write: Write) -> None:
    """Linux allows a process 65,530 mappings; one for each of many tiny row groups would run out of them."""
    data = LowMemDataset(write(3000, group=1), mode="table")
    with open("/proc/self/maps") as maps:
        assert sum(1 for _ in maps) < 3000
    assert data[2999]["number"] == 2999
