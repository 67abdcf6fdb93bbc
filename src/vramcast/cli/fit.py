"""`vramcast fit MODEL`: the cards on which a job fits, smallest first."""

from __future__ import annotations

import argparse
from dataclasses import replace

from vramcast.cli.options import add_job_flags, add_output_flags, job_of, print_json
from vramcast.errors import InputError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", help="catalog name, HF config.json or folder")
    add_job_flags(parser)
    add_output_flags(parser)


def run(args: argparse.Namespace) -> int:
    from vramcast.plan.cards import cards_for
    from vramcast.report.cards import cards_json, render_text

    job = job_of(args, args.model)
    if job.gpu is not None:
        raise InputError("fit tries all cards; for one card use `vramcast estimate --gpu`")
    cards = cards_for(replace(job, gpu=None))
    if args.json:
        print_json(cards_json(cards))
    else:
        print(render_text(cards, markdown=args.markdown, lang=args.lang))
    return 0 if any(card.fits for card in cards) else 1
