"""vramcast gpus [SEARCH]: the cards of the catalog."""

from __future__ import annotations

import argparse

from vramcast.catalog.gpus import all_gpus, find_gpu, search_gpus
from vramcast.cli.options import add_output_flags
from vramcast.cli.output import print_table
from vramcast.report.catalog import gpus_json, gpus_table


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "search", nargs="?", metavar="SEARCH", help="part of a name: h100, rtx, a100-80gb"
    )
    add_output_flags(parser)


def run(args: argparse.Namespace) -> int:
    gpus = all_gpus()
    if args.search is not None:
        gpus = search_gpus(args.search) or (find_gpu(args.search),)
    print_table(args, lambda lang: gpus_table(gpus, lang), lambda: gpus_json(gpus))
    return 0
