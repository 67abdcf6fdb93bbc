"""`vramcast plan MODEL --gpu …`: the cheapest changes that make a job fit."""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vramcast.cli.options import add_job_flags, add_output_flags, job_of, print_json
from vramcast.cli.output import show_progress
from vramcast.engine import topology_of
from vramcast.errors import InputError
from vramcast.job import Job, fields
from vramcast.plan.ranking import Limits
from vramcast.setup import resolve

if TYPE_CHECKING:  # loaded where they are used: mistakes in the flags are reported without them
    from vramcast.plan.plans import Plan
    from vramcast.plan.verify import Traced

QUIET_SECONDS = 1.0  # what takes no longer needs no progress


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", help="built-in model name, HF config.json or folder")
    add_job_flags(parser)
    group = parser.add_argument_group("limits")
    group.add_argument(
        "--keep", metavar="A,B", default="", help="job keys that must stay as they are"
    )
    group.add_argument(
        "--max-slowdown",
        type=float,
        metavar="X",
        help="refuse plans whose step takes more than X times as long",
    )
    group.add_argument(
        "--global-batch",
        type=int,
        metavar="N",
        help="samples per optimizer step on all GPUs; sets accumulate",
    )
    group.add_argument(
        "--second-gpu",
        action="store_true",
        help="models or layers may move to a second GPU of the same kind",
    )
    group.add_argument(
        "--verify",
        action="store_true",
        help="run the plans for two steps on the virtual GPU (needs torch)",
    )
    group.add_argument(
        "--try",
        action="append",
        default=[],
        metavar="CHANGE",
        dest="advice",
        help="evaluate this change instead of searching: a change's name or key=value,key=value; "
        "a + in front adds it to the previous one; repeatable",
    )
    group.add_argument(
        "--write", type=Path, metavar="FILE", help="write the first plan as a job file"
    )
    add_output_flags(parser)


def run(args: argparse.Namespace) -> int:
    from vramcast.plan.search import plan
    from vramcast.report.plan_report import plans_json, render

    job, limits = _with_global_batch(job_of(args, args.model), args.global_batch), _limits(args)
    if args.advice:
        return _price(args, job)
    plans = plan(job, limits, _progress())
    show_progress("")
    fits = bool(plans.base.verdict().fits)
    if args.write:
        _write(
            args.write, plans.base.job if fits else plans.fitting[0].job if plans.fitting else None
        )
    traced = _traced(plans.fitting) if args.verify else ()
    if args.json:
        print_json(plans_json(plans, traced))
    else:
        print(render(plans, traced, markdown=args.markdown, lang=args.lang))
    return 0 if fits or plans.fitting else 1


def _progress() -> Callable[[int, Plan | None], None]:
    """On a terminal, what a search that takes longer has found so far."""
    started, found = time.monotonic(), list[str]()

    def told(num_estimated: int, plan: Plan | None) -> None:
        if plan is not None:
            found.append(" + ".join(move.name for move in plan.moves))
        if time.monotonic() - started > QUIET_SECONDS:
            fits = f"; fits: {'; '.join(found)}" if found else ""
            show_progress(f"{num_estimated} combinations estimated{fits}")

    return told


def _traced(found: tuple[Plan, ...]) -> tuple[Traced, ...]:
    """Each takes seconds to a minute. What only a collection frees must be freed, as where it will be trained."""
    from vramcast.plan.verify import trace

    gc.enable()
    traced = []
    for number, each in enumerate(found, 1):
        show_progress(f"tracing plan {number} of {len(found)} on the virtual GPU")
        traced.append(trace(each.forecast))
    show_progress("")
    return tuple(traced)


def _price(args: argparse.Namespace, job: Job) -> int:
    """Somebody's advice instead of a search; 0 where a line of it fits."""
    from vramcast.engine import estimate
    from vramcast.plan.advice import price_advice
    from vramcast.plan.search import about
    from vramcast.report.advice import advice_json, render_advice

    about(job)
    base = estimate(job)
    priced = price_advice(base, args.advice)
    fitting = [line.job for line in priced[1:] if line.fits]
    if args.write:
        _write(args.write, fitting[0] if fitting else None)
    if args.json:
        print_json(advice_json(base, priced))
    else:
        print(render_advice(base, priced, markdown=args.markdown, lang=args.lang))
    return 0 if fitting else 1


def _limits(args: argparse.Namespace) -> Limits:
    keep = frozenset(name.strip() for name in args.keep.split(",") if name.strip())
    unknown = keep.difference(fields())
    if unknown:
        raise InputError(
            f"--keep: {', '.join(sorted(unknown))} is not a job key. Known: {', '.join(fields())}"
        )
    if args.max_slowdown is not None and not args.max_slowdown > 0:
        raise InputError(f"--max-slowdown must be above 0, not {args.max_slowdown:g}")
    return Limits(keep=keep, max_slowdown=args.max_slowdown, second_gpu=args.second_gpu)


def _with_global_batch(job: Job, samples: int | None) -> Job:
    if samples is None:
        return job
    copies = topology_of(resolve(job)).data
    if samples < 1 or samples % (job.batch * copies):
        of = f"the micro-batch {job.batch}" + (
            f" on {copies} copies of the model" if copies > 1 else ""
        )
        raise InputError(f"--global-batch {samples} is not a multiple of {of}")
    return replace(job, accumulate=samples // (job.batch * copies))


def _write(path: Path, job: Job | None) -> None:
    from vramcast.jobfile import write_job

    if job is None:
        raise InputError(f"nothing fits, so {path} was not written")
    try:
        path.write_text(write_job(job), encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error})") from None
