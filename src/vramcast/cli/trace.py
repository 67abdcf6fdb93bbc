"""`vramcast trace train.py --gpu rtx4090 -- --epochs 1`: the user's own script on virtual cards."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramcast.cli.options import print_json
from vramcast.errors import InputError

if TYPE_CHECKING:
    from vramcast.forecast import Forecast
    from vramcast.virtual.gpu import VirtualGpu
    from vramcast.virtual.script import Run


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("script", help="the training script, unchanged")
    parser.add_argument("arguments", nargs="*", help="what the script itself is given; put them after --")
    parser.add_argument("--gpu", required=True, metavar="NAME", help="a card of the catalog, or a size such as 24GiB")
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="how many of them the script sees (default 1)")
    parser.add_argument(
        "--rank",
        type=int,
        default=None,
        metavar="R",
        help="run as this rank of a job over --gpus, as torchrun would start it",
    )
    parser.add_argument("--steps", type=int, default=None, metavar="N", help="stop after N optimizer steps")
    parser.add_argument(
        "--empty-weights", action="store_true", help="from_pretrained needs a config only, no weights on disk"
    )
    parser.add_argument(
        "--kernels", choices=("cuda", "cpu"), default="cuda", help="whose kernels decide what is kept (default cuda)"
    )
    parser.parse_args = parser.parse_intermixed_args  # type: ignore[method-assign]  # flags may follow the script
    parser.add_argument(
        "--job",
        type=Path,
        default=None,
        metavar="FILE",
        help="lay the formulas' answer for this job file beside the trace",
    )
    parser.add_argument("--json", action="store_true", help="the documented JSON, one per card")


def run(args: argparse.Namespace) -> int:
    try:
        from vramcast.virtual import virtual_gpu
        from vramcast.virtual.script import run_script
    except ImportError as error:
        raise InputError(f"vramcast trace needs torch ({error}). Install it: pip install 'vramcast[trace]'") from error
    gpu = virtual_gpu(
        args.gpu,
        count=args.gpus,
        steps=args.steps,
        kernels=args.kernels,
        empty_weights=args.empty_weights,
        rank=args.rank,
    )
    with contextlib.redirect_stdout(sys.stderr):  # the report alone goes to stdout
        ended = run_script(args.script, args.arguments, gpu)
    forecast = _forecast(gpu, ended)
    formula = None if args.job is None else _formula(args.job)
    used = [place for place in gpu.places if place in forecast.ledger.devices()]
    if args.json:
        data = [_json(gpu, forecast, ended, place) for place in used]
        if formula is not None:
            from vramcast.report.as_json import forecast_json
            from vramcast.report.trace_beside import beside_json

            for place, form in zip(used, data, strict=True):
                form["trace"]["formula"] = forecast_json(formula)
                form["trace"]["beside"] = beside_json(forecast.ledger, formula.ledger, place)
        print_json(data[0] if args.gpus == 1 or args.rank is not None else data)
    else:
        from vramcast.report.trace import render_trace

        texts = (render_trace(forecast, _points(gpu, place), _ending(args, ended), place) for place in used)
        print("\n\n".join(texts))
        if formula is not None:
            from vramcast.report.side_by_side import render
            from vramcast.report.trace_beside import beside_text

            print(f"\n{render(['traced', 'formula'], [forecast, formula], markdown=False, lang='en')}")
            for place in used:
                print(f"\n{beside_text(forecast.ledger, formula.ledger, place)}")
    return 1 if ended.out_of_memory or any(forecast.verdict(place).fits is False for place in used) else 0


def _forecast(gpu: VirtualGpu, ended: Run) -> Forecast:
    from vramcast.errors import TraceError
    from vramcast.forecast import Forecast

    ledger = gpu.ledger()
    if not ledger.devices():
        raise TraceError("the script put nothing on a GPU: no tensor was ever on cuda.")
    notes = tuple(f"{text} ({times} times)" if times > 1 else text for text, times in gpu.notes.items())
    warnings = (f"out of memory at {ended.out_of_memory_line}: {ended.out_of_memory}",) if ended.out_of_memory else ()
    return Forecast(model=None, job=None, gpu=gpu.card, ledger=ledger, assumptions=notes, warnings=warnings)


def _formula(path: Path) -> Forecast:
    from vramcast.formulas.estimate import estimate
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
                "event": point.event, "phase": point.phase, "allocated_bytes": point.allocated_bytes,
                "reserved_bytes": point.reserved_bytes,
            }
            for point in gpu.timeline(place)
        ],
    }  # fmt: skip
    return data
