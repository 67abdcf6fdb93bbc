"""vramcast models [SEARCH]: the models of the catalog."""

from __future__ import annotations

import argparse

from vramcast.catalog.models import all_models, find_model, search_models
from vramcast.cli.options import add_output_flags
from vramcast.cli.output import print_table
from vramcast.report.catalog import models_json, models_table


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "search", nargs="?", metavar="SEARCH", help="part of a name, id or class: qwen, Llama-3, t5"
    )
    add_output_flags(parser)


def run(args: argparse.Namespace) -> int:
    models = all_models()
    if args.search is not None:
        models = search_models(args.search) or (find_model(args.search),)
    print_table(args, lambda lang: models_table(models, lang), lambda: models_json(models))
    return 0
