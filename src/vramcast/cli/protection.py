"""Flags of the commands that run a user's script: how its files are protected, and whether it may use the network."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vramcast.sandbox.process import Options

PROTECTION_FLAGS = ("protect", "keep_files", "offline")


def add_protection_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what the script may do to this machine")
    group.add_argument(
        "--protect",
        choices=("auto", "namespace", "guard"),
        default="auto",
        help="how your files are protected: by the kernel (namespace), inside Python (guard), or the stronger of the "
        "two that this machine allows (auto, the default)",
    )
    group.add_argument(
        "--no-protect",
        dest="protect",
        action="store_const",
        const="none",
        help="the script writes to your disk: checkpoints it saves have no weights and replace real ones",
    )
    group.add_argument(
        "--keep-files", metavar="DIR", help="copy what the script wrote into this new folder"
    )
    group.add_argument(
        "--offline", action="store_true", help="refuse connections to other machines"
    )


def protection_options(args: argparse.Namespace) -> Options:
    from vramcast.sandbox.process import Options

    if args.protect == "none":
        print(
            "vramcast: --no-protect: the script writes to your disk, and the weights it saves are placeholders.",
            file=sys.stderr,
        )
    return Options(protect=args.protect, keep_files=args.keep_files, offline=args.offline)
