"""Our dataset modes beside Hugging Face `datasets` and a dataset that reads the whole file for every row.

    python benchmarks/bench_dataset.py --rows 200000 --folder /tmp/bench > benchmarks/dataset.md

Every figure is taken in a process of its own, on the same generated file: shuffled rows per second of CPU through a
DataLoader (batches of 32, lists of dictionaries), over the process and its workers, so that other load on the machine
does not decide; milliseconds of CPU per random row; and growth of RSS from before the dataset is opened. A ratio is to
`datasets` with as many workers: the median of five rounds in which all took turns, and the lowest and the highest.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

BATCH = 32
BUDGET_BYTES = 64 * 2**20
RANDOM_ROWS = 1000
WHOLE_FILE_ROWS = 200_000
ROUNDS = 5
PEER, WHOLE_FILE = "datasets (Arrow mmap)", "whole file per row"


def generate(path: Path, rows: int, group_rows: int = 1000) -> None:
    """Chinese chat rows: a prompt of about 60 characters that starts with the row's number, a response of about 240."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    words = [
        "".join(map(chr, rng.integers(0x4E00, 0x4E00 + 3000, rng.integers(1, 5))))
        for _ in range(5000)
    ]
    schema = pa.schema([("prompt", pa.string()), ("response", pa.string())])

    def texts(count: int, mean: int) -> list[str]:
        lengths = rng.integers(mean // 2, mean * 3 // 2, count)
        picks = iter(rng.integers(0, len(words), lengths.sum()).tolist())
        return ["".join(words[next(picks)] for _ in range(length)) for length in lengths]

    with pq.ParquetWriter(path, schema, write_page_checksum=True) as writer:
        for start in range(0, rows, group_rows):
            count = min(group_rows, rows - start)
            prompts = [f"{start + n}:{text}" for n, text in enumerate(texts(count, 25))]
            writer.write_table(pa.table([prompts, texts(count, 95)], schema=schema))


class WholeFilePerRow:
    """What "ultra low memory" was in the hand-written trainer this replaces: `read_table` for every row."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        self.path = path
        self.rows = pq.read_metadata(path).num_rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> dict[str, Any]:
        import pyarrow.parquet as pq

        row: dict[str, Any] = pq.read_table(self.path).slice(index, 1).to_pylist()[0]
        return row


def ours(mode: str) -> Callable[[Path], tuple[Any, dict[str, Any]]]:
    def open_dataset(path: Path) -> tuple[Any, dict[str, Any]]:
        from vramcast.runtime import LowMemDataset, RowGroupSampler

        data = LowMemDataset(
            path, mode=mode, budget_bytes=BUDGET_BYTES, cache_dir=path.parent / "cache"
        )
        return data, {"batch_sampler": RowGroupSampler(data, batch_size=BATCH)}

    return open_dataset


def hugging_face(path: Path) -> tuple[Any, dict[str, Any]]:
    import datasets

    datasets.disable_progress_bars()
    data = datasets.Dataset.from_parquet(str(path), cache_dir=str(path.parent / "hf"))
    return data, {"batch_size": BATCH, "shuffle": True}


def hugging_face_streaming(path: Path) -> tuple[Any, dict[str, Any]]:
    import datasets

    data = datasets.load_dataset("parquet", data_files=str(path), split="train", streaming=True)
    return data.shuffle(seed=0, buffer_size=1000), {"batch_size": BATCH}


def whole_file(path: Path) -> tuple[Any, dict[str, Any]]:
    return WholeFilePerRow(path), {"batch_size": BATCH, "shuffle": True}


KINDS: dict[str, Callable[[Path], tuple[Any, dict[str, Any]]]] = {
    "vramcast row-groups, 64 MiB": ours("row-groups"),
    "vramcast ultra": ours("ultra"),
    "vramcast mmap": ours("mmap"),
    "vramcast table": ours("table"),
    PEER: hugging_face,
    "datasets (streaming, buffer 1000)": hugging_face_streaming,
}


class PeakRss(threading.Thread):
    """The largest RSS seen every 5 ms."""

    def __init__(self) -> None:
        import psutil

        super().__init__(daemon=True)
        self.process = psutil.Process()
        self.start_bytes = self.peak_bytes = self.process.memory_info().rss

    def run(self) -> None:
        while True:
            self.peak_bytes = max(self.peak_bytes, self.process.memory_info().rss)
            time.sleep(0.005)


def measure(kind: str, path: Path, task: str, workers: int, seconds: float) -> dict[str, float]:
    import pyarrow.parquet  # noqa: F401  (libraries are not what is compared)
    import torch

    # DataLoader's own imports and first allocations are not what is compared either.
    list(torch.utils.data.DataLoader(range(4), num_workers=0, shuffle=True))

    if kind.startswith("datasets"):
        import datasets  # noqa: F401
    rss = PeakRss()
    rss.start()
    data, options = {**KINDS, WHOLE_FILE: whole_file}[kind](path)
    figure = (
        random_ms(data, seconds)
        if task == "random"
        else rows_per_s(data, options, workers, seconds)
    )
    return {"figure": figure, "start": rss.start_bytes, "growth": rss.peak_bytes - rss.start_bytes}


def random_ms(data: Any, seconds: float) -> float:
    """Milliseconds of CPU per row."""
    rng = random.Random(0)
    picks = [rng.randrange(len(data)) for _ in range(RANDOM_ROWS)]
    check_row(data, picks[0])
    started, done = time.process_time(), 0
    for index in picks:
        check_row(data, index)
        done += 1
        if time.process_time() - started > seconds:
            break
    return (time.process_time() - started) / done * 1e3


def check_row(data: Any, index: int) -> None:
    if not data[index]["prompt"].startswith(f"{index}:"):
        raise SystemExit(f"row {index} is not what was written")


def rows_per_s(data: Any, options: dict[str, Any], workers: int, seconds: float) -> float:
    """Rows per second of CPU of this process and its workers, over as many epochs as it takes."""
    from torch.utils.data import DataLoader

    # A worker that has ended takes its CPU time with it: they stay over the epochs.
    loader = DataLoader(
        data, num_workers=workers, collate_fn=list, persistent_workers=workers > 0, **options
    )
    batches = chain(iter(loader), chain.from_iterable(repeat(loader)))
    next(batches)  # caches, workers and pages are warm
    started, before, rows = time.perf_counter(), family_cpu_s(), 0
    while time.perf_counter() - started < seconds:
        rows += len(next(batches))
    return rows / (family_cpu_s() - before)


def family_cpu_s() -> float:
    import psutil

    me = psutil.Process()
    times = [process.cpu_times() for process in (me, *me.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


def in_own_process(
    kind: str, path: Path, task: str, workers: int, seconds: float
) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", kind, "--path", str(path), "--task", task]
    command += ["--workers", str(workers), "--seconds", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def table(path: Path, rows: int, seconds: float) -> Iterator[str]:
    yield f"\n## {rows:,} rows, {path.stat().st_size / 2**20:,.0f} MiB of parquet\n"
    yield "| | shuffled rows per CPU s | ratio | with 2 workers | ratio | random row, ms of CPU | RSS growth, MiB |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    # They take turns, so that a busy minute of the machine meets all of them.
    runs = [
        {
            (kind, count): in_own_process(kind, path, "shuffled", count, seconds)
            for count in (0, 2)
            for kind in KINDS
        }
        for _ in range(ROUNDS)
    ]
    figures = {key: statistics.median(run[key]["figure"] for run in runs) for key in runs[0]}
    ratios = {
        key: spread([run[key]["figure"] / run[PEER, key[1]]["figure"] for run in runs])
        for key in runs[0]
    }
    for kind in KINDS:
        streaming = "streaming" in kind
        latency = (
            "–"
            if streaming
            else f"{in_own_process(kind, path, 'random', 0, seconds)['figure']:.3f}"
        )
        cells = [f"{figures[kind, workers]:,.0f} | {ratios[kind, workers]}" for workers in (0, 2)]
        growth = max(run[kind, 0]["growth"] for run in runs)
        yield f"| {kind} | {cells[0]} | {cells[1]} | {latency} | {growth / 2**20:,.0f} |"
    if rows <= WHOLE_FILE_ROWS:
        whole = in_own_process(WHOLE_FILE, path, "random", 0, seconds)
        per_row, growth = whole["figure"], whole["growth"]
        yield f"| {WHOLE_FILE} | {1e3 / per_row:,.1f} | – | – | – | {per_row:,.1f} | {growth / 2**20:,.0f} |"
        times = {
            mode: figures[mode, 0] * per_row / 1e3
            for mode in ("vramcast row-groups, 64 MiB", "vramcast ultra")
        }
        said = ", ".join(f"{mode} {ratio:,.0f} times" for mode, ratio in times.items())
        yield f"\nRows per second of reading the whole file for each: {said} as many."


def spread(ratios: list[float]) -> str:
    """`1.12 (1.05 to 1.20)`."""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def versions() -> str:
    from importlib.metadata import version

    names = ("torch", "pyarrow", "datasets", "numpy")
    return ", ".join(f"{name} {version(name)}" for name in names)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[5000, 200_000])
    parser.add_argument("--folder", type=Path, default=Path("bench-data"))
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--task", help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, args.path, args.task, args.workers, args.seconds)))
        return
    args.folder.mkdir(parents=True, exist_ok=True)
    print("# Dataset modes, measured\n")
    print(
        f"{versions()}, Python {platform.python_version()}, {platform.machine()}, page cache warm. RSS of `mmap` and"
    )
    print("of `datasets` is page cache that the kernel may drop.")
    for rows in args.rows:
        path = args.folder / f"chat-{rows}.parquet"
        if not path.exists():
            generate(path, rows)
        for line in table(path, rows, args.seconds):
            print(line, flush=True)


if __name__ == "__main__":
    main()
