"""Analysis of a memory snapshot -> text for a terminal. Prints nothing itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vramcast.snapshot.analysis import Analysis
from vramcast.snapshot.holders import Holder
from vramcast.snapshot.replay import Alternative, Replay
from vramcast.snapshot.timeline import Timeline
from vramcast.units import GiB, format_bytes, format_gib

_CHART_WIDTH, _CHART_HEIGHT = 80, 10
_LONGEST_FRAME = 72


def render(analysis: Analysis, file_name: str, top: int) -> str:
    sections = (
        _header(analysis, file_name),
        _peaks(analysis),
        _chart(analysis.timeline) if analysis.events else (),
        _fragmentation(analysis),
        _ooms(analysis),
        _holders(analysis.holders, top),
        _categories(analysis.holders),
        _replay(analysis.replay),
        _alternatives(analysis.alternatives),
        tuple(f"note: {_printable(note)}" for note in analysis.notes),
    )
    return "\n\n".join("\n".join(lines) for section in sections if (lines := tuple(section)))


def _header(analysis: Analysis, file_name: str) -> Iterator[str]:
    yield (
        f"{_printable(file_name)}: cuda:{analysis.device}, {analysis.events:,} events in "
        f"{analysis.duration_us / 1e6:,.2f} s, allocator settings: {_printable(analysis.settings_text) or 'defaults'}"
    )
    others = [f"cuda:{device}" for device in analysis.devices if device != analysis.device]
    if others:
        yield f"also in the file: {', '.join(others)} (choose with --device)"


def _peaks(analysis: Analysis) -> Iterator[str]:
    start_us = analysis.start.time_us
    for label, moment in (
        ("peak allocated", analysis.peak_allocated),
        ("peak reserved", analysis.peak_reserved),
        ("start", analysis.start),
        ("end", analysis.end),
    ):
        where = "before the first event" if moment.index < 0 else f"after event {moment.index + 1:,}"
        yield (
            f"{label:<15} allocated {format_gib(moment.allocated_bytes):>11}   reserved "
            f"{format_gib(moment.reserved_bytes):>11}   {where}, {(moment.time_us - start_us) / 1e6:.3f} s"
        )


def _chart(timeline: Timeline) -> Iterator[str]:
    """Columns of equal numbers of events: allocated as a full block, reserved above it as a light one."""
    allocated = _columns(timeline.allocated_bytes)
    reserved = _columns(timeline.reserved_bytes)
    top_bytes = max(*reserved, 1)
    yield f"allocated █ and reserved ░ over {timeline.events[-1] + 1:,} events, {top_bytes / GiB:.2f} GiB high"
    for row in range(_CHART_HEIGHT, 0, -1):
        level = (row - 0.5) / _CHART_HEIGHT * top_bytes
        cells = (
            "█" if low >= level else "░" if high >= level else " "
            for low, high in zip(allocated, reserved, strict=True)
        )
        yield f"{row / _CHART_HEIGHT * top_bytes / GiB:7.2f} ┤" + "".join(cells).rstrip()


def _columns(values: Sequence[int]) -> list[int]:
    """At most a screen's width of maxima."""
    width = min(_CHART_WIDTH, len(values))
    return [max(values[i * len(values) // width : (i + 1) * len(values) // width]) for i in range(width)]


def _fragmentation(analysis: Analysis) -> Iterator[str]:
    what = analysis.fragmentation
    unused = what.reserved_bytes - what.allocated_bytes
    share = unused / what.reserved_bytes if what.reserved_bytes else 0.0
    reserved = format_gib(what.reserved_bytes)
    yield f"fragmentation: {format_bytes(unused)} of {reserved} reserved not allocated ({share:.1%}) at that peak"
    for nbytes, text in (
        (what.stuck_bytes, "free pieces of segments in use"),
        (what.releasable_bytes, "whole free segments, which empty_cache() would return"),
        (what.waiting_bytes, "freed, but another stream may still use it"),
        (what.rounding_bytes, "inside allocated blocks, beyond what was asked for"),
        (what.largest_free_bytes, "is the largest free block"),
    ):
        yield f"  {format_bytes(nbytes):>11}  {text}"


def _ooms(analysis: Analysis) -> Iterator[str]:
    for oom in analysis.ooms:
        yield (
            f"out of memory at event {oom.index + 1:,}: {format_bytes(oom.requested_bytes)} requested, "
            f"{format_bytes(oom.device_free_bytes)} free on the card, {format_gib(oom.reserved_bytes)} reserved, of "
            f"which {format_bytes(oom.reserved_bytes - oom.allocated_bytes)} not allocated"
        )


def _holders(holders: Sequence[Holder], top: int) -> Iterator[str]:
    if not holders:
        return
    total = sum(holder.allocated_bytes for holder in holders)
    yield f"who holds the peak (top {min(top, len(holders))} of {len(holders)}; categories are guessed from the stack)"
    for holder in holders[:top]:
        yield (
            f"  {format_bytes(holder.allocated_bytes):>11}  {holder.allocated_bytes / total:5.1%}  "
            f"{holder.blocks:>6,} {_block_word(holder)}  {holder.category!s:<18}  {shorten(holder.frame)}"
        )
    rest = sum(holder.allocated_bytes for holder in holders[top:])
    if rest:
        yield f"  {format_bytes(rest):>11}  {rest / total:5.1%}  in {len(holders) - top} more places"


def _block_word(holder: Holder) -> str:
    return "block " if holder.blocks == 1 else "blocks"


def _categories(holders: Sequence[Holder]) -> Iterator[str]:
    groups: dict[str, int] = {}
    for holder in holders:
        groups[str(holder.category)] = groups.get(str(holder.category), 0) + holder.allocated_bytes
    if groups:
        parts = (f"{name} {format_bytes(nbytes)}" for name, nbytes in sorted(groups.items(), key=lambda item: -item[1]))
        yield "by category (guessed): " + ", ".join(parts)


def _replay(replay: Replay | None) -> Iterator[str]:
    if replay is None:
        return
    share = replay.same_address / replay.allocations if replay.allocations else 1.0
    yield (
        f"replay: {replay.same_address:,} of {replay.allocations:,} allocations at the same address ({share:.3%}), "
        f"{replay.same_segments:,} of {replay.segments:,} segments taken as recorded"
    )
    yield (
        f"  peak allocated {replay.peak_allocated_bytes:,} B, peak reserved {replay.peak_reserved_bytes:,} B, "
        f"end state {'identical' if replay.end_state_matches else 'different'}"
    )


def _alternatives(alternatives: Sequence[Alternative]) -> Iterator[str]:
    if not alternatives:
        return
    base = alternatives[0].peak_reserved_bytes
    yield "the same requests from an empty allocator (what lived at the start is requested first)"
    for other in alternatives:
        yield (
            f"  peak reserved {format_gib(other.peak_reserved_bytes):>11}  "
            f"{_signed(other.peak_reserved_bytes - base):>13}  {_printable(other.settings_text)}"
        )


def _signed(nbytes: int) -> str:
    return f"{'+' if nbytes > 0 else ''}{format_bytes(nbytes)}"


def shorten(frame: str) -> str:
    """A path from its installed package on, otherwise its last folder and file."""
    frame = _printable(frame)
    for folder in ("site-packages/", "dist-packages/"):
        _, found, rest = frame.rpartition(folder)
        if found and len(rest) <= _LONGEST_FRAME:
            return rest
    parts = frame.split("/")
    return frame if len(parts) <= 3 or "(" in frame else "…/" + "/".join(parts[-2:])


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "�" for character in text)
