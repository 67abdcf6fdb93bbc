"""`vramcast compare A B …`: several jobs side by side. Each is a job file, or a model followed by flags in quotes."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from vramcast.cli import Parser, with_dashes
from vramcast.cli.options import add_job_flags, add_output_flags, job_of, print_json
from vramcast.cli.output import print_report, print_warnings, terminal_width
from vramcast.cli.pictures import (
    add_picture_flags,
    asks_for_pictures,
    timeline_of,
    write_pictures,
)
from vramcast.errors import InputError
from vramcast.forecasting import estimate
from vramcast.job import Job
from vramcast.traces.record import SUFFIX

if TYPE_CHECKING:
    from vramcast.forecast import Forecast
    from vramcast.timelines.record import Timeline


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "jobs",
        nargs="+",
        metavar="JOB",
        help='a job file, or a model with flags in quotes: "phi-3-mini --batch 4"; flags outside quotes apply to all',
    )
    add_job_flags(parser)
    add_output_flags(parser)
    add_picture_flags(parser)


def run(args: argparse.Namespace) -> int:
    if len(args.jobs) == 2 and all(text.endswith(SUFFIX) for text in args.jobs):
        return _compare_traces((args.jobs[0], args.jobs[1]), args)
    jobs = [_job(text, args) for text in args.jobs]
    forecasts = [estimate(job) for job in jobs]
    _write_pictures(args, forecasts)
    if args.json:
        from vramcast.report.as_json import SCHEMA, forecast_json

        forms = [forecast_json(forecast) for forecast in forecasts]
        print_json({"schema": SCHEMA, "forecasts": forms})
    else:
        from vramcast.report.side_by_side import render

        text = render(
            args.jobs,
            forecasts,
            markdown=args.markdown,
            lang=args.lang,
            width=terminal_width(),
        )
        print_report(text, as_it_is=args.markdown)
        print_warnings((text for each in forecasts for text in each.warnings), args.lang)
    return 1 if any(forecast.verdict().fits is False for forecast in forecasts) else 0


def _compare_traces(names: tuple[str, str], args: argparse.Namespace) -> int:
    """Two traces that `vramcast trace --save` has kept."""
    from vramcast.report.trace_compare import render_traces
    from vramcast.traces.record import read

    traces = (read(names[0]), read(names[1]))
    text = render_traces(names, traces)
    print(text)
    if asks_for_pictures(args):
        from vramcast.report.html_reports import traces_document
        from vramcast.report.picture import render_timelines
        from vramcast.timelines.of_trace import timeline_of_trace

        both = [timeline_of_trace(trace) for trace in traces]
        write_pictures(
            args,
            lambda: traces_document(both, text, args.lang),
            lambda: render_timelines(both, args.lang),
        )
    return 0


MOST_TIMELINES = 4  # of jobs in one report


def _write_pictures(args: argparse.Namespace, forecasts: list[Forecast]) -> None:
    def timelines() -> list[Timeline]:
        found = (timeline_of(forecast) for forecast in forecasts[:MOST_TIMELINES])
        return [timeline for timeline in found if timeline is not None]

    def html() -> str:
        from vramcast.report.html_reports import compare_document

        return compare_document(args.jobs, forecasts, timelines(), args.lang)

    def svg() -> str:
        from vramcast.report.picture import render_pictures

        return render_pictures(args.jobs, forecasts, args.lang)

    write_pictures(args, html, svg)


def _job(text: str, common: argparse.Namespace) -> Job:
    """A file's job, or the flags in the text; in both, the common flags fill in what is not said."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(f"job {text!r}: {error}. Quotes inside a job come in pairs.") from None
    if not words:
        raise InputError("an empty job")
    parser = Parser(prog="vramcast compare", add_help=False, allow_abbrev=False)
    parser.add_argument("model", nargs="?")
    add_job_flags(parser)
    if Path(words[0]).suffix in (".yaml", ".yml"):
        words = ["--job", *words]
    own = parser.parse_args(with_dashes(words))
    for name, value in vars(own).items():
        if value is None:
            setattr(own, name, getattr(common, name, None))
    return job_of(own, own.model)
