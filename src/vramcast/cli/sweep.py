"""`vramcast sweep MODEL --batch 1..64 --seq 512,1024`: a grid of batch sizes and lengths."""

from __future__ import annotations

import argparse
import re

from vramcast.cli.options import add_job_flags, add_output_flags, job_of, print_json
from vramcast.errors import InputError

MOST_POINTS = 1_000_000


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="catalog name, HF config.json or folder")
    add_job_flags(parser)
    add_output_flags(parser)
    parser.add_argument("--csv", action="store_true", help="batch,seq,allocated_bytes lines")
    parser.epilog = "--batch and --seq take lists and ranges: 1,2,4  or  1..64 (doubling)  or  128..4096:128 (steps)"


def run(args: argparse.Namespace) -> int:
    batches, seqs = numbers("batch", args.batch or "1..64"), numbers("seq", args.seq or "512..8192")
    if len(batches) * len(seqs) > MOST_POINTS:
        raise InputError(f"{len(batches)} × {len(seqs)} points are too many; at most {MOST_POINTS:,}")
    args.batch, args.seq = str(batches[0]), str(seqs[0])
    from vramcast.formulas.sweep import sweep
    from vramcast.report.sweep_table import render_csv, render_text, sweep_json

    result = sweep(job_of(args, args.model), batches, seqs)
    if args.json:
        print_json(sweep_json(result))
    else:
        print(render_csv(result) if args.csv else render_text(result, markdown=args.markdown))
    return 0


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
