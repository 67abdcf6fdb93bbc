"""Predicted host memory beside measured, for dataset modes × workers × batch sizes × file sizes.

    python benchmarks/bench_host.py --rows 5000 200000 2000000 --folder /tmp/bench > benchmarks/host.md

Every row is a process of its own with a DataLoader over a generated parquet file, measured in its steady state: private
memory, shared memory and mapped files of the process and its workers, each shared page once. In mode mmap the
prediction counts the share of the file that was read.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from bench_dataset import generate

from vramcast.host.bill import HostData, HostJob, Loader, host_entries, token_batch
from vramcast.host.parquet import ParquetFacts, read_facts
from vramcast.ledger import FORWARD, Ledger, Level
from vramcast.units import MiB

SCRIPT = Path(__file__).parents[1] / "tests" / "host" / "measured_loader.py"
SEQ, BUDGET_BYTES = 512, 64 * MiB
BATCHES = 120
MODES = ("table", "row-groups", "mmap", "ultra")


def rows_to_read(facts: ParquetFacts, mode: str, batch: int, workers: int) -> int:
    """Enough to fill what a reader may hold, and to leave batches in flight when the measurement is taken."""
    held = facts.room_for_tables_bytes(BUDGET_BYTES) * facts.num_rows // facts.decoded_bytes
    wanted = max(BATCHES * batch, held if mode == "row-groups" else 0)
    return max(batch, min(wanted, facts.num_rows - (2 * workers + 2) * batch))


def measured(path: Path, mode: str, workers: int, batch: int, rows: int) -> int:
    job = {
        "path": str(path), "mode": mode, "workers": workers, "batch": batch, "seq": SEQ, "budget": BUDGET_BYTES,
        "rows": rows, "cache": str(path.parent / "cache"),
    }  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    use = json.loads(done.stdout.splitlines()[-1])
    return int(use["private_bytes"] + use["shm_bytes"] + use["file_bytes"])


def predicted(facts: ParquetFacts, mode: str, workers: int, batch: int, rows: int) -> int:
    job = HostJob(
        build="cpu", imports=("torch", "pyarrow"), data=HostData(facts=facts, mode=mode, budget_bytes=BUDGET_BYTES),
        loader=Loader(tensor_bytes=token_batch(batch, SEQ), workers=workers, steady=True),
    )  # fmt: skip
    entries = [entry for entry in Ledger(entries=host_entries(job)).entries if FORWARD in entry.phases]
    needed = sum(entry.nbytes for entry in entries if entry.level == Level.ALLOCATED)
    mapped = sum(entry.nbytes for entry in entries if entry.level == Level.PROCESS)
    return needed + mapped * rows // facts.num_rows


def table(path: Path) -> Iterator[str]:
    facts = read_facts(path)
    yield f"\n## {facts.num_rows:,} rows, {facts.decoded_bytes / MiB:,.0f} MiB decoded\n"
    yield "| mode | workers | batch | predicted, MiB | measured, MiB | difference |"
    yield "|---|---:|---:|---:|---:|---:|"
    for mode in MODES:
        for workers in (0, 2):
            for batch in (8, 24, 256):
                rows = rows_to_read(facts, mode, batch, workers)
                found = measured(path, mode, workers, batch, rows)
                expected = predicted(facts, mode, workers, batch, rows)
                yield (
                    f"| {mode} | {workers} | {batch} | {expected / MiB:,.1f} | {found / MiB:,.1f} "
                    f"| {(expected - found) / MiB:+,.1f} MiB, {(expected - found) / found:+.1%} |"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[5000, 200_000])
    parser.add_argument("--folder", type=Path, default=Path("bench-data"))
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    names = ", ".join(f"{name} {version(name)}" for name in ("torch", "pyarrow", "numpy"))
    print("# Host memory, predicted and measured\n")
    print(f"Reader budget {BUDGET_BYTES // MiB} MiB, sequence {SEQ}; {names}, Python {platform.python_version()}.")
    for rows in args.rows:
        path = args.folder / f"chat-{rows}.parquet"
        if not path.exists():
            generate(path, rows)
        for line in table(path):
            print(line, flush=True)


if __name__ == "__main__":
    main()
