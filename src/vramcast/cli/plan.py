"""`vramcast plan MODEL --gpu …`: the cheapest changes that make a job fit."""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vramcast.cli.from_files import patches, with_gaps, with_reading, write_patch
from vramcast.cli.options import add_job_flags, add_output_flags, job_of, print_json
from vramcast.cli.output import QUIET_SECONDS, print_report, show_progress, terminal_width
from vramcast.cli.pictures import add_picture_flags, asks_for_pictures, write_pictures
from vramcast.engine import topology_of
from vramcast.errors import InputError, unknown
from vramcast.job import Job, fields
from vramcast.plan.ranking import Limits
from vramcast.setup import resolve
from vramcast.setup.tasks import ONE_PASS

if TYPE_CHECKING:  # loaded where they are used: mistakes in the flags are reported without them
    from vramcast.configs import Patch
    from vramcast.forecast import Verdict
    from vramcast.plan.plans import Plan, Plans
    from vramcast.plan.verify import Traced

IN_PLACE = Path("")  # --write without a file


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
        "--write",
        type=Path,
        nargs="?",
        const=IN_PLACE,
        metavar="FILE",
        help="write the first plan as a job file; with --from and no FILE, change the files that were read",
    )
    add_output_flags(parser)
    add_picture_flags(parser)


def run(args: argparse.Namespace) -> int:
    from vramcast.plan.search import plan
    from vramcast.report.configs import patches_json, render_patches
    from vramcast.report.plan_report import plans_json, render

    job = job_of(args, args.model)
    if asks_for_pictures(args) and (args.advice or job.engine is not None):
        raise InputError("--html, --svg and --png show a search: leave out --try and --engine")
    if job.engine is not None:
        return _plan_serving(args, job)
    if job.task in ("generate", *ONE_PASS):
        return _plan_inference(args, job)
    job, limits = _with_global_batch(job, args.global_batch), _limits(args)
    if args.advice:
        return _price(args, job)
    plans = plan(job, limits, _progress())
    plans = replace(plans, base=with_reading(plans.base, args))
    show_progress("")
    fits = bool(plans.base.verdict().fits)
    changed = [] if fits or plans.base.job is None else [each.job for each in plans.fitting]
    found = [] if plans.base.job is None else patches(args, plans.base.job, changed)
    if args.write == IN_PLACE:
        _write_in_place(args, found, fits=fits)
    elif args.write:
        _write(
            args.write, plans.base.job if fits else plans.fitting[0].job if plans.fitting else None
        )
    traced = _traced(plans.fitting) if args.verify else ()
    _write_pictures(args, plans)
    if args.json:
        print_json({**plans_json(plans, traced), **patches_json(found, _verdicts(found, args))})
    else:
        text = render(plans, traced, markdown=args.markdown, lang=args.lang, width=terminal_width())
        print_report(text, as_it_is=args.markdown)
        if found:
            text = render_patches(found, _verdicts(found, args), args.lang)
            print_report(f"\n{text}", as_it_is=True)
    return 0 if fits or plans.fitting else 1


def _plan_serving(args: argparse.Namespace, job: Job) -> int:
    """Changes of an engine's flags; 0 where it starts, or one of them makes it."""
    from vramcast.engine import estimate
    from vramcast.plan.serving import serving_changes
    from vramcast.report.as_json import forecast_json
    from vramcast.report.serving import changes_json, render_changes
    from vramcast.report.verdict import headline

    forecast = with_reading(estimate(job), args)
    changes = serving_changes(forecast)
    assert forecast.served is not None
    if args.json:
        print_json({**forecast_json(forecast), "changes": changes_json(changes)})
    else:
        first = headline(forecast.verdict(), args.lang)
        text = render_changes(forecast.served, changes, args.lang)
        print_report("\n\n".join(part for part in (first, text) if part))
    if args.write and args.write != IN_PLACE:
        first_job = job if forecast.served.starts else next((one.job for one in changes), None)
        _write(args.write, first_job)
    return 0 if forecast.served.starts or changes else 1


def _plan_inference(args: argparse.Namespace, job: Job) -> int:
    """Changes of a job of generate() or of one pass; 0 where it fits, or one of them makes it."""
    from vramcast.forecasting import estimate
    from vramcast.plan.inference import inference_changes
    from vramcast.report.as_json import forecast_json
    from vramcast.report.serving import inference_json, render_inference_hints
    from vramcast.report.verdict import headline

    if asks_for_pictures(args) or args.advice or args.verify:
        raise InputError(
            f"a plan of task {job.task} tries single changes: leave out --html, --svg, --png, --try and --verify"
        )
    forecast = with_reading(estimate(job), args)
    fits = forecast.verdict().fits is not False
    changes = inference_changes(forecast)
    if args.json:
        print_json({**forecast_json(forecast), "changes": inference_json(changes)})
    else:
        shown = tuple(replace(one, fits=False) for one in changes) if fits else changes
        text = render_inference_hints(shown, args.lang) if changes else ""
        first = headline(forecast.verdict(), args.lang)
        print_report("\n\n".join(part for part in (first, text) if part))
    fitting = [one.job for one in changes if one.fits]
    if args.write and args.write != IN_PLACE:
        _write(args.write, job if fits else next(iter(fitting), None))
    return 0 if fits or fitting else 1


def _write_pictures(args: argparse.Namespace, plans: Plans) -> None:
    def html() -> str:
        from vramcast.report.html_reports import plan_document

        return plan_document(plans, args.lang)

    def svg() -> str:
        from vramcast.report.html import name_of
        from vramcast.report.html_reports import plan_front
        from vramcast.report.picture import stand_alone

        return stand_alone(plan_front(plans, args.lang), name_of(plans.base))

    write_pictures(args, html, svg)


def _verdicts(found: list[Patch], args: argparse.Namespace) -> list[Verdict | None]:
    """Of the changed files without the flags beside them, where they do not say the whole plan."""
    from vramcast.engine import estimate

    return [
        None
        if patch.job is None or not patch.after
        else with_gaps(estimate(patch.job), args).verdict()
        for patch in found
    ]


def _write_in_place(args: argparse.Namespace, found: list[Patch], *, fits: bool) -> None:
    if not args.sources:
        raise InputError("--write needs a FILE, or the files of --from to change")
    if fits:
        return
    if not found:
        raise InputError("nothing fits, so no file was changed")
    if not found[0].after:
        raise InputError("the files have no words for the first plan, so none was changed")
    write_patch(found[0])


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
    base = with_reading(estimate(job), args)
    priced = price_advice(base, args.advice)
    fitting = [line.job for line in priced[1:] if line.fits]
    if args.write:
        _write(args.write, fitting[0] if fitting else None)
    if args.json:
        print_json(advice_json(base, priced))
    else:
        text = render_advice(
            base, priced, markdown=args.markdown, lang=args.lang, width=terminal_width()
        )
        print_report(text, as_it_is=args.markdown)
    return 0 if fitting else 1


def _limits(args: argparse.Namespace) -> Limits:
    keep = frozenset(name.strip() for name in args.keep.split(",") if name.strip())
    for name in sorted(keep.difference(fields())):
        raise unknown("job key for --keep", name, fields(), "See vramcast estimate --help-all.")
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
