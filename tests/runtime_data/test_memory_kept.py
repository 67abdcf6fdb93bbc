"""What a reader really holds: RSS against the budget, in a process of its own, and what it decodes for a row."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vramcast.runtime import LowMemDataset
from vramcast.runtime.data.stores import GroupReader
from vramcast.units import MiB

READ = """
import random, sys
import psutil, pyarrow.parquet
from vramcast.runtime import LowMemDataset
process = psutil.Process()
path, mode, budget, random_rows = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
before = process.memory_info().rss
data = LowMemDataset(path, mode=mode, budget_bytes=budget)
rng, peak = random.Random(0), 0
for step in range(random_rows):
    index = rng.randrange(len(data))
    assert data[index]["prompt"].startswith(f"{index}:")
    peak = max(peak, process.memory_info().rss) if step % 20 == 0 else peak
print(peak - before)
"""


@pytest.fixture(scope="module")
def large_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200,000 rows, 180 MB decoded, row groups of 0.9 MB."""
    path = tmp_path_factory.mktemp("large") / "large.parquet"
    schema = pa.schema([("prompt", pa.string()), ("response", pa.string())])
    tail = "回答" * 140
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, 200_000, 1000):
            rows = range(start, start + 1000)
            columns = {
                "prompt": [f"{n}:{n * 7919 % 10007}" for n in rows],
                "response": [f"{n}{tail}" for n in rows],
            }
            writer.write_table(pa.table(columns, schema=schema))
    return path


def growth(path: Path, mode: str, budget: int, random_rows: int) -> int:
    command = [sys.executable, "-c", READ, str(path), mode, str(budget), str(random_rows)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [64 * MiB, 128 * MiB])
def test_row_groups_keep_to_their_budget(large_file: Path, budget: int) -> None:
    assert growth(large_file, "row-groups", budget, 1500) <= budget + 20e6


@pytest.mark.slow
def test_ultra_holds_less_than_half_of_what_the_table_holds(large_file: Path) -> None:
    assert (
        growth(large_file, "ultra", 64 * MiB, 400) < growth(large_file, "table", 64 * MiB, 400) / 2
    )


@pytest.mark.slow
def test_a_random_row_of_ultra_costs_one_row_group(
    large_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many milliseconds that is depends on the machine: see benchmarks/dataset.md."""
    decoded: list[int] = []
    real = GroupReader.read
    monkeypatch.setattr(
        GroupReader, "read", lambda self, index: decoded.append(index) or real(self, index)
    )
    data = LowMemDataset(large_file, mode="ultra")
    rng = random.Random(0)
    picks = [rng.randrange(len(data)) for _ in range(100)]
    assert [data[pick]["prompt"].startswith(f"{pick}:") for pick in picks] == [True] * 100
    assert len(decoded) <= 100
    assert max(data.facts.row_groups[index].decoded_bytes for index in decoded) < MiB


WORDS = [
    "".join(chr(0x4E00 + (n * 7919 + k * 104_729) % 3000) for k in range(1 + n % 4))
    for n in range(2000)
]
TEXTS = ["".join(WORDS[(n * 31 + k * k * 17) % 2000] for k in range(60)) for n in range(20_000)]


@pytest.fixture(scope="module")
def large_groups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty row groups of 18 MB each."""
    path = tmp_path_factory.mktemp("groups") / "groups.parquet"
    schema = pa.schema([("prompt", pa.string()), ("response", pa.string())])
    with pq.ParquetWriter(path, schema) as writer:
        for group in range(20):
            prompts = [f"{group * 20_000 + n}:{text}" for n, text in enumerate(TEXTS)]
            writer.write_table(
                pa.table([prompts, TEXTS[::-1]], schema=schema), row_group_size=20_000
            )
    return path


@pytest.mark.slow
@pytest.mark.parametrize("budget", [128 * MiB, 256 * MiB])
def test_large_row_groups_keep_to_the_budget_too(large_groups: Path, budget: int) -> None:
    """What decoding takes grows with the row group: a fixed reserve was exceeded by 56 MB here."""
    assert growth(large_groups, "row-groups", budget, 50) <= budget + 20e6


class CountingPool:
    """pyarrow's own pool, and how often it was emptied."""

    def __init__(self, pool: pa.MemoryPool) -> None:
        self.pool, self.emptied = pool, 0
        self.backend_name = pool.backend_name

    def release_unused(self) -> None:
        self.emptied += 1
        self.pool.release_unused()


@pytest.mark.slow
def test_ultra_empties_the_pool_after_large_decodings_only(
    large_file: Path, large_groups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Emptied every few small ones, a pool stood at another size whenever a worker waited, and was slower to fill."""
    pool = CountingPool(pa.default_memory_pool())
    monkeypatch.setattr(pa, "default_memory_pool", lambda: pool)
    small, large = (
        LowMemDataset(large_file, mode="ultra"),
        LowMemDataset(large_groups, mode="ultra"),
    )
    assert [small[1000 * group]["prompt"].partition(":")[0] for group in range(20)] == [
        str(1000 * group) for group in range(20)
    ]
    assert pool.emptied == 0
    assert large[0]["prompt"].startswith("0:")
    assert pool.emptied == 1


DECODED = """
import sys
import pyarrow as pa, pyarrow.parquet
from vramcast.host.parquet import read_facts
from vramcast.runtime.data.stores import GroupReader
facts = read_facts(sys.argv[1])
table = GroupReader(facts).read(0)
print(pa.default_memory_pool().max_memory(), facts.row_groups[0].decoding_bytes(), table.nbytes)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "options"),
    [
        (pa.table({"a": TEXTS, "b": TEXTS[::-1]}), {}),
        (
            pa.table({"a": TEXTS, "b": TEXTS[::-1]}),
            {"use_dictionary": False, "compression": "zstd"},
        ),
        (pa.table({"a": TEXTS}), {"compression": "none"}),
        (pa.table({"a": TEXTS[:50] * 400}), {}),
        (pa.table({"a": range(500_000), "b": [n / 7 for n in range(500_000)]}), {}),
        (
            pa.table(
                {
                    "a": [list(range(n % 50)) for n in range(20_000)],
                    "b": [[{"t": text}] for text in TEXTS],
                }
            ),
            {},
        ),
        (pa.table({f"c{n}": TEXTS[:2000] for n in range(20)}), {}),
        (pa.table({"a": pa.array(TEXTS[:10] * 2000).dictionary_encode()}), {}),
    ],
    ids=["text", "zstd", "none", "repeated", "numbers", "nested", "wide", "dictionary"],
)
def test_decoding_allocates_no_more_than_the_footer_lets_expect(
    tmp_path: Path, table: pa.Table, options: dict[str, object]
) -> None:
    """Bytes counted by pyarrow's own pool, in a process that has decoded nothing else."""
    path = tmp_path / "one.parquet"
    pq.write_table(table, path, row_group_size=table.num_rows, **options)
    done = subprocess.run(
        [sys.executable, "-c", DECODED, str(path)], capture_output=True, text=True, check=True
    )
    most, expected, decoded = map(int, done.stdout.split())
    assert decoded < most <= expected


