"""`vramcast snapshot FILE`: what a torch memory snapshot tells."""

from __future__ import annotations

import argparse
from pathlib import Path

from vramcast.allocator import AllocatorSettings
from vramcast.cli.output import show_progress
from vramcast.errors import InputError, SnapshotError
from vramcast.report import snapshot_html, snapshot_json, snapshot_text
from vramcast.snapshot.analysis import analyse
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
    parser.add_argument(
        "--html", metavar="OUT", help="write the timeline as an HTML page that works offline"
    )


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
    if args.html:
        _write(args.html, snapshot_html.render(analysis, name, args.top))
    render = snapshot_json.render if args.json else snapshot_text.render
    print(render(analysis, name, args.top))
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


def _write(path: str, page: str) -> None:
    try:
        Path(path).write_text(page, encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"--html {path}: {error.strerror or error}") from None


def _progress(done_bytes: int, file_bytes: int) -> None:
    """For files that take a while."""
    if file_bytes >= 16 * MiB:
        share = min(1.0, done_bytes / file_bytes)
        bar = f"reading {'█' * round(share * 30):<30} {share:4.0%} of {file_bytes // MiB:,} MiB"
        show_progress(bar if done_bytes < file_bytes else "")
