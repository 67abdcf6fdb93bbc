"""vramcast params MODEL: the parameter table by block, like a bill."""

from __future__ import annotations

import argparse

from vramcast.cli.options import add_output_flags
from vramcast.cli.output import print_sheet
from vramcast.models.blocks import bill_params
from vramcast.models.read.model import read_model
from vramcast.report.params import params_json, params_sheet, tensors_sheet


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="catalog name, config.json or its folder, safetensors")
    parser.add_argument("--all", action="store_true", help="every tensor under its full name")
    add_output_flags(parser)


def run(args: argparse.Namespace) -> int:
    bill = bill_params(read_model(args.model))
    sheet = tensors_sheet if args.all else params_sheet
    print_sheet(args, lambda w: sheet(bill, w), lambda: params_json(bill, tensors=args.all))
    return 0
