"""Predicted host memory beside measured, for dataset modes × workers × batch sizes × file sizes.

    python benchmarks/bench_host.py --rows 5000 200000 2000000 --repeats 3 --folder /tmp/bench > benchmarks/host.md

Every mode and number of workers is a process of its own with a DataLoader over a generated parquet file, measured in
its steady state: private memory, shared memory and mapped files of the process and its workers, each shared page once.
Growth is what a larger batch adds, measured and predicted: the batch sizes come one after another, rising, over the
same loaded dataset, every one with new workers and as many rows. In processes of their own they would differ by how the
table was loaded as well: by up to 11 MB where it has 1.7 GB, even in the median of three. The first workers of a
process take 4 MB more each than those after them, so the smallest batch size comes twice: once for what is held, once
for what the next one adds. Every figure is the middle of five moments; of `--repeats` runs the median is taken.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise, product
from pathlib import Path
from statistics import median

from bench_dataset import generate

from vramcast.host.entries import host_entries
from vramcast.host.host_job import HostData, HostJob, Loader, token_batch
from vramcast.host.parquet import read_facts
from vramcast.host.parquet_facts import POOL_SEGMENT_BYTES, SLICE_BYTES, ParquetFacts
from vramcast.ledger import FORWARD, Ledger
from vramcast.units import MiB

SCRIPT = Path(__file__).parents[1] / "tests" / "host" / "measured_loader.py"
SEQ = 512
BATCHES = (8, 24, 256)
MODES = ("table", "row-groups", "mmap", "ultra")
WITHIN, WITHIN_BYTES, GROWTH_BYTES = 0.1, 100_000_000, 5_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One way to read one dataset."""

    path: Path
    mode: str = "row-groups"
    workers: int = 0
    prefetch: int | None = None
    method: str = "fork"
    pin_memory: bool = False
    ranks: int = 1
    budget_bytes: int = 64 * MiB


