"""vramcast diagnose: what happened, whose memory it was, why, and what to do."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from vramcast.cli.from_files import gaps_of
from vramcast.cli.options import add_job_flags, job_of
from vramcast.cli.output import print_report
from vramcast.cli.pictures import add_picture_flags, write_pictures
from vramcast.diagnose.diagnosis import Diagnosis, diagnose
from vramcast.diagnose.planned_steps import planned_steps
from vramcast.diagnose.readers.log import Reading, read_stream
from vramcast.diagnose.rules.findings import Finding
from vramcast.errors import InputError
from vramcast.files import Bounded, open_file
from vramcast.job import Job, fields
from vramcast.report import diagnose_json, diagnose_text
from vramcast.report.verdict import not_counted_lines
from vramcast.report.words import LANGUAGES, language_of
from vramcast.units import GiB, parse_bytes

if TYPE_CHECKING:
    from vramcast.snapshot.analysis import Analysis

# What a file begins with that is no text, and the way forward.
NOT_TEXT = {
    b"\x1f\x8b": "compressed; unpack it first: `zcat FILE | vramcast diagnose -`",
    b"PK": "an archive; unpack it first",
}
MOST_LOG_BYTES = 16 * GiB  # of zeros in seconds, of text in minutes
PICKLES = tuple(bytes((0x80, protocol)) for protocol in (2, 3, 4, 5))


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        help="an error message, a log of up to 16 GiB, nvidia-smi output, memory_summary, or a memory snapshot; "
        "- reads standard input",
    )
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    parser.add_argument(
        "--lang", choices=LANGUAGES, default=language_of(os.environ), help="language of the text"
    )
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="what was trained: built-in model name, HF config.json or folder",
    )
    parser.add_argument("--expected", metavar="SIZE", help="your own estimate, such as 62.6GB")
    script = parser.add_argument_group("script")
    script.add_argument(
        "--script",
        metavar="FILE",
        help="run this training script on a virtual card of the same size",
    )
    script.add_argument("--script-args", default="", metavar="TEXT", help="arguments of the script")
    script.add_argument(
        "--steps", type=int, default=2, metavar="N", help="optimizer steps to run (default 2)"
    )
    script.add_argument(
        "--empty-weights", action="store_true", help="from_pretrained needs only a config"
    )
    add_job_flags(parser, has_own_model_flag=True)
    add_picture_flags(parser, pictures=False)


def run(args: argparse.Namespace) -> int:
    job = _job(args)
    expected = None if args.expected is None else parse_bytes(args.expected)
    reading, snapshot = _read(args.file)
    diagnosis = diagnose(reading, job, expected_bytes=expected)
    more = (_followed(args, reading),) if args.script else ()
    diagnosis = replace(diagnosis, findings=(*diagnosis.findings, *more), snapshot=snapshot)
    if args.html is not None:
        write_pictures(args, lambda: _document(diagnosis, args))
    print_report(_rendered(diagnosis, args), as_it_is=args.json)
    is_answered = all(finding.rule != "job_not_priced" for finding in diagnosis.findings)
    return 0 if diagnosis.reading.observations and is_answered else 2


def _rendered(diagnosis: Diagnosis, args: argparse.Namespace) -> str:
    plans = planned_steps(diagnosis)
    if args.json:
        data = diagnose_json.render(diagnosis, lang=args.lang, plans=plans)
        return json.dumps(data | _gaps_json(args), ensure_ascii=False, indent=1)
    text = diagnose_text.render(diagnosis, lang=args.lang, plans=plans)
    not_counted = "\n".join(not_counted_lines(gaps_of(args), args.lang))
    return f"{text}\n\n{not_counted}" if not_counted else text


def _gaps_json(args: argparse.Namespace) -> dict[str, list[str]]:
    gaps = gaps_of(args)
    return {"not_understood": list(gaps)} if gaps else {}


def _document(diagnosis: Diagnosis, args: argparse.Namespace) -> str:
    """A snapshot is also shown over time."""
    from vramcast.report.html_reports import text_document
    from vramcast.report.words import say
    from vramcast.report.words.page import PAGE

    timelines = []
    if diagnosis.snapshot is not None:
        from vramcast.snapshot.reader import read_snapshot
        from vramcast.timelines.of_snapshot import timeline_of_snapshot

        snapshot, device = read_snapshot(args.file), diagnosis.snapshot.device
        timelines.append(timeline_of_snapshot(snapshot, device, Path(args.file).name))
    plans = planned_steps(diagnosis)
    text = diagnose_text.render(diagnosis, lang=args.lang, plans=plans)
    return text_document(say(PAGE, "diagnose_title", args.lang), text, args.lang, timelines)


def _job(args: argparse.Namespace) -> Job | None:
    """The job, if anything about one is said; a card alone is no job, but --script may need it."""
    given = [name for name in fields() if getattr(args, name.replace("-", "_"), None) is not None]
    if args.job is None and args.sources is None and not set(given) - {"gpu"}:
        return None
    return job_of(args, args.model)


def _followed(args: argparse.Namespace, reading: Reading) -> Finding:
    from vramcast.diagnose.follow_script import Following, card_for, follow

    following = Following(
        script=args.script,
        arguments=args.script_args,
        steps=args.steps,
        empty_weights=args.empty_weights,
    )
    return follow(following, card_for(reading, args.gpu))


def _read(path: str) -> tuple[Reading, Analysis | None]:
    if path == "-":
        if sys.stdin is None:
            raise InputError("standard input is closed. Give a file, or pipe the log into it.")
        return _read_text(sys.stdin.buffer, "standard input"), None
    try:
        stream = open_file(path, MOST_LOG_BYTES)
    except InputError as error:
        reason, way = (
            str(error).rstrip("."),
            "Give a file, or - for standard input: tail -c 1G FILE | vramcast diagnose -",
        )
        raise InputError(f"cannot read {reason}. {way}") from None
    with stream:
        start = stream.read(2)
        stream.seek(0)
        if start not in PICKLES:
            return _read_text(stream, path), None
    return _read_snapshot(path)


def _read_text(stream: BinaryIO, path: str) -> Reading:
    buffered = BufferedReader(Bounded(stream, path, MOST_LOG_BYTES))
    start = buffered.peek(2)[:2]
    what = "a pickle; give a memory snapshot as a file" if start in PICKLES else NOT_TEXT.get(start)
    if what is not None:
        raise InputError(f"{path!r} is {what}")
    return read_stream(buffered)


def _read_snapshot(path: str) -> tuple[Reading, Analysis]:
    from vramcast.diagnose.readers.snapshot import fullest_device, reading_of
    from vramcast.snapshot.analysis import analyse
    from vramcast.snapshot.reader import read_snapshot

    snapshot = read_snapshot(path)
    analysis = analyse(snapshot, fullest_device(snapshot), with_replay=False)
    return reading_of(analysis), analysis
