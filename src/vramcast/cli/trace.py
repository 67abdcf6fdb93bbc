"""`vramcast trace train.py --gpu rtx4090 -- --epochs 1`: the user's own script on virtual cards."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramcast.cli.oom_hook import ExceptHook, explain_oom
from vramcast.cli.options import add_language_flag
from vramcast.cli.output import print_report
from vramcast.cli.pictures import (
    PICTURE_FLAGS,
    add_picture_flags,
    asks_for_pictures,
    write_pictures,
)
from vramcast.cli.protection import PROTECTION_FLAGS, add_protection_flags, protection_options
from vramcast.cli.terminal import print_error
from vramcast.errors import InputError
from vramcast.report.as_json import json_text

if TYPE_CHECKING:
    from vramcast.forecast import Forecast
    from vramcast.report.trace import HowItEnded
    from vramcast.sandbox.session import Session
    from vramcast.virtual.endings import Run
    from vramcast.virtual.gpu import VirtualGpu
    from vramcast.virtual.launch import Launch


MAX_ERROR_LINES = 60  # of an error that shows where a script failed


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "command",
        nargs="*",
        help="the training script, unchanged, and after -- its arguments; or after -- the whole line that starts the "
        "run: torchrun …, accelerate launch …, deepspeed …, python -m …",
    )
    parser.add_argument(
        "-m",
        dest="module",
        metavar="MODULE",
        help="run a module, as python -m does, in place of a script",
    )
    parser.add_argument(
        "--gpu",
        required=True,
        metavar="NAME",
        help="a built-in GPU, or a size such as 24GiB",
    )
    parser.add_argument(
        "--gpus",
        type=int,
        default=None,
        metavar="N",
        help="how many GPUs the script sees (default: as many as a launcher starts processes, else 1)",
    )
    parser.add_argument(
        "--rank",
        type=int,
        default=None,
        metavar="R",
        help="run as this rank of a job over --gpus, as torchrun would start it",
    )
    parser.add_argument(
        "--steps", type=int, default=None, metavar="N", help="stop after N optimizer steps"
    )
    parser.add_argument(
        "--empty-weights",
        action="store_true",
        help="from_pretrained needs only a config, no weights on disk",
    )
    parser.add_argument(
        "--kernels",
        choices=("cuda", "cpu"),
        default="cuda",
        help="whose kernels decide which tensors are saved (default cuda)",
    )
    parser.add_argument(
        "--job",
        type=Path,
        default=None,
        metavar="FILE",
        help="compare the trace with the formulas' estimate for this job file",
    )
    parser.add_argument(
        "--save",
        metavar="FILE.trace",
        help="keep every allocation, for vramcast compare A.trace B.trace",
    )
    parser.add_argument(
        "--snapshot",
        metavar="FILE.pickle",
        help="write a torch memory snapshot with frames, for memory_viz and vramcast snapshot",
    )
    parser.add_argument(
        "--scale",
        metavar="NAME=FLAG,…",
        help="trace the script at a few sizes and answer for all: batch=--batch-size,seq=--max-length; the command "
        "says the sizes to begin with",
    )
    parser.add_argument("--json", action="store_true", help="the documented JSON, one per GPU")
    add_language_flag(parser)
    add_picture_flags(parser)
    add_protection_flags(parser)
    parser.parse_args = functools.partial(_parse, parser)  # type: ignore[method-assign, assignment]


def _parse(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Flags may follow the script. What follows -- is not looked at."""
    words = list(arguments)
    end = words.index("--") if "--" in words else len(words)
    args, unknown = parser.parse_known_intermixed_args(words[:end])
    if unknown:
        parser.error(
            f"unrecognized arguments: {' '.join(unknown)} (the script's own come after --)"
        )
    args.command = [*args.command, *words[end + 1 :]]
    if args.module is not None:
        args.command = ["-m", args.module, *args.command]
    if not args.command:
        parser.error("there is nothing to run: give a script, or -- and the line that starts it")
    return args


