"""`vramcast fit MODEL`: the cards on which a job fits, and with --most-gpus how many of them it takes."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import replace

from vramcast.catalog.gpus import find_gpu
from vramcast.cli.from_files import gaps_of
from vramcast.cli.options import add_job_flags, add_output_flags, job_of, print_json
from vramcast.cli.output import (
    QUIET_SECONDS,
    print_report,
    print_warnings,
    show_progress,
    terminal_width,
)
from vramcast.errors import InputError

ANY_CARD = "80GiB"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", help="built-in model name, HF config.json or folder")
    add_job_flags(parser)
    group = parser.add_argument_group("cards")
    group.add_argument(
        "--most-gpus",
        type=int,
        metavar="N",
        default=1,
        help="also try 2, 4, 8, … GPUs, up to N, sharded by FSDP2",
    )
    group.add_argument(
        "--price",
        action="append",
        metavar="GPU=X",
        default=[],
        help="price of one GPU, in any unit; repeatable; then only GPUs with a price are tried",
    )
    add_output_flags(parser)
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="also all cards on which it does not fit"
    )


def run(args: argparse.Namespace) -> int:
    from vramcast.forecasting import warnings_about
    from vramcast.plan.cards import cards_for
    from vramcast.report.cards import cards_json, render_text

    job = job_of(args, args.model)
    if job.gpu is not None:
        raise InputError("fit tries all cards; for one card use `vramcast estimate --gpu`")
    if args.most_gpus < 1:
        raise InputError(f"--most-gpus must be at least 1, not {args.most_gpus}")
    if args.most_gpus > 1 and job.gpus > 1:
        raise InputError(
            "--most-gpus tries numbers of cards; leave out gpus, or leave out --most-gpus"
        )
    cards = cards_for(replace(job, gpu=None), args.most_gpus, _prices(args.price), _progress())
    show_progress("")
    # What is wrong with the job on a card is wrong on all of them; the size stands for any.
    print_warnings(warnings_about(replace(job, gpu=ANY_CARD)), args.lang)
    gaps = gaps_of(args)
    if args.json:
        print_json({**cards_json(cards), **({"not_understood": list(gaps)} if gaps else {})})
    else:
        text = render_text(
            cards,
            markdown=args.markdown,
            lang=args.lang,
            width=terminal_width(),
            verbose=args.verbose,
            gaps=gaps,
        )
        print_report(text, as_it_is=args.markdown)
    return 0 if any(card.fits for card in cards) else 1


def _progress() -> Callable[[str, int, int], None]:
    """On a terminal, which card is tried, where it takes longer than a second."""
    started = time.monotonic()

    def tell(name: str, number: int, count: int) -> None:
        if time.monotonic() - started > QUIET_SECONDS:
            show_progress(f"{number} of {count} cards tried; now {name}")

    return tell


def _prices(given: list[str]) -> dict[str, float]:
    """Prices by the catalog's names."""
    prices = {}
    for text in ",".join(given).split(",") if given else []:
        name, equals, number = text.partition("=")
        try:
            price = float(number)
        except ValueError:
            price = math.nan
        if not equals or not 0 < price < math.inf:
            raise InputError(
                f"--price is written like rtx4090=0.5, with a number above 0, not {text!r}"
            )
        gpu = find_gpu(name.strip())
        if gpu.total_bytes is None or gpu.sources == "":
            raise InputError(
                f"--price {text}: name a built-in GPU whose memory size is known (see `vramcast gpus`)"
            )
        prices[gpu.name] = price
    return prices
