"""Analysis of a memory snapshot -> text for a terminal. Prints nothing itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vramcast.report.table import align
from vramcast.report.words import say
from vramcast.report.words.forecast import CATEGORIES
from vramcast.report.words.sentences import translate
from vramcast.report.words.snapshot import SNAPSHOT
from vramcast.snapshot.analysis import Analysis
from vramcast.snapshot.history import Moment
from vramcast.snapshot.holders import Holder
from vramcast.snapshot.replay import Alternative, Replay
from vramcast.snapshot.timeline import Timeline
from vramcast.units import GiB, format_bytes, format_gib

_CHART_WIDTH, _CHART_HEIGHT = 80, 10
_LONGEST_FRAME = 72


def render(analysis: Analysis, file_name: str, top: int, lang: str = "en") -> str:
    note = say(SNAPSHOT, "note", lang)
    sections = (
        _header(analysis, file_name, lang),
        _peaks(analysis, lang),
        _chart(analysis.timeline, lang) if analysis.events else (),
        _fragmentation(analysis, lang),
        _ooms(analysis, lang),
        _holders(analysis.holders, top, lang),
        _categories(analysis.holders, lang),
        _replay(analysis.replay, lang),
        _alternatives(analysis.alternatives, lang),
        tuple(f"{note}: {_printable(translate(text, lang))}" for text in analysis.notes),
    )
    return "\n\n".join("\n".join(lines) for section in sections if (lines := tuple(section)))


def _header(analysis: Analysis, file_name: str, lang: str) -> Iterator[str]:
    yield say(
        SNAPSHOT,
        "header",
        lang,
        name=_printable(file_name),
        device=analysis.device,
        events=f"{analysis.events:,}",
        seconds=f"{analysis.duration_us / 1e6:,.2f}",
        settings=_printable(analysis.settings_text) or say(SNAPSHOT, "defaults", lang),
    )
    others = [f"cuda:{device}" for device in analysis.devices if device != analysis.device]
    if others:
        yield say(SNAPSHOT, "also", lang, names=", ".join(others))


def _peaks(analysis: Analysis, lang: str) -> Iterator[str]:
    start_us = analysis.start.time_us
    moments = (
        ("peak_allocated", analysis.peak_allocated),
        ("peak_reserved", analysis.peak_reserved),
        ("start", analysis.start),
        ("end", analysis.end),
    )
    rows = [_peak_cells(key, moment, start_us, lang) for key, moment in moments]
    yield from align(rows, "llrlrl", indent=0)


def _peak_cells(key: str, moment: Moment, start_us: int, lang: str) -> tuple[str, ...]:
    where = say(SNAPSHOT, "before_first", lang)
    if moment.index >= 0:
        where = say(SNAPSHOT, "after_event", lang, number=f"{moment.index + 1:,}")
    seconds = f"{(moment.time_us - start_us) / 1e6:.3f}"
    return (
        say(SNAPSHOT, key, lang),
        say(SNAPSHOT, "allocated", lang),
        format_gib(moment.allocated_bytes),
        say(SNAPSHOT, "reserved", lang),
        format_gib(moment.reserved_bytes),
        say(SNAPSHOT, "at_second", lang, where=where, seconds=seconds),
    )


def _chart(timeline: Timeline, lang: str) -> Iterator[str]:
    """Columns of equal numbers of events: allocated as a full block, reserved above it as a light one."""
    allocated = _columns(timeline.allocated_bytes)
    reserved = _columns(timeline.reserved_bytes)
    top_bytes = max(*reserved, 1)
    events, size = f"{timeline.events[-1] + 1:,}", f"{top_bytes / GiB:.2f}"
    yield say(SNAPSHOT, "chart", lang, events=events, size=size)
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


def _fragmentation(analysis: Analysis, lang: str) -> Iterator[str]:
    found = analysis.fragmentation
    unused = found.reserved_bytes - found.allocated_bytes
    share = unused / found.reserved_bytes if found.reserved_bytes else 0.0
    yield say(
        SNAPSHOT,
        "fragmentation",
        lang,
        unused=format_bytes(unused),
        reserved=format_gib(found.reserved_bytes),
        share=f"{share:.1%}",
    )
    parts = (
        (found.stuck_bytes, "stuck"),
        (found.releasable_bytes, "releasable"),
        (found.waiting_bytes, "waiting"),
        (found.rounding_bytes, "rounding"),
        (found.largest_free_bytes, "largest_free"),
    )
    rows = [(format_bytes(nbytes), say(SNAPSHOT, key, lang)) for nbytes, key in parts]
    yield from align(rows, "rl")


def _ooms(analysis: Analysis, lang: str) -> Iterator[str]:
    for oom in analysis.ooms:
        yield say(
            SNAPSHOT,
            "oom",
            lang,
            number=f"{oom.index + 1:,}",
            requested=format_bytes(oom.requested_bytes),
            free=format_bytes(oom.device_free_bytes),
            reserved=format_gib(oom.reserved_bytes),
            unused=format_bytes(oom.reserved_bytes - oom.allocated_bytes),
        )


def _holders(holders: Sequence[Holder], top: int, lang: str) -> Iterator[str]:
    if not holders:
        return
    total = sum(holder.allocated_bytes for holder in holders)
    shown = min(top, len(holders))
    yield say(SNAPSHOT, "holders", lang, shown=shown, count=len(holders))
    rows = [_holder_cells(holder, total, lang) for holder in holders[:top]]
    rest = sum(holder.allocated_bytes for holder in holders[top:])
    if rest:
        more = say(SNAPSHOT, "more_places", lang, count=len(holders) - top)
        rows.append((format_bytes(rest), f"{rest / total:.1%}", "", "", more))
    yield from align(rows, "rrrll")


def _holder_cells(holder: Holder, total: int, lang: str) -> tuple[str, ...]:
    key = "one_block" if holder.blocks == 1 else "blocks"
    return (
        format_bytes(holder.allocated_bytes),
        f"{holder.allocated_bytes / total:.1%}",
        say(SNAPSHOT, key, lang, count=f"{holder.blocks:,}"),
        say(CATEGORIES, str(holder.category), lang),
        translate(shorten(holder.frame), lang),
    )


def _categories(holders: Sequence[Holder], lang: str) -> Iterator[str]:
    groups: dict[str, int] = {}
    for holder in holders:
        groups[str(holder.category)] = groups.get(str(holder.category), 0) + holder.allocated_bytes
    if groups:
        parts = (
            f"{say(CATEGORIES, name, lang)} {format_bytes(nbytes)}"
            for name, nbytes in sorted(groups.items(), key=lambda item: -item[1])
        )
        yield say(SNAPSHOT, "by_category", lang) + ", ".join(parts)


def _replay(replay: Replay | None, lang: str) -> Iterator[str]:
    if replay is None:
        return
    share = replay.same_address / replay.allocations if replay.allocations else 1.0
    yield say(
        SNAPSHOT,
        "replay",
        lang,
        same=f"{replay.same_address:,}",
        count=f"{replay.allocations:,}",
        share=f"{share:.3%}",
        segments=f"{replay.same_segments:,}",
        all=f"{replay.segments:,}",
    )
    yield say(
        SNAPSHOT,
        "replay_peaks",
        lang,
        allocated=f"{replay.peak_allocated_bytes:,}",
        reserved=f"{replay.peak_reserved_bytes:,}",
        state=say(SNAPSHOT, "identical" if replay.end_state_matches else "different", lang),
    )


def _alternatives(alternatives: Sequence[Alternative], lang: str) -> Iterator[str]:
    if not alternatives:
        return
    base = alternatives[0].peak_reserved_bytes
    yield say(SNAPSHOT, "alternatives", lang)
    rows = [
        (
            say(SNAPSHOT, "peak_reserved", lang),
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