def run(args: argparse.Namespace) -> int:
    """In a process of its own, which cannot change the user's files."""
    from vramcast.catalog.gpus import find_gpu

    find_gpu(args.gpu)  # a name that is none is told before torch is loaded
    from vramcast.sandbox.process import run_protected

    ours = (*PROTECTION_FLAGS, *PICTURE_FLAGS)
    payload = {name: value for name, value in vars(args).items() if name not in ours}
    payload["job"] = None if args.job is None else str(args.job)
    if args.scale is not None and asks_for_pictures(args):
        raise InputError("--html, --svg and --png show one run: leave out --scale")
    if args.scale is not None:
        from vramcast.cli.trace_scale import run_scaled

        return run_scaled(args, payload)
    options = protection_options(args)
    if args.save or args.snapshot or asks_for_pictures(args):
        payload["keeps"] = "frames" if args.snapshot else "sizes"

    def show(answer: dict[str, Any]) -> None:
        _save(args, answer)
        _show(answer)

    def show_first(answer: dict[str, Any]) -> None:
        if not answer["runs_again"]:
            show(answer)

    answer = run_protected("vramcast.cli.trace:trace_here", payload, options, show_first)
    if answer["runs_again"]:
        print(RUNS_AGAIN, file=sys.stderr)
        payload["lifts_limit"] = "always"
        answer = run_protected("vramcast.cli.trace:trace_here", payload, options, show)
    return int(answer["exit_code"])


def _save(args: argparse.Namespace, answer: dict[str, Any]) -> None:
    if args.save:
        from vramcast.traces.record import write

        write(args.save, answer["trace"])
    if args.snapshot:
        from vramcast.traces.snapshot import write_snapshot

        write_snapshot(args.snapshot, answer["snapshot"])
    if asks_for_pictures(args):
        _write_pictures(args, answer)


def _write_pictures(args: argparse.Namespace, answer: dict[str, Any]) -> None:
    """From the trace as it would be saved."""
    from vramcast.catalog.gpus import find_gpu
    from vramcast.forecast import Forecast
    from vramcast.report.html_reports import TracedRun, trace_document
    from vramcast.report.picture import render_picture
    from vramcast.report.words.sentences import translate
    from vramcast.timelines.of_trace import timeline_of_trace
    from vramcast.traces.record import from_json

    trace = from_json(answer["trace"])
    forecast = Forecast(
        model=None,
        job=None,
        gpu=find_gpu(args.gpu),
        ledger=trace.ledger,
        assumptions=(),
        warnings=(),
    )
    timelines = [timeline_of_trace(trace, place) for place in trace.cards]
    name = " ".join(trace.command)
    run = TracedRun(
        name=name,
        ending=translate(f"{trace.ending} after {trace.steps} steps", args.lang),
        is_decided=int(answer["exit_code"]) in (0, 1),
        text="" if answer["report"].startswith(("{", "[")) else answer["report"],
    )
    write_pictures(
        args,
        lambda: trace_document(run, forecast, timelines, args.lang),
        lambda: render_picture(forecast, args.lang, timelines[0] if timelines else None, name),
    )


RUNS_AGAIN = (
    "vramcast: the script may catch the out-of-memory error, so it got it. It is run again without the limit, "
    "to see what it needs."
)


def _show(answer: dict[str, Any]) -> None:
    is_json = answer["report"].startswith(("{", "["))
    print_report(answer["report"], as_it_is=is_json)
    sys.stdout.flush()
    if answer["error"]:
        print_error(f"vramcast: {answer['error']}", lines=MAX_ERROR_LINES)


