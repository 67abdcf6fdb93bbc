"""`vramcast compare A B …`: several jobs side by side. Each is a job file, or a model followed by flags in quotes."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from vramcast.cli import Parser
from vramcast.cli.options import add_job_flags, add_output_flags, job_of, print_json
from vramcast.engine import estimate
from vramcast.errors import InputError
from vramcast.job import Job


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "jobs",
        nargs="+",
        metavar="JOB",
        help='a job file, or a model with flags in quotes: "phi-3-mini --batch 4"; flags outside quotes apply to all',
    )
    add_job_flags(parser)
    add_output_flags(parser)


def run(args: argparse.Namespace) -> int:
    jobs = [_job(text, args) for text in args.jobs]
    forecasts = [estimate(job) for job in jobs]
    if args.json:
        from vramcast.report.as_json import SCHEMA, forecast_json

        forms = [forecast_json(forecast) for forecast in forecasts]
        print_json({"schema": SCHEMA, "forecasts": forms})
    else:
        from vramcast.report.side_by_side import render

        print(render(args.jobs, forecasts, markdown=args.markdown, lang=args.lang))
    return 1 if any(forecast.verdict().fits is False for forecast in forecasts) else 0


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
    own = parser.parse_args(words)
    for name, value in vars(own).items():
        if value is None:
            setattr(own, name, getattr(common, name, None))
    return job_of(own, own.model)
