"""`vramcast estimate MODEL`: the memory breakdown of one job, and whether it fits."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from vramcast.cli.from_files import with_reading
from vramcast.cli.options import add_job_flags, add_output_flags, job_of, print_json
from vramcast.cli.output import print_report
from vramcast.cli.pictures import add_picture_flags, timeline_of, write_pictures
from vramcast.errors import InputError, UnsupportedError
from vramcast.forecast import Forecast
from vramcast.forecasting import estimate
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
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="every line, phases, sources of assumptions"
    )
    add_picture_flags(parser)


def run(args: argparse.Namespace) -> int:
    if args.explain and (args.json or args.markdown):
        raise InputError("--explain prints text: leave out --json and --markdown")
    job = job_of(args, args.model)
    forecast = with_reading(estimate(job), args)
    _write_pictures(forecast, args)
    if args.explain:
        _print_explanation(job, forecast, args.explain)
    elif args.json:
        from vramcast.report.as_json import forecast_json

        print_json(forecast_json(forecast))
    else:
        _print_breakdown(forecast, args)
    return 1 if forecast.verdict().fits is False else 0


def _write_pictures(forecast: Forecast, args: argparse.Namespace) -> None:
    def html() -> str:
        from vramcast.report.html import render_document

        return render_document(forecast, args.lang, timeline_of(forecast))

    def svg() -> str:
        from vramcast.report.picture import render_picture

        return render_picture(forecast, args.lang, timeline_of(forecast))

    write_pictures(args, html, svg)


def _print_breakdown(forecast: Forecast, args: argparse.Namespace) -> None:
    from vramcast.report.breakdown import render_markdown, render_text

    if args.markdown:
        print(render_markdown(forecast, args.lang))
    else:
        print_report(render_text(forecast, args.lang, verbose=args.verbose))
    if forecast.served is not None:
        _print_changes(forecast, args.lang)
        return
    is_too_large = forecast.verdict().fits is False
    if forecast.job is not None and forecast.job.task in ("generate", "score", "encode"):
        if is_too_large:
            _print_inference_hints(forecast, args.lang)
        return
    if is_too_large and forecast.job is not None and forecast.job.model is not None:
        from vramcast.plan.hints import hints
        from vramcast.report.hints import render_hints

        print_report(f"\n{render_hints(hints(forecast), args.lang)}")


def _print_changes(forecast: Forecast, lang: str) -> None:
    """What makes a serving engine start, where it would not."""
    from vramcast.plan.serving import serving_changes
    from vramcast.report.serving import render_changes

    if forecast.served is not None and not forecast.served.starts:
        print_report(f"\n{render_changes(forecast.served, serving_changes(forecast), lang)}")


def _print_inference_hints(forecast: Forecast, lang: str) -> None:
    from vramcast.plan.inference import inference_hints
    from vramcast.report.serving import render_inference_hints

    found = inference_hints(forecast)
    if found:
        print_report(f"\n{render_inference_hints(found, lang)}")


def _print_explanation(job: Job, forecast: Forecast, line: str) -> None:
    from vramcast.report.explain import render_entries

    entries = _matching_entries(forecast.ledger, line)
    activations = frozenset(
        entry.component for entry in entries if entry.category == Category.ACTIVATIONS
    )
    tensors = () if forecast.is_traced else _saved_tensors(job, activations)
    print_report(render_entries(entries, tensors))


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