COLLECTED = """
import gc, os, sys
import pyarrow.parquet
from vramcast.host.processes import family_use
from vramcast.runtime import LowMemDataset
data = LowMemDataset(sys.argv[1], mode=sys.argv[2])
libraries = [[number] for number in range(400_000)]  # of a training process: 30 MB of Python objects
ready, is_ready = os.pipe()
done, is_done = os.pipe()
before = family_use().private_bytes
if os.fork() == 0:
    data[0]
    if sys.argv[3] == "collect":
        gc.collect()
    os.write(is_ready, b"x")
    os.read(done, 1)
    os._exit(0)
os.read(ready, 1)
print(family_use().private_bytes - before, flush=True)
os.write(is_done, b"x")
os.wait()
"""


def worker_growth(path: Path, mode: str, task: str) -> int:
    command = [sys.executable, "-c", COLLECTED, str(path), mode, task]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["row-groups", "table"])
def test_a_full_collection_in_a_forked_worker_copies_no_page_of_its_parent(
    tmp_path: Path, mode: str
) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": range(1000)}), path)
    assert worker_growth(path, mode, "collect") - worker_growth(path, mode, "nothing") < 10e6


HUGE = """
import sys
import pyarrow as pa
from vramcast.runtime import LowMemDataset
data = LowMemDataset(sys.argv[1])
data[0]
assert "pandas" not in sys.modules
address, huge, inside = pa.allocate_buffer(1).address, 0, False
for line in open("/proc/self/smaps"):
    words = line.split()
    if "-" in words[0] and not words[0].endswith(":"):
        start, end = (int(text, 16) for text in words[0].split("-"))
        inside = start <= address < end
    elif inside and words[0] == "AnonHugePages:":
        huge += int(words[1])
print(huge)
"""


def test_decoding_takes_no_huge_pages_and_no_pandas(tmp_path: Path) -> None:
    """pyarrow's pool asks for huge pages, and its `scalar` imports pandas: 15 and 30 MiB in every reader."""
    folder = tmp_path / "year=2020" / "lang=zh"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"a": TEXTS}), folder / "part.parquet", row_group_size=5000)
    done = subprocess.run(
        [sys.executable, "-c", HUGE, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) <= 2048  # kB: the page that was touched to find the pool
