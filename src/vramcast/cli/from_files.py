"""`--from FILE…`: the job that configuration files of other frameworks describe, and what was not understood."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramcast.errors import OutputError
from vramcast.forecast import Forecast

if TYPE_CHECKING:
    from vramcast.configs import Patch, Understood
    from vramcast.job import Job


def add_from_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from",
        dest="sources",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="configuration files of any framework, read as they are: training YAML, accelerate YAML, DeepSpeed JSON, "
        "launch script, model folder; flags override them",
    )
    parser.add_argument(
        "--framework-version",
        metavar="VERSION",
        help="of the framework whose files --from reads; default as a lock file beside them pins it, else the newest",
    )


def read_sources(args: argparse.Namespace, flags: dict[str, Any]) -> Job:
    """The job in `args.sources`; what was understood stays on `args` for the report."""
    from vramcast.configs import job_of_files, understand
    from vramcast.job import FRAMEWORKS

    framework = args.read_as = flags.get("framework")
    if framework not in FRAMEWORKS:
        flags = {name: value for name, value in flags.items() if name != "framework"}
    args.read_flags = flags
    model = flags.get("model")
    understood = understand(
        args.sources,
        framework,
        version=args.framework_version,
        model=None if model is None else str(model),
    )
    job, args.understood = job_of_files(understood, flags)
    return job


def patches(args: argparse.Namespace, before: Job, plans: Sequence[Job]) -> list[Patch]:
    """The plans as changes of the files; none where the job is not from files."""
    if getattr(args, "understood", None) is None:
        return []
    from vramcast.configs import write_change

    return [
        write_change(args.understood, args.sources, before, job, args.read_flags, args.read_as)
        for job in plans
    ]


def write_patch(patch: Patch) -> None:
    """Put the changed texts in the place of the old ones, each file at once or not at all."""
    for path, text in patch.after.items():
        beside = path.with_name(f".{path.name}.vramcast")
        try:
            beside.write_bytes(text.encode("utf-8"))
            beside.replace(path)
        except OSError as error:
            raise OutputError(f"{path}: cannot be written ({error.strerror or error})") from None


def gaps_of(args: argparse.Namespace) -> tuple[str, ...]:
    """What the files say that matters and is in no answer."""
    understood: Understood | None = getattr(args, "understood", None)
    return () if understood is None else tuple(map(str, understood.gaps))


def with_gaps(forecast: Forecast, args: argparse.Namespace) -> Forecast:
    """The forecast, whose verdict says how much of the files is not in it."""
    return replace(forecast, not_understood=gaps_of(args))


def with_reading(forecast: Forecast, args: argparse.Namespace) -> Forecast:
    """The forecast, saying what the files said that is not in it."""
    understood: Understood | None = getattr(args, "understood", None)
    if understood is None:
        return forecast
    from vramcast.report.configs import reading_notes

    return replace(
        with_gaps(forecast, args),
        assumptions=(*understood.assumptions, *forecast.assumptions),
        notes=(*forecast.notes, *reading_notes(understood, args.sources)),
    )
