"""`vramcast sweep MODEL --batch 1..64 --seq 512,1024`: a grid of batch sizes and lengths."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from vramcast.cli.options import add_job_flags, add_output_flags, job_of, print_json
from vramcast.engine.prices.observed_line import Fit, fit, parse_points
from vramcast.errors import InputError

if TYPE_CHECKING:
    from vramcast.engine.prices.sweep import Sweep

MOST_POINTS = 1_000_000


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="catalog name, HF config.json or folder")
    add_job_flags(parser)
    add_output_flags(parser)
    parser.add_argument("--csv", action="store_true", help="batch,seq,allocated_bytes lines")
    parser.add_argument(
        "--observed", metavar="B:SIZE,…", help="runs that worked, such as 8:8GB,24:19GB: their line and what it says"
    )
    parser.epilog = "--batch and --seq take lists and ranges: 1,2,4  or  1..64 (doubling)  or  128..4096:128 (steps)"


def run(args: argparse.Namespace) -> int:
    batches, seqs = numbers("batch", args.batch or "1..64"), numbers("seq", args.seq or "512..8192")
    if len(batches) * len(seqs) > MOST_POINTS:
        raise InputError(f"{len(batches)} × {len(seqs)} points are too many; at most {MOST_POINTS:,}")
    args.batch, args.seq = str(batches[0]), str(seqs[0])
    from vramcast.engine.prices.sweep import sweep
    from vramcast.report.observed_text import fit_json
    from vramcast.report.observed_text import render_text as observed_text
    from vramcast.report.sweep_table import render_csv, render_text, sweep_json

    points = parse_points(args.observed) if args.observed else ()
    line = fit(points) if points else None
    result = sweep(job_of(args, args.model), batches, seqs)
    capacity = result.gpu.capacity_bytes() if result.gpu else None
    if args.json:
        print_json(sweep_json(result) | ({"observed": fit_json(line, capacity)} if line else {}))
        return 0
    print(render_csv(result) if args.csv else render_text(result, markdown=args.markdown))
    if line is not None and not args.csv:
        print()
        print(observed_text(line, _predicted(result), capacity))
    return 0


def _predicted(result: Sweep) -> Fit | None:
    """The same line through the table's first column, if it has two batches."""
    column = [(batch, int(result.allocated_bytes[row, 0])) for row, batch in enumerate(result.batches)]
    return fit(column) if len(column) > 1 else None


def numbers(name: str, text: str) -> tuple[int, ...]:
    """`1,2,4`, `1..64` (doubling) or `128..4096:128` (steps), mixed by commas."""
    found: dict[int, None] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9})(?:\.\.([0-9]{1,9})(?::([0-9]{1,9}))?)?\s*", part)
        if not match or int(match[1]) < 1:
            raise InputError(f"{name} must be numbers or ranges such as 1,2,4 or 1..64 or 128..4096:128, not {part!r}")
        found.update(dict.fromkeys(_expanded(name, int(match[1]), match[2], match[3])))
    return tuple(found)


def _expanded(name: str, first: int, last: str | None, step: str | None) -> list[int]:
    if last is None:
        return [first]
    if int(last) < first or step == "0":
        raise InputError(f"{name}: the range {first}..{last} is empty")
    if step is not None:
        return list(range(first, int(last) + 1, int(step)))
    values = [first]
    while values[-1] * 2 <= int(last):
        values.append(values[-1] * 2)
    return values
