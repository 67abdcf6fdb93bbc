"""`vramcast sweep MODEL --batch 1..64 --seq 512,1024`: a grid of batch sizes and lengths."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from vramcast.cli.options import add_job_flags, add_output_flags, job_of, print_json
from vramcast.cli.output import print_report, print_warnings, terminal_width
from vramcast.cli.pictures import add_picture_flags, write_pictures
from vramcast.errors import InputError
from vramcast.plan.observed_line import Fit, fit, parse_points

if TYPE_CHECKING:
    from vramcast.engine import Sweep

MAX_POINTS = 1_000_000
MAX_SERVED_POINTS = 10_000


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="built-in model name, HF config.json or folder")
    add_job_flags(parser)
    add_output_flags(parser)
    add_picture_flags(parser, pictures=False)
    parser.add_argument("--csv", action="store_true", help="batch,seq,allocated_bytes lines")
    parser.add_argument(
        "--observed",
        metavar="B:SIZE,…",
        help="measured runs, such as 8:8GB,24:19GB: fit a line through them and compare",
    )
    parser.epilog = "--batch and --seq take lists and ranges: 1,2,4  or  1..64 (doubling)  or  128..4096:128 (steps)"


def run(args: argparse.Namespace) -> int:
    from vramcast.forecasting import sweep, warnings_about
    from vramcast.report.observed_text import fit_json
    from vramcast.report.sweep_table import sweep_json

    if getattr(args, "engine", None):
        return _run_serving(args)
    batches = numbers("batch", args.batch or "1..64")
    seqs = numbers("seq", args.seq or "512..8192")
    if len(batches) * len(seqs) > MAX_POINTS:
        raise InputError(
            f"{len(batches)} × {len(seqs)} points are too many; at most {MAX_POINTS:,}"
        )
    args.batch, args.seq = str(batches[0]), str(seqs[0])
    if args.task == "generate":
        args.seq = None  # lengths are those of the prompt
    line = fit(parse_points(args.observed)) if args.observed else None
    job = job_of(args, args.model)
    result = sweep(job, batches, seqs)
    first = replace(job, batch=result.batches[0], seq=result.seqs[0])
    result = replace(result, warnings=(*result.warnings, *warnings_about(first)))
    if args.html is not None:
        from vramcast.report.html_host import sweep_document

        write_pictures(args, lambda: sweep_document(result, args.lang))
    if args.json:
        observed = {} if line is None else {"observed": fit_json(line, _capacity(result))}
        print_json(sweep_json(result) | observed)
    else:
        _print_table(args, result, line)
    return 0


def _run_serving(args: argparse.Namespace) -> int:
    """Requests × tokens of a serving engine."""
    from vramcast.engine import sweep_serving
    from vramcast.report.serving_sweep import render_csv, render_text, sweep_json

    requests = numbers("batch", args.batch or "1..64")
    lengths = numbers("seq", args.seq or "2048..32768")
    if len(requests) * len(lengths) > MAX_SERVED_POINTS:
        raise InputError(
            f"{len(requests)} × {len(lengths)} points are too many; at most {MAX_SERVED_POINTS:,}"
        )
    args.batch = args.seq = None
    result = sweep_serving(job_of(args, args.model), requests, lengths)
    print_warnings(result.forecast.warnings, args.lang)
    if args.json:
        print_json(sweep_json(result))
    elif args.csv:
        print(render_csv(result))
    else:
        text = render_text(result, markdown=args.markdown, lang=args.lang, width=terminal_width())
        print_report(text, as_it_is=args.markdown)
    return 0


def _capacity(result: Sweep) -> int | None:
    return result.gpu.capacity_bytes() if result.gpu else None


def _print_table(args: argparse.Namespace, result: Sweep, line: Fit | None) -> None:
    from vramcast.report.observed_text import render_text as observed_text
    from vramcast.report.sweep_table import render_csv, render_text

    if args.csv:
        print(render_csv(result))
        return
    text = render_text(result, markdown=args.markdown, lang=args.lang, width=terminal_width())
    print_report(text, as_it_is=args.markdown)
    if line is not None:
        print()
        print_report(observed_text(line, _predicted(result), _capacity(result), args.lang))


def _predicted(result: Sweep) -> Fit | None:
    """The same line through the table's first column, if it has two batches."""
    column = [
        (batch, int(result.allocated_bytes[row, 0])) for row, batch in enumerate(result.batches)
    ]
    return fit(column) if len(column) > 1 else None


def numbers(name: str, text: str) -> tuple[int, ...]:
    """`1,2,4`, `1..64` (doubling) or `128..4096:128` (steps), mixed by commas."""
    found: dict[int, None] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9})(?:\.\.([0-9]{1,9})(?::([0-9]{1,9}))?)?\s*", part)
        if not match or int(match[1]) < 1:
            raise InputError(
                f"{name} must be numbers or ranges such as 1,2,4 or 1..64 or 128..4096:128, not {part!r}"
            )
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
