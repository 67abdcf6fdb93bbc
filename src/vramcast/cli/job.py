"""`vramcast job --from FILE…`: the job that configuration files describe, with the origin of every value."""

from __future__ import annotations

import argparse

from vramcast.cli.options import add_job_flags, job_of, print_json
from vramcast.errors import InputError
from vramcast.report.words import LANGUAGES
from vramcast.setup import complete


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", help="the model, where the files do not say it")
    add_job_flags(parser)
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="the documented JSON (docs/schema.json)")
    group.add_argument("--lang", choices=LANGUAGES, default="en", help="language of the comments")


def run(args: argparse.Namespace) -> int:
    from vramcast.report.configs import job_json, render_job

    if not args.sources:
        raise InputError("name the files: vramcast job --from FILE…")
    job = job_of(args, args.model)
    if args.json:
        print_json(job_json(args.understood, complete(job)))
    else:
        print(render_job(args.understood, complete(job), args.lang))
    return 0
