"""`vramcast estimate MODEL`: the bill of one job, and whether it fits."""

from __future__ import annotations

import argparse

from vramcast.cli.options import add_job_flags, add_output_flags, job_of, print_json
from vramcast.engine.estimate import estimate


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", help="catalog name, HF config.json or folder, safetensors file or folder")
    parser.add_argument("--explain", metavar="LINE", help="show where a line of the bill comes from, tensor by tensor")
    add_job_flags(parser)
    add_output_flags(parser)


def run(args: argparse.Namespace) -> int:
    job = job_of(args, args.model)
    forecast = estimate(job)
    if args.explain:
        from vramcast.report.explain import explain

        print(explain(job, forecast, args.explain))
    elif args.json:
        from vramcast.report.as_json import forecast_json

        print_json(forecast_json(forecast))
    else:
        from vramcast.report.bill import render_markdown, render_text

        print(render_markdown(forecast, args.lang) if args.markdown else render_text(forecast, args.lang))
        if forecast.verdict().fits is False and job.model is not None:
            from vramcast.plan.hints import hints
            from vramcast.report.hints import render_hints

            print(f"\n{render_hints(hints(forecast), args.lang)}")
    return 1 if forecast.verdict().fits is False else 0
