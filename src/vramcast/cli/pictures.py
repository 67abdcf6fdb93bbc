"""`--html`, `--svg` and `--png`: a report as one file that opens from disk, its picture for papers and issues."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from vramcast.cli.output import write_text
from vramcast.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    from vramcast.forecast import Forecast
    from vramcast.timelines.record import Timeline

PICTURE_FLAGS = ("html", "svg", "png")
PNG_SCALE = 2  # pixels for each of the picture's points


def add_picture_flags(parser: argparse.ArgumentParser, *, pictures: bool = True) -> None:
    """`pictures`: the report has one that can stand alone."""
    parser.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="also write the report as one HTML file that opens from disk",
    )
    if pictures:
        parser.add_argument(
            "--svg", type=Path, metavar="FILE", help="also write its picture as one SVG file"
        )
        parser.add_argument(
            "--png",
            type=Path,
            metavar="FILE",
            help="also write its picture as a PNG file (needs resvg-py: pip install 'vramcast[png]')",
        )


def asks_for_pictures(args: argparse.Namespace) -> bool:
    return any(getattr(args, name, None) is not None for name in PICTURE_FLAGS)


def write_pictures(
    args: argparse.Namespace, html: Callable[[], str], svg: Callable[[], str] | None = None
) -> None:
    """What the flags ask for. `html` and `svg` are made only then."""
    if args.html is not None:
        write_text("--html", args.html, html())
    if svg is None or (args.svg is None and args.png is None):
        return
    picture = svg()
    if args.svg is not None:
        write_text("--svg", args.svg, picture)
    if args.png is not None:
        _write_png(args.png, picture)


def _write_png(path: Path, picture: str) -> None:
    try:
        from resvg_py import svg_to_bytes
    except ImportError:
        raise InputError(
            "--png needs resvg-py: pip install 'vramcast[png]'; --svg needs nothing"
        ) from None
    data = bytes(svg_to_bytes(svg_string=picture, zoom=PNG_SCALE))
    try:
        path.write_bytes(data)
    except OSError as error:
        raise InputError(f"--png {path}: cannot be written ({error.strerror or error})") from None


def timeline_of(forecast: Forecast) -> Timeline | None:
    """None for jobs that have none: a count of parameters, model editing."""
    from vramcast.engine import record_timeline

    if forecast.job is None:
        return None
    try:
        return record_timeline(forecast.job)
    except UnsupportedError:
        return None
