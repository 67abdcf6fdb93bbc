"""vramcast diagnose: what happened, whose memory it was, why, and what to do."""

from __future__ import annotations

import argparse
import json
import sys

from vramcast.diagnose.diagnosis import Diagnosis, diagnose
from vramcast.diagnose.reading import read_stream
from vramcast.errors import InputError
from vramcast.report import diagnose_json, diagnose_text
from vramcast.report.diagnose_words import LANGUAGES


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", help="an error message, a log of any size, nvidia-smi output or memory_summary; - reads standard input"
    )
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    parser.add_argument("--lang", choices=LANGUAGES, default="en", help="language of the text (default: en)")


def run(args: argparse.Namespace) -> int:
    diagnosis = _diagnose(args.file)
    if args.json:
        print(json.dumps(diagnose_json.render(diagnosis, lang=args.lang), ensure_ascii=False, indent=1))
    else:
        print(diagnose_text.render(diagnosis, lang=args.lang))
    return 0 if diagnosis.reading.observations else 2


def _diagnose(path: str) -> Diagnosis:
    if path == "-":
        return diagnose(read_stream(sys.stdin.buffer))
    try:
        with open(path, "rb") as stream:
            return diagnose(read_stream(stream))
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"cannot read {path!r}: {reason}. Give a file, or - to paste into standard input.") from error
