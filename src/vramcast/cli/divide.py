"""`vramcast divide MODEL --gpus 1024`: every legal way to divide a model over a cluster, smallest peak first."""

from __future__ import annotations

import argparse

from vramcast.cli.options import add_job_flags, add_output_flags, job_of, print_json
from vramcast.cli.sweep import numbers
from vramcast.errors import InputError, unknown

KEPT = ("tp", "pp", "cp")  # tried in all sizes, unless a flag says one
SHOWN = 10


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", help="catalog name, HF config.json or folder")
    add_job_flags(parser)
    add_output_flags(parser)
    parser.add_argument("--top", type=int, metavar="N", default=SHOWN, help=f"show N divisions (default {SHOWN})")
    parser.epilog = (
        "--batch and --checkpointing take lists (default 1,2,4,8 and none,selective,full); "
        "--tp, --pp and --cp keep one size, without them all legal ones are tried"
    )


def run(args: argparse.Namespace) -> int:
    from vramcast.engine.parallel.divisions import RECOMPUTE, search
    from vramcast.report.divisions import divisions_json, render_text

    batches = numbers("batch", args.batch or "1,2,4,8")
    recompute = tuple(name.strip() for name in (args.checkpointing or ",".join(RECOMPUTE)).split(","))
    for name in recompute:
        if name not in RECOMPUTE:
            raise unknown("checkpointing", name, RECOMPUTE)
    args.batch, args.checkpointing = str(batches[0]), recompute[0]
    job = job_of(args, args.model)
    if job.gpus < 2:
        raise InputError("divide needs the number of GPUs: --gpus N, with N of at least 2")
    if args.top < 1:
        raise InputError(f"--top must be at least 1, not {args.top}")
    fixed = {name: getattr(job, name) for name in KEPT if getattr(args, name) is not None}
    found = [
        each
        for each in search(job, batches=batches, recompute=recompute)
        if all(getattr(each, name) == size for name, size in fixed.items())
    ]
    if not found:
        sizes = ", ".join(f"{name} {size}" for name, size in fixed.items()) or "any tp, pp and cp"
        raise InputError(f"{job.gpus} GPUs cannot be divided with {sizes} for this model: take other sizes")
    if args.json:
        print_json(divisions_json(found, args.top))
    else:
        print(render_text(found, job, top=args.top, markdown=args.markdown, lang=args.lang))
    return 1 if all(each.fits is False for each in found) else 0
