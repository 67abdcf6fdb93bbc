"""`vramcast estimate MODEL`: the memory breakdown of one job, and whether it fits."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from vramcast.cli.options import add_job_flags, add_output_flags, job_of, print_json
from vramcast.engine import estimate
from vramcast.errors import UnsupportedError
from vramcast.forecast import Forecast
from vramcast.job import Job
from vramcast.ledger import Category, Entry, Ledger

if TYPE_CHECKING:
    from vramcast.engine import LayerTensors


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        nargs="?",
        help="built-in model name, HF config.json or folder, safetensors file or folder",
    )
    parser.add_argument(
        "--explain",
        metavar="LINE",
        help="explain the lines whose name contains LINE: formula, phases, saved tensors",
    )
    add_job_flags(parser)
    add_output_flags(parser)


def run(args: argparse.Namespace) -> int:
    job = job_of(args, args.model)
    forecast = estimate(job)
    if args.explain:
        _print_explanation(job, forecast, args.explain)
    elif args.json:
        from vramcast.report.as_json import forecast_json

        print_json(forecast_json(forecast))
    else:
        _print_breakdown(forecast, markdown=args.markdown, lang=args.lang)
    return 1 if forecast.verdict().fits is False else 0


def _print_breakdown(forecast: Forecast, *, markdown: bool, lang: str) -> None:
    from vramcast.report.breakdown import render_markdown, render_text

    render = render_markdown if markdown else render_text
    print(render(forecast, lang))
    is_too_large = forecast.verdict().fits is False
    if is_too_large and forecast.job is not None and forecast.job.model is not None:
        from vramcast.plan.hints import hints
        from vramcast.report.hints import render_hints

        print(f"\n{render_hints(hints(forecast), lang)}")


def _print_explanation(job: Job, forecast: Forecast, line: str) -> None:
    from vramcast.report.explain import render_entries

    entries = _matching_entries(forecast.ledger, line)
    activations = frozenset(
        entry.component for entry in entries if entry.category == Category.ACTIVATIONS
    )
    print(render_entries(entries, _saved_tensors(job, activations)))


def _matching_entries(ledger: Ledger, line: str) -> list[Entry]:
    names = [f"{entry.category}: {entry.component}" for entry in ledger.entries]
    found = [
        entry
        for entry, name in zip(ledger.entries, names, strict=True)
        if line.lower() in name.lower()
    ]
    if not found:
        known = "; ".join(dict.fromkeys(names))
        raise UnsupportedError(f"no line matches {line!r}. Lines of this report: {known}.")
    return found


def _saved_tensors(job: Job, components: frozenset[str]) -> tuple[LayerTensors, ...]:
    if not components:
        return ()
    from vramcast.engine import list_saved_tensors

    return list_saved_tensors(job, components)
