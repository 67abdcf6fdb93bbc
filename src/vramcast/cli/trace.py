"""`vramcast trace train.py --gpu rtx4090 -- --epochs 1`: the user's own script on virtual cards."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramcast.cli.options import json_text
from vramcast.cli.protection import PROTECTION_FLAGS, add_protection_flags, protection_options
from vramcast.errors import InputError

if TYPE_CHECKING:
    from vramcast.forecast import Forecast
    from vramcast.sandbox.session import Session
    from vramcast.virtual.gpu import VirtualGpu
    from vramcast.virtual.script import Run


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("script", help="the training script, unchanged")
    parser.add_argument("arguments", nargs="*", help="arguments of the script; put them after --")
    parser.add_argument(
        "--gpu",
        required=True,
        metavar="NAME",
        help="a built-in GPU, or a size such as 24GiB",
    )
    parser.add_argument(
        "--gpus",
        type=int,
        default=1,
        metavar="N",
        help="how many GPUs the script sees (default 1)",
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
    parser.parse_args = parser.parse_intermixed_args  # type: ignore[method-assign]  # flags may follow the script
    parser.add_argument(
        "--job",
        type=Path,
        default=None,
        metavar="FILE",
        help="compare the trace with the formulas' estimate for this job file",
    )
    parser.add_argument("--json", action="store_true", help="the documented JSON, one per GPU")
    add_protection_flags(parser)


def run(args: argparse.Namespace) -> int:
    """In a process of its own, which cannot change the user's files."""
    from vramcast.sandbox.process import run_protected

    payload = {name: value for name, value in vars(args).items() if name not in PROTECTION_FLAGS}
    payload["job"] = None if args.job is None else str(args.job)
    answer = run_protected("vramcast.cli.trace:trace_here", payload, protection_options(args))
    print(answer["report"])
    return int(answer["exit_code"])


def trace_here(payload: dict[str, Any], session: Session) -> dict[str, Any]:
    """In the process of the traced script: its report and its exit code."""
    try:
        from vramcast.virtual import virtual_gpu
        from vramcast.virtual.script import run_script
    except ImportError as error:
        raise InputError(
            f"vramcast trace needs torch ({error}). Install it: pip install 'vramcast[trace]'"
        ) from error
    args = argparse.Namespace(**payload)
    gpu = virtual_gpu(
        args.gpu,
        count=args.gpus,
        steps=args.steps,
        kernels=args.kernels,
        empty_weights=args.empty_weights,
        rank=args.rank,
        protect=False,
    )
    ended = run_script(args.script, args.arguments, gpu, session.protection.explain)
    forecast = _forecast(gpu, ended)
    formula = None if args.job is None else _formula(Path(args.job))
    used = [place for place in gpu.places if place in forecast.ledger.devices()]
    report = _as_json if args.json else _as_text
    refused = bool(ended.out_of_memory) or any(
        forecast.verdict(place).fits is False for place in used
    )
    text = report(
        args, Traced(gpu=gpu, ended=ended, forecast=forecast, formula=formula, used=used), session
    )
    return {"report": text, "exit_code": int(refused)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
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
    return json_text(data[0] if args.gpus == 1 or args.rank is not None else data)


def _as_text(args: argparse.Namespace, traced: Traced, session: Session) -> str:
    from vramcast.report.side_by_side import render
    from vramcast.report.trace import footprint_lines, render_trace
    from vramcast.report.trace_against_formula import against_formula_text

    forecast, ending = traced.forecast, _ending(args, traced.ended)
    texts = [
        render_trace(forecast, _points(traced.gpu, place), ending, place) for place in traced.used
    ]
    texts[-1] = "\n".join([texts[-1], *footprint_lines(session.footprint())])
    if traced.formula is not None:
        texts.append(
            render(["traced", "formula"], [forecast, traced.formula], markdown=False, lang="en")
        )
        texts += [
            against_formula_text(forecast.ledger, traced.formula.ledger, place)
            for place in traced.used
        ]
    return "\n\n".join(texts)


def _forecast(gpu: VirtualGpu, ended: Run) -> Forecast:
    from vramcast.errors import TraceError
    from vramcast.forecast import Forecast

    ledger = gpu.ledger()
    if not ledger.devices():
        raise TraceError("the script put nothing on a GPU: no tensor was ever on cuda.")
    notes = tuple(
        f"{text} ({times} times)" if times > 1 else text for text, times in gpu.notes.items()
    )
    warnings = (
        (f"out of memory at {ended.out_of_memory_line}: {ended.out_of_memory}",)
        if ended.out_of_memory
        else ()
    )
    return Forecast(
        model=None, job=None, gpu=gpu.card, ledger=ledger, assumptions=notes, warnings=warnings
    )


def _formula(path: Path) -> Forecast:
    from vramcast.engine import estimate
    from vramcast.jobfile import read_job

    return estimate(read_job(path, {}))


def _ending(args: argparse.Namespace, ended: Run) -> str:
    how = "ran to its end"
    if ended.stopped:
        how = "stopped as asked"
    if ended.out_of_memory:
        how = f"ran out of memory at {ended.out_of_memory_line}"
    return f"{args.script} {how} after {ended.steps} optimizer step(s)"


def _points(gpu: VirtualGpu, place: str) -> list[tuple[str, int]]:
    return [(point.phase, point.allocated_bytes) for point in gpu.timeline(place)]


def _json(gpu: VirtualGpu, forecast: Forecast, ended: Run, place: str) -> dict[str, Any]:
    from vramcast.report.as_json import forecast_json

    data = forecast_json(forecast, place)
    data["entries"] = [entry for entry in data["entries"] if entry["place"] in (place, "host")]
    data["phases"] = [phase for phase in data["phases"] if phase["place"] == place]
    data["trace"] = {
        "steps": ended.steps,
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
