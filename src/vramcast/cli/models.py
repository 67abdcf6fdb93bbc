"""vramcast models [SEARCH]: the models of the catalog."""

from __future__ import annotations

import argparse

from vramcast.catalog.models import all_models, find_model, search_models
from vramcast.cli.options import add_output_flags
from vramcast.cli.output import print_sheet
from vramcast.report.catalog import models_json, models_sheet


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("search", nargs="?", metavar="SEARCH", help="part of a name, id or class: qwen, Llama-3, t5")
    add_output_flags(parser)


def run(args: argparse.Namespace) -> int:
    models = all_models()
    if args.search is not None:
        models = search_models(args.search) or (find_model(args.search),)
    print_sheet(args, lambda w: models_sheet(models, w), lambda: models_json(models))
    return 0
