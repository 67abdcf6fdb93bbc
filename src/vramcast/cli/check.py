"""`vramcast check MODEL --gpu …`, or a job file: one line and an exit code, for continuous integration."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from vramcast.cli.from_files import with_reading
from vramcast.cli.options import add_job_flags, add_language_flag, job_of, print_json
from vramcast.cli.output import print_report, print_warnings
from vramcast.errors import InputError
from vramcast.files import read_text
from vramcast.forecast import Answer, Forecast
from vramcast.forecasting import estimate
from vramcast.units import MiB, format_gib, parse_bytes

MOST_BASELINE_BYTES = 16 * MiB


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        nargs="?",
        help="as for estimate: a model's name, its config or folder; or a job file",
    )
    add_job_flags(parser)
    parser.add_argument(
        "--strict", action="store_true", help="exit with 1 where the answer is TIGHT, too"
    )
    parser.add_argument(
        "--margin",
        nargs="?",
        const="safe",
        metavar="SIZE",
        help="hold the safe limit against the card, or the peak and SIZE more: 5%%, 2GiB",
    )
    parser.add_argument(
        "--baseline", type=Path, metavar="FILE", help="an earlier `estimate --json` to compare with"
    )
    parser.add_argument(
        "--max-growth",
        metavar="P%",
        help="how much the peak may grow over the baseline (default 0%%)",
    )
    parser.add_argument(
        "--json", action="store_true", help="the documented JSON (docs/schema.json)"
    )
    add_language_flag(parser)


def run(args: argparse.Namespace) -> int:
    if args.max_growth is not None and args.baseline is None:
        raise InputError("--max-growth compares with an earlier answer: give it with --baseline")
    job = job_of(args, args.model)
    if args.strict and job.gpu is None:
        raise InputError("--strict refuses what is TIGHT on a card: give --gpu")
    forecast = with_reading(estimate(job), args)
    grown = _growth(forecast, args.baseline, args.max_growth or "0%") if args.baseline else ""
    wanted = None if args.margin is None else _with_margin(forecast, args.margin)
    if args.json:
        from vramcast.report.as_json import forecast_json

        print_json(forecast_json(forecast))
    else:
        from vramcast.report.verdict import headline
        from vramcast.report.words import say
        from vramcast.report.words.forecast import LABELS

        margin = (
            "" if wanted is None else say(LABELS, "with_margin", args.lang, size=format_gib(wanted))
        )
        print_report(f"{headline(forecast.verdict(), args.lang)}{margin}{grown}")
        print_warnings(forecast.warnings, args.lang)
    if wanted is not None and wanted > (forecast.verdict().capacity_bytes or 0):
        return 1
    refused = (Answer.DOES_NOT_FIT, Answer.TIGHT) if args.strict else (Answer.DOES_NOT_FIT,)
    return 1 if forecast.verdict().answer in refused or grown.endswith("TOO MUCH") else 0


def _with_margin(forecast: Forecast, margin: str) -> int:
    """The peak and what is to stay free, which the card must hold."""
    verdict = forecast.verdict()
    if verdict.capacity_bytes is None:
        raise InputError("--margin is what stays free on a card: give --gpu")
    percent = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)%", margin.strip())
    if margin == "safe":
        return verdict.safe_bytes or verdict.highest_bytes
    if percent:
        return round(verdict.highest_bytes * (1 + float(percent[1]) / 100))
    return verdict.highest_bytes + parse_bytes(margin)


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
