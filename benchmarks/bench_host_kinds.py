"""Predicted host memory beside measured for kinds of files and of loaders that `bench_host.py` does not have.

    python benchmarks/bench_host_kinds.py --folder /tmp/bench > benchmarks/host-kinds.md

Files: forty columns, nulls, nested lists and structs, dictionaries, documents of 100 kB, hive folders, one giant row
group. Loaders: spawned workers, four workers, much prefetched, pinned without a GPU, two ranks under torchrun. Measured
as in `bench_host.py`: one process family each, in its steady state, batches of 24.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from bench_host import SEQ, Case, differing, measured, predicted, rows_to_read, versions, within

from vramcast.host.parquet import read_facts

BATCH = 24
WORDS = 5000
Columns = dict[str, Any]


class Texts:
    """Made-up words, the same in every run."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        lengths = self.rng.integers(2, 9, WORDS)
        self.words = np.array(
            ["".join(map(chr, self.rng.integers(0x61, 0x7B, length))) for length in lengths]
        )

    def of(self, count: int, words: int) -> list[str]:
        return [" ".join(self.words[self.rng.integers(0, WORDS, words)]) for _ in range(count)]


def chat(texts: Texts, rows: int) -> Columns:
    return {"response": texts.of(rows, 60)}


def forty(texts: Texts, rows: int) -> Columns:
    return {
        f"c{n}": texts.rng.integers(0, 2**40, rows) if n % 2 else texts.of(rows, 5)
        for n in range(39)
    }


def nulls(texts: Texts, rows: int) -> Columns:
    empty = {
        "nothing": pa.nulls(rows),
        "no_text": pa.nulls(rows, pa.string()),
        "no_number": pa.nulls(rows, pa.int64()),
    }
    return {**empty, "answer": texts.of(rows, 20)}


def nested(texts: Texts, rows: int) -> Columns:
    turns = zip(texts.of(rows, 10), texts.of(rows, 40), strict=True)
    return {
        "messages": [
            [{"role": "user", "content": asked}, {"role": "bot", "content": said}]
            for asked, said in turns
        ],
        "ids": [texts.rng.integers(0, 30_000, 10 + n % 50).tolist() for n in range(rows)],
        "meta": [{"source": "web", "score": float(n), "tags": ["a", "b"]} for n in range(rows)],
    }


def dictionary(texts: Texts, rows: int) -> Columns:
    kinds = pa.array([f"category {n} " + "x" * 200 for n in range(50)])
    return {
        "kind": pa.DictionaryArray.from_arrays(np.arange(rows) % 50, kinds),
        "answer": texts.of(rows, 20),
    }


def repeated(texts: Texts, rows: int) -> Columns:
    """Text that its dictionary makes small in the file and that is large when decoded."""
    return {"system": [f"You are number {n % 20}. " + "Be helpful. " * 60 for n in range(rows)]}


def documents(texts: Texts, rows: int) -> Columns:
    return {"document": texts.of(rows, 15_000)}


FILES: dict[
    str, tuple[Callable[[Texts, int], Columns], int, int]
] = {  # columns, rows, rows of a row group
    "chat": (chat, 200_000, 1000),
    "40 columns, groups of 100": (forty, 100_000, 100),
    "40 columns, groups of 2,000": (forty, 200_000, 2000),
    "columns of nulls": (nulls, 200_000, 1000),
    "lists and structs": (nested, 100_000, 1000),
    "dictionary columns": (dictionary, 200_000, 1000),
    "repeated text": (repeated, 200_000, 1000),
    "documents of 85 kB": (documents, 3000, 50),
    "200 hive files": (chat, 2_000_000, 1000),
    "one row group of 2 M rows": (chat, 2_000_000, 2_000_000),
}
HIVE, GIANT = "200 hive files", "one row group of 2 M rows"
MODES = {
    HIVE: ("row-groups", "ultra", "mmap", "table"),
    GIANT: ("ultra", "mmap", "table"),
}  # it exceeds the budget
LOADERS: dict[str, dict[str, Any]] = {
    "spawned workers": {"workers": 2, "method": "spawn"},
    "spawned workers, table": {"workers": 2, "method": "spawn", "mode": "table"},
    "four workers": {"workers": 4},
    "8 batches prefetched": {"workers": 2, "prefetch": 8},
    "pin_memory without a GPU": {"workers": 2, "pin_memory": True},
    "two ranks": {"workers": 2, "ranks": 2},
    "two ranks, table": {"ranks": 2, "mode": "table"},
}


def row_groups(kind: str) -> Iterator[pa.Table]:
    make, rows, group = FILES[kind]
    texts, step = Texts(), min(group, 10_000)
    tables = (
        pa.table({"prompt": [f"{start + n}: question" for n in range(step)], **make(texts, step)})
        for start in range(0, rows, step)
    )
    yield from (pa.concat_tables(islice(tables, group // step)) for _ in range(rows // group))


def written(folder: Path, kind: str) -> Path:
    """The folder of a kind's files, made whole unless it is there."""
    path = folder / kind.replace(" ", "-").replace(",", "")
    partial = path.with_suffix(".partial")
    if path.exists():
        return path
    shutil.rmtree(partial, ignore_errors=True)  # of a run that was ended
    groups = row_groups(kind)
    names = (
        [f"year={2000 + n // 10}/part={n % 10}/data" for n in range(200)]
        if kind == HIVE
        else ["data"]
    )
    for name in names:
        file = partial / f"{name}.parquet"
        file.parent.mkdir(parents=True)
        first, *others = islice(groups, FILES[kind][1] // FILES[kind][2] // len(names))
        with pq.ParquetWriter(file, first.schema) as writer:
            for table in (first, *others):
                writer.write_table(table, row_group_size=table.num_rows)
    return partial.rename(path)


def cases(folder: Path) -> Iterator[tuple[str, Case]]:
    for name, options in LOADERS.items():
        yield f"chat, {name}", Case(path=written(folder, "chat"), **options)
    for kind in FILES:
        for mode in MODES.get(kind, ("row-groups", "table")):
            yield kind, Case(path=written(folder, kind), mode=mode, workers=2)


def row(name: str, case: Case) -> tuple[str, bool]:
    facts = read_facts(case.path)
    expected = predicted(facts, case, BATCH)
    found = measured(case, rows_to_read(facts, case, (BATCH,)), (BATCH,))[0]
    line = (
        f"| {name} | {case.mode} | {case.ranks} × {case.workers} | {differing(expected, found)} |"
    )
    return line, within(expected, found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("bench-data"))
    args = parser.parse_args()
    print("# Host memory of other files and loaders, predicted and measured\n")
    print(f"Reader budget 64 MiB, batch {BATCH}, sequence {SEQ}; one run each; {versions()}.\n")
    print(
        "| file and loader | mode | ranks × workers | predicted, MiB | measured, MiB | difference |"
    )
    print("|---|---|---:|---:|---:|---:|")
    held = []
    with ThreadPoolExecutor(
        2
    ) as pool:  # memory is counted by process: they do not disturb each other
        for line, holds in pool.map(lambda pair: row(*pair), cases(args.folder)):
            print(line, flush=True)
            held.append(holds)
    print(f"\nWithin 10 % or 100 MB: {sum(held)} of {len(held)}.")


if __name__ == "__main__":
    main()
