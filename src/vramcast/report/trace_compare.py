"""Two saved traces side by side: peaks, categories, and the parts that grew or shrank most."""

from __future__ import annotations

from collections.abc import Callable

from vramcast.ledger import Entry
from vramcast.report.table import align
from vramcast.report.trace import folded
from vramcast.report.words import say
from vramcast.report.words.forecast import CATEGORIES
from vramcast.traces.record import Trace
from vramcast.units import GiB, format_gib

_MOST_PARTS = 12


def render_traces(names: tuple[str, str], traces: tuple[Trace, Trace]) -> str:
    """For each card that both have, the fullest phase of each against the other."""
    places = [place for place in traces[0].ledger.devices() if place in traces[1].ledger.devices()]
    sections = []
    for trace, name in zip(traces, names, strict=True):
        sections.append(
            f"{name}: {' '.join(trace.command)} on {trace.card}, {trace.ending} after {trace.steps} steps"
        )
    for place in places:
        sections.append("")
        sections += _place_lines(names, traces, place)
    return "\n".join(sections)


def _place_lines(names: tuple[str, str], traces: tuple[Trace, Trace], place: str) -> list[str]:
    peaks = [trace.ledger.peak(place) for trace in traces]
    rows = [("", *names, "")]
    for level in ("allocated", "reserved", "process"):
        one, other = (getattr(peak, f"{level}_bytes") for peak in peaks)
        rows.append((level, format_gib(one), format_gib(other), _change(other - one)))
    lines = [
        f"peaks on {place}",
        *align(rows, "lrrr"),
        "",
        f"at these peaks, by category ({place})",
    ]
    lines += align(
        _changes(traces, place, lambda entry: say(CATEGORIES, entry.category, "en"), 99), "lrrr"
    )
    lines += ["", "parts that changed most"]
    parts = _changes(
        traces, place, lambda entry: f"{folded(entry.component)} ({entry.category})", _MOST_PARTS
    )
    changed = [row for row in parts if row[3] != _change(0)]
    return lines + (align(changed, "lrrr") if changed else ["  none"])


def _changes(
    traces: tuple[Trace, Trace], place: str, key: Callable[[Entry], str], most: int
) -> list[tuple[str, str, str, str]]:
    sums: dict[str, list[int]] = {}
    for index, trace in enumerate(traces):
        for entry in trace.ledger.alive(trace.ledger.peak(place).phase, place):
            sums.setdefault(key(entry), [0, 0])[index] += entry.nbytes
    largest = sorted(sums.items(), key=lambda item: (-abs(item[1][1] - item[1][0]), -max(item[1])))
    return [
        (name, format_gib(one), format_gib(other), _change(other - one))
        for name, (one, other) in largest[:most]
    ]


def _change(nbytes: int) -> str:
    return f"{nbytes / GiB:+,.2f} GiB" if nbytes else "same"
