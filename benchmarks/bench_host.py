"""Predicted host memory beside measured, for dataset modes × workers × batch sizes × file sizes.

    python benchmarks/bench_host.py --rows 5000 200000 2000000 --repeats 3 --folder /tmp/bench > benchmarks/host.md

Every row is a process of its own with a DataLoader over a generated parquet file, measured in its steady state: private
memory, shared memory and mapped files of the process and its workers, each shared page once. Growth is what a larger
batch adds, measured and predicted; only batches differ, every batch size reads as many rows. A run is measured at five
moments, and of these and of `--repeats` runs the median is taken.
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
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from itertools import product
from pathlib import Path
from statistics import median

from bench_dataset import generate

from vramcast.host.bill import HostData, HostJob, Loader, host_entries, token_batch
from vramcast.host.parquet import POOL_SEGMENT_BYTES, ParquetFacts, read_facts
from vramcast.ledger import FORWARD, Ledger
from vramcast.units import MiB

SCRIPT = Path(__file__).parents[1] / "tests" / "host" / "measured_loader.py"
SEQ, BUDGET_BYTES = 512, 64 * MiB
BATCHES = (8, 24, 256)
MODES = ("table", "row-groups", "mmap", "ultra")
WITHIN, WITHIN_BYTES, GROWTH_BYTES = 0.1, 100_000_000, 5_000_000


def rows_to_read(facts: ParquetFacts, mode: str, workers: int) -> int:
    """Enough to fill what every reader may hold and its pool, and to stop in the middle of an epoch."""
    tables = min(facts.room_for_tables_bytes(BUDGET_BYTES), facts.decoded_bytes) + POOL_SEGMENT_BYTES
    # Workers share the row groups among them in mode row-groups; in the others each one touches all.
    fill = {"row-groups": max(workers, 1) * tables, "mmap": BUDGET_BYTES, "ultra": POOL_SEGMENT_BYTES}.get(mode, 0)
    wanted = max(min(fill, 10 * facts.decoded_bytes) * facts.num_rows // facts.decoded_bytes, 60 * max(BATCHES))
    if wanted < facts.num_rows - 10 * max(BATCHES):
        return wanted
    return wanted // facts.num_rows * facts.num_rows + facts.num_rows // 2


def measured(path: Path, mode: str, workers: int, rows: int, batch: int) -> int:
    job = {
        "path": str(path), "mode": mode, "workers": workers, "batch": batch, "seq": SEQ, "budget": BUDGET_BYTES,
        "rows": rows, "cache": str(path.parent / "cache"),
    }  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    use = json.loads(done.stdout.splitlines()[-1])
    return int(use["private_bytes"] + use["shm_bytes"] + use["file_bytes"])


def predicted(facts: ParquetFacts, mode: str, workers: int, batch: int) -> int:
    job = HostJob(
        build="cpu", imports=("torch", "pyarrow"), data=HostData(facts=facts, mode=mode, budget_bytes=BUDGET_BYTES),
        loader=Loader(tensor_bytes=token_batch(batch, SEQ), workers=workers, steady=True),
    )  # fmt: skip
    ledger = Ledger(entries=host_entries(job))
    return sum(ledger.moment(FORWARD, place).process_bytes for place in ledger.places())


def table(path: Path, tally: Counter[str], repeats: int) -> Iterator[str]:
    facts = read_facts(path)
    yield f"\n## {facts.num_rows:,} rows, {facts.decoded_bytes / MiB:,.0f} MiB decoded\n"
    yield "| mode | workers | batch | predicted, MiB | measured, MiB | difference | growth missed by, MB |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for mode, workers in product(MODES, (0, 2)):
        rows = rows_to_read(facts, mode, workers)
        before: tuple[int, int] | None = None
        with ThreadPoolExecutor(2) as pool:
            every = list(pool.map(partial(measured, path, mode, workers, rows), BATCHES * repeats))
        for number, batch in enumerate(BATCHES):
            found = int(median(every[number :: len(BATCHES)]))
            expected = predicted(facts, mode, workers, batch)
            missed = None if before is None else (expected - before[0]) - (found - before[1])
            count(tally, expected, found, missed)
            before = (expected, found)
            yield (
                f"| {mode} | {workers} | {batch} | {expected / MiB:,.1f} | {found / MiB:,.1f} "
                f"| {(expected - found) / MiB:+,.1f} MiB, {(expected - found) / found:+.1%} "
                f"| {'' if missed is None else f'{missed / 1e6:+.1f}'} |"
            )


def count(tally: Counter[str], expected: int, found: int, missed: int | None) -> None:
    tally["cells"] += 1
    tally["cells held"] += abs(expected - found) <= max(WITHIN * found, WITHIN_BYTES)
    tally["within ten percent"] += abs(expected - found) <= WITHIN * found
    if missed is not None:
        tally["pairs"] += 1
        tally["pairs held"] += abs(missed) <= GROWTH_BYTES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[5000, 200_000])
    parser.add_argument("--folder", type=Path, default=Path("bench-data"))
    parser.add_argument("--repeats", type=int, default=1, help="runs of every cell, of which the median is shown")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    tally: Counter[str] = Counter()
    names = ", ".join(f"{name} {version(name)}" for name in ("torch", "pyarrow", "numpy"))
    print("# Host memory, predicted and measured\n")
    print(
        f"Reader budget {BUDGET_BYTES // MiB} MiB, sequence {SEQ}; median of {args.repeats} run(s); {names}, "
        f"Python {platform.python_version()}."
    )
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