def rows_to_read(facts: ParquetFacts, case: Case, batches: tuple[int, ...]) -> int:
    """Enough to fill what every reader may hold and its pool, and to stop in the middle of an epoch."""
    tables = (
        min(facts.table_budget_bytes(case.budget_bytes), facts.decoded_bytes) + POOL_SEGMENT_BYTES
    )
    # Workers share the row groups among them in modes row-groups and ultra; in the others each one touches all.
    readers = max(case.workers, 1)
    ultra = readers * (SLICE_BYTES + POOL_SEGMENT_BYTES)
    # What is mapped has reached the budget when the first of the five moments comes, at 60 % of the rows.
    fill = {"row-groups": readers * tables, "mmap": 2 * case.budget_bytes, "ultra": ultra}
    nbytes = min(fill.get(case.mode, 0), 10 * facts.decoded_bytes)
    wanted, whole = (
        max(nbytes * facts.num_rows // facts.decoded_bytes, 60 * max(batches)),
        facts.num_rows // case.ranks,
    )
    if wanted < whole - 10 * max(batches):
        return wanted
    return wanted // whole * whole + whole // 2


def measured(case: Case, rows: int, batches: tuple[int, ...]) -> list[int]:
    """Bytes in the steady state of each batch size, of all processes, the launcher of several ranks included."""
    job = {
        "path": str(case.path), "mode": case.mode, "workers": case.workers, "batches": batches, "seq": SEQ,
        "budget": case.budget_bytes, "rows": rows, "cache": str(case.path.parent / "cache"), "method": case.method,
        "prefetch": case.prefetch, "pin_memory": case.pin_memory,
    }  # fmt: skip
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(case.ranks)]
    command = [sys.executable, *(launcher if case.ranks > 1 else []), str(SCRIPT), json.dumps(job)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{case}: {done.stderr[-2000:]}")
    uses = json.loads(done.stdout.splitlines()[-1])
    return [use["private_bytes"] + use["shm_bytes"] + use["file_bytes"] for use in uses]


def predicted(facts: ParquetFacts, case: Case, batch: int) -> int:
    loader = Loader(
        tensor_bytes=token_batch(batch, SEQ), workers=case.workers, prefetch=case.prefetch, start_method=case.method,
        pin_memory=case.pin_memory, steady=True,
    )  # fmt: skip
    data = HostData(facts=facts, mode=case.mode, budget_bytes=case.budget_bytes)
    job = HostJob(
        ranks=case.ranks, build="cpu", imports=("torch", "pyarrow"), data=data, loader=loader
    )
    ledger = Ledger(entries=host_entries(job))
    return sum(ledger.moment(FORWARD, place).process_bytes for place in ledger.places())


def within(expected: int, found: int) -> bool:
    return abs(expected - found) <= max(WITHIN * found, WITHIN_BYTES)


def differing(expected: int, found: int) -> str:
    """`270.1 | 278.0 | -7.9 MiB, -2.8%`."""
    off = expected - found
    return f"{expected / MiB:,.1f} | {found / MiB:,.1f} | {off / MiB:+,.1f} MiB, {off / found:+.1%}"


def table(path: Path, tally: Counter[str], repeats: int) -> Iterator[str]:
    facts = read_facts(path)
    yield f"\n## {facts.num_rows:,} rows, {facts.decoded_bytes / MiB:,.0f} MiB decoded\n"
    yield "| mode | workers | batch | predicted, MiB | measured, MiB | difference | growth missed by, MB |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for mode, workers in product(MODES, (0, 2)):
        case = Case(path=path, mode=mode, workers=workers)
        rows = rows_to_read(facts, case, BATCHES)
        runs = [measured(case, rows, (BATCHES[0], *BATCHES)) for _ in range(repeats)]
        expected = [predicted(facts, case, batch) for batch in BATCHES]
        found = [
            int(median(run)) for run in zip(*((run[0], *run[2:]) for run in runs), strict=True)
        ]
        steps = zip(
            *([after - before for before, after in pairwise(run[1:])] for run in runs), strict=True
        )
        grown = [int(median(step)) for step in steps]
        missed = [None, *(b - a - g for (a, b), g in zip(pairwise(expected), grown, strict=True))]
        for batch, said, seen, miss in zip(BATCHES, expected, found, missed, strict=True):
            count(tally, said, seen, miss)
            growth = "" if miss is None else f"{miss / 1e6:+.1f}"
            yield f"| {mode} | {workers} | {batch} | {differing(said, seen)} | {growth} |"


def count(tally: Counter[str], expected: int, found: int, missed: int | None) -> None:
    tally["cells"] += 1
    tally["cells held"] += within(expected, found)
    tally["within ten percent"] += abs(expected - found) <= WITHIN * found
    if missed is not None:
        tally["pairs"] += 1
        tally["pairs held"] += abs(missed) <= GROWTH_BYTES


def versions() -> str:
    names = ", ".join(f"{name} {version(name)}" for name in ("torch", "pyarrow", "numpy"))
    return f"{names}, Python {platform.python_version()}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[5000, 200_000])
    parser.add_argument("--folder", type=Path, default=Path("bench-data"))
    parser.add_argument(
        "--repeats", type=int, default=1, help="runs of every cell, of which the median is shown"
    )
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    tally: Counter[str] = Counter()
    print("# Host memory, predicted and measured\n")
    print(f"Reader budget 64 MiB, sequence {SEQ}; median of {args.repeats} run(s); {versions()}.")
    for rows in args.rows:
        path = args.folder / f"chat-{rows}.parquet"
        if not path.exists():
            generate(path, rows)
        for line in table(path, tally, args.repeats):
            print(line, flush=True)
    held, near = tally["cells held"], tally["within ten percent"]
    print(f"\nWithin 10 % or 100 MB: {held} of {tally['cells']}; within 10 %: {near}.")
    print(f"Growth with the batch within 5 MB: {tally['pairs held']} of {tally['pairs']} steps.")


if __name__ == "__main__":
    main()
