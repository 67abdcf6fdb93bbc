"""`vramcast check job.yaml --gpu …`: one line and an exit code, for continuous integration."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from vramcast.cli.options import add_job_flags, job_of, print_json
from vramcast.engine import estimate
from vramcast.errors import InputError
from vramcast.files import read_text
from vramcast.forecast import Forecast
from vramcast.units import MiB, format_gib

MOST_BASELINE_BYTES = 16 * MiB


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, nargs="?", help="a job file")
    add_job_flags(parser)
    parser.add_argument(
        "--baseline", type=Path, metavar="FILE", help="an earlier `estimate --json` to compare with"
    )
    parser.add_argument(
        "--max-growth",
        metavar="P%",
        default="0%",
        help="how much the peak may grow over the baseline",
    )
    parser.add_argument(
        "--json", action="store_true", help="the documented JSON (docs/schema.json)"
    )


def run(args: argparse.Namespace) -> int:
    args.job = args.file or args.job
    forecast = estimate(job_of(args, None))
    grown = _growth(forecast, args.baseline, args.max_growth) if args.baseline else ""
    if args.json:
        from vramcast.report.as_json import forecast_json

        print_json(forecast_json(forecast))
    else:
        from vramcast.report.verdict import headline

        print(f"{headline(forecast.verdict(), 'en')}{grown}")
    return 1 if forecast.verdict().fits is False or grown.endswith("TOO MUCH") else 0


def _growth(forecast: Forecast, baseline: Path, allowed: str) -> str:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)%", allowed.strip())
    if not match:
        raise InputError(f"--max-growth must be a percentage such as 5%, not {allowed!r}")
    text = read_text(baseline, MOST_BASELINE_BYTES)
    try:
        before = json.loads(text)["verdict"]["allocated_bytes"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{baseline}: not the JSON of an estimate ({error})") from None
    now = forecast.verdict().allocated_bytes
    if type(before) is not int or not 0 < before < 2**63 or now is None:
        raise InputError(f"{baseline}: holds no allocated peak to compare with")
    growth = 100 * (now - before) / before
    verdict = "TOO MUCH" if growth > float(match[1]) else "ok"
    return f"   baseline {format_gib(before)}, {growth:+.1f} % (allowed {match[1]} %): {verdict}"
