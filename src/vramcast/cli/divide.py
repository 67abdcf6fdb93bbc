"""`vramcast divide MODEL --gpus 1024`: all valid parallel layouts of a model over a cluster, smallest peak first."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from vramcast.cli.options import add_job_flags, add_output_flags, job_of, print_json
from vramcast.cli.output import print_report, print_warnings, terminal_width
from vramcast.cli.sweep import numbers
from vramcast.errors import InputError, UnsupportedError, unknown
from vramcast.forecasting import warnings_about
from vramcast.job import Job
from vramcast.setup.tasks import ONE_PASS, has_rl_phases

if TYPE_CHECKING:
    from vramcast.engine import Division

SIZES = ("tp", "pp", "cp")  # tried in all sizes, unless a flag gives one
SHOWN = 10


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", help="built-in model name, HF config.json or folder")
    add_job_flags(parser)
    add_output_flags(parser)
    parser.add_argument(
        "--top", type=int, metavar="N", default=SHOWN, help=f"show N layouts (default {SHOWN})"
    )
    parser.epilog = (
        "--batch and --checkpointing take lists (default 1,2,4,8 and none,selective,full); "
        "--tp, --pp and --cp fix one size, without them all valid ones are tried"
    )


def run(args: argparse.Namespace) -> int:
    from vramcast.report.divisions import divisions_json, render_text

    batches = numbers("batch", args.batch or "1,2,4,8")
    checkpointing = _checkpointing(args.checkpointing)
    if not getattr(args, "engine", None):
        args.batch, args.checkpointing = str(batches[0]), checkpointing[0]
    job = job_of(args, args.model)
    if job.gpus < 2:
        raise InputError("divide needs the number of GPUs: --gpus N, with N of at least 2")
    if args.top < 1:
        raise InputError(f"--top must be at least 1, not {args.top}")
    if job.task in ("generate", *ONE_PASS):
        raise UnsupportedError(
            f"task {job.task} runs on one GPU, which divide has no layouts of: say --engine vllm or sglang for a model "
            "served by many"
        )
    if job.engine is not None:
        return _divide_engine(args, job)
    fixed = {name: getattr(job, name) for name in SIZES if getattr(args, name) is not None}
    found = _layouts(job, fixed, batches, checkpointing)
    best = {name: getattr(found[0], name) for name in SIZES}
    print_warnings(warnings_about(replace(job, **best)), args.lang)
    if args.json:
        print_json(divisions_json(found, args.top))
    else:
        text = render_text(
            found,
            job,
            top=args.top,
            markdown=args.markdown,
            lang=args.lang,
            width=terminal_width(),
        )
        print_report(text, as_it_is=args.markdown)
    return 1 if all(each.fits is False for each in found) else 0


def _divide_engine(args: argparse.Namespace, job: Job) -> int:
    """A serving engine over all GPUs; 1 where it starts in no layout."""
    from vramcast.plan.layouts import serving_layouts
    from vramcast.report.serving_layouts import layouts_json, render_text

    sizes = {name: getattr(job, name) for name in ("tp", "pp") if getattr(args, name) is not None}
    found = [
        each
        for each in serving_layouts(replace(job, tp=1, pp=1))
        if all(getattr(each, name) == size for name, size in sizes.items())
    ]
    if not found:
        raise InputError(
            f"no layout of {job.gpus} GPUs has {', '.join(f'{k} {v}' for k, v in sizes.items())}"
        )
    if args.json:
        print_json(layouts_json(found, args.top))
    else:
        text = render_text(
            found, top=args.top, markdown=args.markdown, lang=args.lang, width=terminal_width()
        )
        print_report(text, as_it_is=args.markdown)
    return 0 if any(each.served.starts for each in found) else 1


def _checkpointing(given: str | None) -> tuple[str, ...]:
    """`none,full` as names that are known."""
    from vramcast.engine import RECOMPUTE

    if given is None:
        return RECOMPUTE
    names = tuple(name.strip() for name in given.split(","))
    for name in names:
        if name not in RECOMPUTE:
            raise unknown("checkpointing", name, RECOMPUTE)
    return names


def _layouts(
    job: Job, fixed: dict[str, int], batches: tuple[int, ...], checkpointing: tuple[str, ...]
) -> list[Division]:
    from vramcast.engine import search_divisions
    from vramcast.plan.layouts import rl_divisions

    if has_rl_phases(job):
        every = rl_divisions(job, batches, checkpointing)
    else:
        every = search_divisions(job, batches=batches, recompute=checkpointing)
    found = [
        each for each in every if all(getattr(each, name) == size for name, size in fixed.items())
    ]
    if not found:
        sizes = ", ".join(f"{name} {size}" for name, size in fixed.items()) or "any tp, pp and cp"
        raise InputError(
            f"no valid layout of {job.gpus} GPUs with {sizes} for this model: take other sizes"
        )
    return found
