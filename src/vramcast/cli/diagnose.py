"""vramcast diagnose: what happened, whose memory it was, why, and what to do."""

from __future__ import annotations

import argparse
import json
import sys
from io import BufferedReader, RawIOBase
from typing import BinaryIO, cast

from vramcast.diagnose.diagnosis import Diagnosis, diagnose
from vramcast.diagnose.reading import read_stream
from vramcast.errors import InputError
from vramcast.report import diagnose_json, diagnose_text
from vramcast.report.diagnose_words import LANGUAGES

# What a file begins with that is no text, and the way forward.
NOT_TEXT = {
    b"\x80\x02": "a pickle; a memory snapshot is read by `vramcast snapshot FILE`",
    b"\x80\x03": "a pickle; a memory snapshot is read by `vramcast snapshot FILE`",
    b"\x80\x04": "a pickle; a memory snapshot is read by `vramcast snapshot FILE`",
    b"\x80\x05": "a pickle; a memory snapshot is read by `vramcast snapshot FILE`",
    b"\x1f\x8b": "compressed; unpack it first: `zcat FILE | vramcast diagnose -`",
    b"PK": "an archive; unpack it first",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", help="an error message, a log of any size, nvidia-smi output or memory_summary; - reads standard input"
    )
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    parser.add_argument("--lang", choices=LANGUAGES, default="en", help="language of the text (default: en)")


def run(args: argparse.Namespace) -> int:
    diagnosis = _diagnose(args.file)
    if args.json:
        _print(json.dumps(diagnose_json.render(diagnosis, lang=args.lang), ensure_ascii=False, indent=1))
    else:
        _print(diagnose_text.render(diagnosis, lang=args.lang))
    return 0 if diagnosis.reading.observations else 2


def _diagnose(path: str) -> Diagnosis:
    if path == "-":
        return _read(sys.stdin.buffer, path)
    try:
        with open(path, "rb") as stream:
            return _read(stream, path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"cannot read {path!r}: {reason}. Give a file, or - to paste into standard input.") from error


def _read(stream: BinaryIO, path: str) -> Diagnosis:
    buffered = BufferedReader(cast(RawIOBase, stream))
    what = NOT_TEXT.get(buffered.peek(2)[:2])
    if what is not None:
        raise InputError(f"{path!r} is {what}")
    return diagnose(read_stream(buffered))


def _print(text: str) -> None:
    """A log may quote letters that the terminal's encoding lacks; they are escaped, not fatal."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))