def trace_here(payload: dict[str, Any], session: Session) -> dict[str, Any]:
    """In the process of the traced script: its report and its exit code."""
    try:
        from vramcast.virtual import virtual_gpu
        from vramcast.virtual.accounting.cards import Lifting
        from vramcast.virtual.accounting.export import trace_json
        from vramcast.virtual.launch import cards_asked_for, read_command
        from vramcast.virtual.script import run_launch
        from vramcast.virtual.torch_patches.launchers import NeedsCards
        from vramcast.virtual.torch_patches.snapshots import snapshot
    except ImportError as error:
        raise InputError(
            f"vramcast trace needs torch ({error}). Install it: pip install 'vramcast[trace]'"
        ) from error
    args = argparse.Namespace(**payload)

    def explain(error: BaseException) -> str | None:
        return session.protection.explain(error) or explain_oom(error)

    launch = read_command(args.command)
    count = args.gpus or cards_asked_for(args.command) or 1
    is_launched = launch.console is not None or launch.per_node > 0 or launch.module != ""
    while True:
        gpu = virtual_gpu(
            args.gpu,
            count=count,
            steps=args.steps,
            kernels=args.kernels,
            empty_weights=args.empty_weights,
            rank=None if is_launched and args.gpus is None else args.rank,
            protect=False,
            lifts_limit=Lifting.ALWAYS if payload.get("lifts_limit") else Lifting.UNCAUGHT,
        )
        if payload.get("keeps"):
            gpu.keep_history(with_frames=payload["keeps"] == "frames")
        try:
            with ExceptHook():  # for threads; an error of the main one is explained in the report
                ended = run_launch(launch, gpu, args.rank, explain)
            break
        except NeedsCards as needs:
            if args.gpus is not None:
                raise InputError(
                    f"--gpus {args.gpus}: the launcher starts {needs.count} processes on a node."
                ) from None
            count = needs.count
    forecast = _with_versions(_forecast(gpu, ended), launch)
    formula = None if args.job is None else _formula(Path(args.job))
    used = [place for place in gpu.places if place in forecast.ledger.devices()]
    report = _as_json if args.json else _as_text
    traced = Traced(
        name=launch.name, gpu=gpu, ended=ended, forecast=forecast, formula=formula, used=used
    )
    has_failed = not ended.is_whole and not ended.is_ended_from_outside
    kept: dict[str, Any] = {}
    if payload.get("keeps"):
        kept["trace"] = trace_json(gpu, args.command, ended.steps, str(ended.ending))
    if payload.get("keeps") == "frames":
        kept["snapshot"] = snapshot(gpu)
    return {
        **kept,
        "lost": list(ended.lost),
        "report": report(args, traced, session),
        "exit_code": _exit_code(traced),
        "error": ended.error_text() if has_failed else "",
        "runs_again": ended.shortfall is not None and not ended.shortfall.went_on,
    }


def _exit_code(traced: Traced) -> int:
    """0 fits, 1 does not fit, 2 not decided, 130 and 143 as after Ctrl-C and SIGTERM."""
    ended = traced.ended
    if ended.is_ended_from_outside:
        return 130 if ended.ending == "was interrupted" else 143
    if ended.lost:
        return 2
    if ended.shortfall or any(
        traced.forecast.verdict(place).fits is False for place in traced.used
    ):
        return 1
    return 0 if ended.is_whole else 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    name: str  # of what was run: the script, not the interpreter before it
    gpu: VirtualGpu
    ended: Run
    forecast: Forecast
    formula: Forecast | None
    used: list[str]


def _as_json(args: argparse.Namespace, traced: Traced, session: Session) -> str:
    from vramcast.report.as_json import forecast_json
    from vramcast.report.trace_against_formula import against_formula_json

    data = [_json(traced.gpu, traced.forecast, traced.ended, place) for place in traced.used]
    footprint = session.footprint().as_json()
    for place, form in zip(traced.used, data, strict=True):
        form["trace"]["footprint"] = footprint
        if traced.formula is not None:
            form["trace"]["formula"] = forecast_json(traced.formula)
            form["trace"]["beside"] = against_formula_json(
                traced.forecast.ledger, traced.formula.ledger, place
            )
    return json_text(data[0] if traced.gpu.count == 1 or traced.gpu.world.fixed else data)


