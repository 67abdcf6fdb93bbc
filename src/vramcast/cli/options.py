"""Flags made from the Job's fields, and how commands print. Shared by the commands that take a job."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from vramcast.cli.from_files import add_from_flag, read_sources
from vramcast.errors import InputError
from vramcast.everyday_words import KEYS, SWITCH_HELP, SWITCHES, ZERO_STAGE
from vramcast.job import Job, fields, job_from
from vramcast.report.words import LANGUAGES, language_of

COMMON = (
    "batch",
    "seq",
    "accumulate",
    "precision",
    "optimizer",
    "attention",
    "checkpointing",
    "loss",
    "lora-rank",
    "lora-targets",
    "quantize",
    "framework",
    "reference",
    "gpu",
    "gpus",
    "strategy",
    "tp",
    "pp",
    "offload",
    "transformers-version",
)


def add_job_flags(parser: argparse.ArgumentParser, *, has_own_model_flag: bool = False) -> None:
    """One flag per field; `--job FILE` for a job file that the flags then override. `--help` shows the flags that most
    people need, `--help-all` all of them."""
    if (
        not has_own_model_flag
    ):  # launch scripts name the model with a flag; here it is the first argument
        parser.add_argument("--model", dest="model_name", default=None, help=argparse.SUPPRESS)
    parser.add_argument("--help-all", action="help", help="this text with all options")
    parser.add_argument(
        "--job", type=Path, metavar="FILE", help="a YAML job file; flags override it"
    )
    add_from_flag(parser)
    add_hub_flag(parser)
    shows_all = getattr(parser, "shows_all", True)
    groups: dict[str, Any] = {}
    for name, field in fields().items():
        facts = field.metadata
        if name == "model":
            continue
        group = groups.setdefault(facts["group"], parser.add_argument_group(facts["group"]))
        text = facts["help"].replace("%", "%%") + _shown(facts["choices"], field.default)
        if name not in COMMON and not shows_all:
            text = argparse.SUPPRESS
        if facts["kind"] == "flag":
            group.add_argument(
                f"--{name}", action=argparse.BooleanOptionalAction, default=None, help=text
            )
        else:
            group.add_argument(
                f"--{name}", metavar=_metavar(facts["kind"]), default=None, help=text
            )
    _add_everyday_words(parser)


def add_hub_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--hub",
        action="store_true",
        help="ask the Hugging Face Hub for the model's config and sizes",
    )


def _add_everyday_words(parser: argparse.ArgumentParser) -> None:
    """Names under which other tools know the same; help lists the switches that say several things at once."""
    for name in (*KEYS, ZERO_STAGE):
        parser.add_argument(f"--{name}", default=None, help=argparse.SUPPRESS)
    group = parser.add_argument_group("short forms")
    for name in SWITCHES:
        text = SWITCH_HELP.get(name, argparse.SUPPRESS)
        group.add_argument(f"--{name}", action="store_true", default=None, help=text)
        dest = name.replace("-", "_")
        group.add_argument(
            f"--no-{name}", dest=dest, action="store_false", default=None, help=argparse.SUPPRESS
        )


def _metavar(kind: str) -> str:
    return {"int": "N", "count": "N", "float": "X", "list": "A,B", "targets": "A,B"}.get(
        kind, "NAME"
    )


def _shown(choices: tuple[str, ...], default: Any) -> str:
    listed = f": {', '.join(choices)}" if choices else ""
    plain = ",".join(default) if isinstance(default, tuple) else default
    return listed if plain in (None, "", False) else f"{listed} (default {plain})"


def job_of(args: argparse.Namespace, model: str | None = None) -> Job:
    """The job that the flags, and the files if there are some, describe. With --hub its model is asked for."""
    job = _read_job_of(args, model)
    if getattr(args, "hub", False) and job.model is not None:
        from vramcast.models.read.hub import fetch

        fetch(job.model)
    return job


def _read_job_of(args: argparse.Namespace, model: str | None) -> Job:
    names = [name for name in (*fields(), *KEYS, ZERO_STAGE, *SWITCHES) if name != "model"]
    given = {name: getattr(args, name.replace("-", "_"), None) for name in names}
    given = {name: value for name, value in given.items() if value is not None}
    if getattr(args, "sources", None):
        return read_sources(args, given if model is None else {**given, "model": model})
    if getattr(args, "framework_version", None) is not None:
        raise InputError(
            "--framework-version is of the files of --from; without files say --transformers-version or --trl-version"
        )
    file = args.job
    if model is not None and file is None and model.endswith((".yaml", ".yml")):
        file = Path(model)  # where a model is expected, a job file says more
    elif model is not None:
        given["model"] = model
    if file is not None:
        from vramcast.jobfile import read_job

        return read_job(file, given)
    return job_from(given)


def add_output_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    form = group.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="the documented JSON (docs/schema.json)")
    form.add_argument("--markdown", action="store_true", help="a Markdown table")
    add_language_flag(group)


def add_language_flag(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--lang",
        choices=LANGUAGES,
        default=language_of(os.environ),
        help="language of the report (default: that of LANG)",
    )


def print_json(data: Any) -> None:
    from vramcast.report.as_json import json_text

    print(json_text(data))
