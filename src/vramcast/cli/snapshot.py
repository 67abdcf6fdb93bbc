"""`vramcast snapshot FILE`: what a torch memory snapshot tells."""

from __future__ import annotations

import argparse
from pathlib import Path

from vramcast.allocator import AllocatorSettings
from vramcast.cli.options import add_language_flag
from vramcast.cli.output import print_report, show_progress
from vramcast.cli.pictures import add_picture_flags, asks_for_pictures, write_pictures
from vramcast.errors import InputError, SnapshotError
from vramcast.report import snapshot_json, snapshot_text
from vramcast.snapshot.analysis import Analysis, analyse
from vramcast.snapshot.reader import read_snapshot
from vramcast.snapshot.record import Snapshot
from vramcast.units import MiB


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a file written by torch.cuda.memory._dump_snapshot; it is never executed",
    )
    parser.add_argument(
        "--replay",
        action="store_true",
        help="replay it through vramcast's allocator model and report the match",
    )
    parser.add_argument(
        "--alloc-conf",
        action="append",
        default=[],
        metavar="TEXT",
        help="also replay it with these PYTORCH_ALLOC_CONF settings, such as expandable_segments:True; repeatable",
    )
    parser.add_argument(
        "--device", type=int, metavar="N", help="the device to report on (default: the fullest)"
    )
    parser.add_argument(
        "--top", type=int, default=15, metavar="N", help="how many holders to list (default: 15)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON; includes the replay")
    add_language_flag(parser)
    add_picture_flags(parser)


def run(args: argparse.Namespace) -> int:
    if args.top < 0:
        raise InputError(f"--top {args.top}: give a number of holders, 0 or more.")
    others = [(text, _settings(text)) for text in args.alloc_conf]
    snapshot = read_snapshot(args.file, _progress)
    device = _device(snapshot, args.device)
    analysis = analyse(
        snapshot, device, with_replay=args.replay or args.json, other_settings=others
    )
    name = Path(args.file).name
    if asks_for_pictures(args):
        _write_pictures(args, snapshot, device, analysis)
    text = (
        snapshot_json.render(analysis, name, args.top)
        if args.json
        else snapshot_text.render(analysis, name, args.top, args.lang)
    )
    print_report(text, as_it_is=args.json)
    return 0


def _settings(text: str) -> AllocatorSettings:
    settings = AllocatorSettings.parse(text)
    if settings.per_process_memory_fraction < 1:
        raise InputError(
            f"--alloc-conf {text}: a snapshot does not say how large the card is, so a fraction cannot be applied."
        )
    return settings


def _device(snapshot: Snapshot, asked: int | None) -> int:
    devices = snapshot.devices()
    if not devices:
        raise SnapshotError("the snapshot is empty: it holds no segments and no events.")
    if asked is None:
        return max(
            devices,
            key=lambda device: (
                sum(segment.size for segment in snapshot.segments_of(device)),
                -device,
            ),
        )
    if asked not in devices:
        raise InputError(f"--device {asked}: the snapshot has {', '.join(map(str, devices))}.")
    return asked


def _write_pictures(
    args: argparse.Namespace, snapshot: Snapshot, device: int, analysis: Analysis
) -> None:
    from vramcast.report.html_reports import text_document
    from vramcast.report.picture import render_timelines
    from vramcast.report.words import say
    from vramcast.report.words.page import PAGE
    from vramcast.timelines.of_snapshot import timeline_of_snapshot

    name = Path(args.file).name
    timeline = timeline_of_snapshot(snapshot, device, name)
    text = snapshot_text.render(analysis, name, args.top, args.lang)
    title = say(PAGE, "snapshot_title", args.lang, name=name)
    write_pictures(
        args,
        lambda: text_document(title, text, args.lang, [timeline]),
        lambda: render_timelines([timeline], args.lang),
    )


def _progress(done_bytes: int, file_bytes: int) -> None:
    """For files that take a while."""
    if file_bytes >= 16 * MiB:
        share = min(1.0, done_bytes / file_bytes)
        bar = f"reading {'█' * round(share * 30):<30} {share:4.0%} of {file_bytes // MiB:,} MiB"
        show_progress(bar if done_bytes < file_bytes else "")
