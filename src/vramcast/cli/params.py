"""vramcast params MODEL: the parameters of a model, block by block."""

from __future__ import annotations

import argparse

from vramcast.cli.options import add_hub_flag, add_output_flags
from vramcast.cli.output import print_table
from vramcast.models.blocks import break_down_params
from vramcast.models.read.hub import fetch
from vramcast.models.read.model import read_model
from vramcast.report.params import params_json, params_table, tensors_table


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="built-in model name, Hub id, config.json or its folder, safetensors",
    )
    parser.add_argument("--all", action="store_true", help="every tensor under its full name")
    add_hub_flag(parser)
    add_output_flags(parser)


def run(args: argparse.Namespace) -> int:
    if args.hub:
        fetch(args.model)
    bill = break_down_params(read_model(args.model))
    table = tensors_table if args.all else params_table
    print_table(args, lambda lang: table(bill, lang), lambda: params_json(bill, tensors=args.all))
    return 0