def _as_text(args: argparse.Namespace, traced: Traced, session: Session) -> str:
    from vramcast.report.side_by_side import render
    from vramcast.report.trace import footprint_lines, render_trace
    from vramcast.report.trace_against_formula import against_formula_text

    forecast, ending = traced.forecast, _ending(traced.name, traced.ended)
    texts = [
        render_trace(forecast, _points(traced.gpu, place), ending, place, args.lang)
        for place in traced.used
    ]
    texts[-1] = "\n".join([texts[-1], *footprint_lines(session.footprint(), args.lang)])
    if traced.formula is not None:
        texts.append(
            render(
                ["traced", "formula"], [forecast, traced.formula], markdown=False, lang=args.lang
            )
        )
        texts += [
            against_formula_text(forecast.ledger, traced.formula.ledger, place, args.lang)
            for place in traced.used
        ]
    return "\n\n".join(texts)


def _forecast(gpu: VirtualGpu, ended: Run) -> Forecast:
    from vramcast.errors import TraceError
    from vramcast.forecast import Forecast

    ledger = gpu.ledger()
    if not ledger.devices():
        ended.check()
        raise TraceError("the script put nothing on a GPU: no tensor was ever on cuda.")
    notes = tuple(
        f"{text} ({times} times)" if times > 1 else text for text, times in gpu.notes.items()
    )
    warnings = ended.lost
    if ended.out_of_memory:
        warnings = (
            *warnings,
            f"out of memory at {ended.out_of_memory_line}: {ended.out_of_memory}",
        )
    return Forecast(
        model=None, job=None, gpu=gpu.card, ledger=ledger, assumptions=notes, warnings=warnings
    )


def _with_versions(forecast: Forecast, launch: Launch) -> Forecast:
    """Which libraries decided, and where the files beside the script ask for others."""
    from vramcast.virtual.versions_beside import deciding_versions, differences, explain_versions

    installed = deciding_versions()
    folder = Path.cwd() if launch.script is None else launch.script.resolve().parent
    return replace(
        forecast,
        assumptions=(*forecast.assumptions, explain_versions(installed)),
        warnings=(*forecast.warnings, *differences(folder, installed)),
    )


def _formula(path: Path) -> Forecast:
    from vramcast.engine import estimate
    from vramcast.jobfile import read_job

    return estimate(read_job(path, {}))


def _ending(name: str, ended: Run) -> HowItEnded:
    from vramcast.report.trace import HowItEnded

    missing = ended.shortfall
    return HowItEnded(
        script=name,
        how=str(ended.ending),
        steps=ended.steps,
        line=ended.line,
        exit_code="" if ended.exit_code is None else str(ended.exit_code),
        out_of_memory_line=ended.out_of_memory_line,
        steps_before_limit=missing.steps if missing else 0,
        went_on=missing is not None and missing.went_on,
        is_whole=ended.is_whole,
        is_decided=ended.is_decided,
        lost=ended.lost,
    )


def _points(gpu: VirtualGpu, place: str) -> list[tuple[str, int]]:
    return [(point.phase, point.allocated_bytes) for point in gpu.timeline(place)]


def _json(gpu: VirtualGpu, forecast: Forecast, ended: Run, place: str) -> dict[str, Any]:
    from vramcast.report.as_json import forecast_json

    data = forecast_json(forecast, place)
    data["entries"] = [entry for entry in data["entries"] if entry["place"] in (place, "host")]
    data["phases"] = [phase for phase in data["phases"] if phase["place"] == place]
    if not ended.is_decided:
        data["verdict"]["fits"] = data["verdict"]["answer"] = None
    data["trace"] = {
        "steps": ended.steps,
        "ending": str(ended.ending),
        "is_decided": ended.is_decided,
        "error": ended.message or None,
        "error_line": ended.line or None,
        "lost": list(ended.lost),
        "went_on_without_limit": bool(ended.shortfall and ended.shortfall.went_on),
        "steps_before_limit": ended.shortfall.steps if ended.shortfall else None,
        "out_of_memory": ended.out_of_memory or None,
        "out_of_memory_line": ended.out_of_memory_line or None,
        "timeline": [
            {
                "event": point.event,
                "phase": point.phase,
                "allocated_bytes": point.allocated_bytes,
                "reserved_bytes": point.reserved_bytes,
            }
            for point in gpu.timeline(place)
        ],
    }
    return data
