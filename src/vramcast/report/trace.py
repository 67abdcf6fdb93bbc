"""A traced run as text: verdict, timeline, memory by category and module, the source lines, what was assumed.

Layers of the same kind are folded into one line (`model.layers.*.mlp`); the JSON has every line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from vramcast.forecast import Forecast
from vramcast.ledger import HOST, Entry, Ledger, Moment
from vramcast.report.breakdown import note_lines, phase_lines
from vramcast.report.table import align
from vramcast.report.verdict import headline
from vramcast.report.words import say
from vramcast.report.words.forecast import CATEGORIES, MOMENTS
from vramcast.sandbox.session import Footprint
from vramcast.units import format_bytes, format_gib

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 72
_LINES_PER_CATEGORY = 4
_SOURCE_LINES = 8
_MOST_HOSTS = 8


def render_trace(
    forecast: Forecast, timeline: Sequence[tuple[str, int]], ending: str, place: str
) -> str:
    """`timeline`: (phase, allocated bytes) in the order of time."""
    verdict = forecast.verdict(place)
    ledger, peak = forecast.ledger, verdict.peak
    sections = (
        [headline(verdict, "en"), ending],
        timeline_lines(timeline),
        peak_lines(ledger, peak),
        source_lines(ledger, peak),
        [*phase_lines(forecast, "en"), *host_lines(ledger), *note_lines(forecast, "en")],
    )
    return "\n\n".join("\n".join(section) for section in sections if section)


def footprint_lines(footprint: Footprint) -> list[str]:
    """What the script did to files and over the network, and how the user's own files were protected."""
    lines = [f"files: {_files(footprint)}"]
    if footprint.kept_in:
        lines.append(f"files kept in {footprint.kept_in}")
    if footprint.connections:
        lines.append(f"network: {_connections(footprint)}: {_listed(footprint)}")
    return lines


def _files(footprint: Footprint) -> str:
    protection = footprint.protection
    if protection.kind == "none":
        return "not protected (--no-protect): what the script wrote is on your disk"
    counted = (
        f"{footprint.written} written, {footprint.replaced} replaced, {footprint.deleted} deleted"
    )
    if protection.kind == "namespace":
        how = "protected by the kernel: overlay in a mount namespace"
    elif protection.kernel_refuses:
        how = f"protected by the guard, the kernel refuses what Python does not see: {protection.reason}"
    else:
        how = f"protected by the guard, inside Python only: {protection.reason}"
    return f"{counted}, in a scratch layer only ({how})"


def _connections(footprint: Footprint) -> str:
    is_one = footprint.connections == 1
    noun = "connection" if is_one else "connections"
    if footprint.offline:
        return f"{footprint.connections} {noun} refused (--offline)"
    target = "another machine" if is_one else "other machines"
    return f"{footprint.connections} {noun} to {target}"


def _listed(footprint: Footprint) -> str:
    shown = ", ".join(footprint.hosts[:_MOST_HOSTS])
    more = len(footprint.hosts) - _MOST_HOSTS
    return f"{shown} and {more} more" if more > 0 else shown


def timeline_lines(timeline: Sequence[tuple[str, int]]) -> list[str]:
    """Allocated bytes over the run, one column per stretch, and the phase each column is in."""
    if not timeline:
        return []
    top = max(nbytes for _, nbytes in timeline) or 1
    columns = min(_WIDTH, len(timeline))
    cuts = [len(timeline) * column // columns for column in range(columns + 1)]
    stretches = [timeline[start:end] for start, end in pairwise(cuts)]
    peaks = [max(nbytes for _, nbytes in stretch) for stretch in stretches]
    bars = "".join(_BARS[min(len(_BARS) - 1, nbytes * len(_BARS) // top)] for nbytes in peaks)
    letters = "".join(_letter(stretch[0][0]) for stretch in stretches)
    return [
        f"  {bars}  {format_bytes(top)} allocated",
        f"  {letters}  l load, f forward, b backward, s step, e eval",
    ]


def _letter(phase: str) -> str:
    name = phase.removeprefix("next ")
    return "f" if name == "loss" else name[0]


def peak_lines(ledger: Ledger, peak: Moment) -> list[str]:
    """What is alive at the peak: categories, largest first, each with its largest modules."""
    alive = ledger.alive(peak.phase, peak.place)
    rows: list[tuple[str, str, str]] = []
    for category, total in _sums(alive, lambda entry: str(entry.category)):
        entries = [entry for entry in alive if str(entry.category) == category]
        rows += _category_rows(category, total, entries)
    rows.append((format_gib(peak.process_bytes), "", "in total, as nvidia-smi would show"))
    title = f"at the peak, {say(MOMENTS, peak.phase, 'en')}, {peak.place}:"
    return [title, *align(rows, "rrl")]


def _category_rows(
    category: str, total: int, entries: Sequence[Entry]
) -> Iterator[tuple[str, str, str]]:
    origins = ", ".join(sorted({str(entry.origin) for entry in entries}))
    yield format_gib(total), "", f"{say(CATEGORIES, category, 'en')}  [{origins}]"
    modules = _sums(entries, lambda entry: folded(entry.component))
    for name, nbytes in modules[:_LINES_PER_CATEGORY]:
        yield "", format_gib(nbytes), name
    rest = modules[_LINES_PER_CATEGORY:]
    if rest:
        yield "", format_gib(sum(nbytes for _, nbytes in rest)), f"{len(rest)} more"


def source_lines(ledger: Ledger, peak: Moment) -> list[str]:
    """The user's source lines that allocated what is alive at the peak."""
    alive = [
        entry
        for entry in ledger.alive(peak.phase, peak.place)
        if ":" in entry.source and " " not in entry.source
    ]
    if not alive:
        return []
    largest = _sums(alive, lambda entry: entry.source)[:_SOURCE_LINES]
    rows = [(format_gib(nbytes), line) for line, nbytes in largest]
    return ["allocated by these lines:", *align(rows, "rl")]


def host_lines(ledger: Ledger) -> list[str]:
    if HOST not in ledger.places():
        return []
    return [f"CPU memory: {format_bytes(ledger.peak(HOST).process_bytes)} in tensors"]


def folded(component: str) -> str:
    """Numbered layers are one line: `model.layers.3.mlp` and `model.layers.4.mlp` both become `model.layers.*.mlp`."""
    return re.sub(r"(?<![\w])\d+(?![\w])", "*", component)


def _sums(entries: Sequence[Entry], key: Callable[[Entry], str]) -> list[tuple[str, int]]:
    sums: dict[str, int] = {}
    for entry in entries:
        sums[key(entry)] = sums.get(key(entry), 0) + entry.nbytes
    return sorted(sums.items(), key=lambda pair: -pair[1])
