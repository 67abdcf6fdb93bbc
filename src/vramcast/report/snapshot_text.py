"""Analysis of a memory snapshot -> text for a terminal. Prints nothing itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vramcast.report.table import align
from vramcast.snapshot.analysis import Analysis
from vramcast.snapshot.history import Moment
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
    moments = (
        ("peak allocated", analysis.peak_allocated),
        ("peak reserved", analysis.peak_reserved),
        ("start", analysis.start),
        ("end", analysis.end),
    )
    rows = [_peak_cells(label, moment, start_us) for label, moment in moments]
    yield from align(rows, "llrlrl", indent=0)


def _peak_cells(label: str, moment: Moment, start_us: int) -> tuple[str, ...]:
    is_before = moment.index < 0
    where = "before the first event" if is_before else f"after event {moment.index + 1:,}"
    return (
        label,
        "allocated",
        format_gib(moment.allocated_bytes),
        "reserved",
        format_gib(moment.reserved_bytes),
        f"{where}, {(moment.time_us - start_us) / 1e6:.3f} s",
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
            _chart_cell(low, high, level) for low, high in zip(allocated, reserved, strict=True)
        )
        yield f"{row / _CHART_HEIGHT * top_bytes / GiB:7.2f} ┤" + "".join(cells).rstrip()


def _chart_cell(allocated: int, reserved: int, level: float) -> str:
    if allocated >= level:
        return "█"
    return "░" if reserved >= level else " "


def _columns(values: Sequence[int]) -> list[int]:
    """At most a screen's width of maxima."""
    width = min(_CHART_WIDTH, len(values))
    return [
        max(values[i * len(values) // width : (i + 1) * len(values) // width]) for i in range(width)
    ]


def _fragmentation(analysis: Analysis) -> Iterator[str]:
    found = analysis.fragmentation
    unused = found.reserved_bytes - found.allocated_bytes
    share = unused / found.reserved_bytes if found.reserved_bytes else 0.0
    reserved = format_gib(found.reserved_bytes)
    yield (
        f"fragmentation: at the reserved peak {format_bytes(unused)} of {reserved} reserved "
        f"were not allocated ({share:.1%})"
    )
    parts = (
        (found.stuck_bytes, "free pieces of segments in use"),
        (found.releasable_bytes, "whole free segments, which empty_cache() would return"),
        (found.waiting_bytes, "freed, but another stream may still use it"),
        (found.rounding_bytes, "inside allocated blocks, beyond what was requested"),
        (found.largest_free_bytes, "the largest free block"),
    )
    yield from align([(format_bytes(nbytes), text) for nbytes, text in parts], "rl")


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
    shown = min(top, len(holders))
    yield f"what holds memory at the peak (top {shown} of {len(holders)}; categories are guessed from the stack)"
    rows = [_holder_cells(holder, total) for holder in holders[:top]]
    rest = sum(holder.allocated_bytes for holder in holders[top:])
    if rest:
        more = f"in {len(holders) - top} more places"
        rows.append((format_bytes(rest), f"{rest / total:.1%}", "", "", more))
    yield from align(rows, "rrrll")


def _holder_cells(holder: Holder, total: int) -> tuple[str, ...]:
    blocks = "1 block" if holder.blocks == 1 else f"{holder.blocks:,} blocks"
    return (
        format_bytes(holder.allocated_bytes),
        f"{holder.allocated_bytes / total:.1%}",
        blocks,
        str(holder.category),
        shorten(holder.frame),
    )


def _categories(holders: Sequence[Holder]) -> Iterator[str]:
    groups: dict[str, int] = {}
    for holder in holders:
        groups[str(holder.category)] = groups.get(str(holder.category), 0) + holder.allocated_bytes
    if groups:
        parts = (
            f"{name} {format_bytes(nbytes)}"
            for name, nbytes in sorted(groups.items(), key=lambda item: -item[1])
        )
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
    yield "the same requests from an empty allocator (what was allocated at the start is requested first)"
    rows = [
        (
            "peak reserved",
            format_gib(other.peak_reserved_bytes),
            _signed(other.peak_reserved_bytes - base),
            _printable(other.settings_text),
        )
        for other in alternatives
    ]
    yield from align(rows, "lrrl")


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
