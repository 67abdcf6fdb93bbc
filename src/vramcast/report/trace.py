"""A traced run as text: verdict, timeline, the bill by kind and module, the lines that asked, what was assumed.

Layers of the same kind are folded into one line (`model.layers.*.mlp`); the JSON has every line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from vramcast.forecast import Forecast
from vramcast.ledger import Entry, Ledger, Moment
from vramcast.report.bill import headline, phases_text
from vramcast.sandbox.session import Footprint
from vramcast.units import format_bytes, format_gib

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 72
_LINES_PER_KIND = 4
_MOST_HOSTS = 8


def render_trace(forecast: Forecast, timeline: Sequence[tuple[str, int]], ending: str, place: str) -> str:
    """`timeline`: (phase, allocated bytes) in the order of time."""
    verdict = forecast.verdict(place)
    ledger, peak = forecast.ledger, verdict.peak
    parts = [
        headline(verdict, "en"), ending, "",
        *timeline_text(timeline), "",
        *kinds_text(ledger, peak), "",
        *places_text(ledger, peak),
        *phases_text(forecast, "en"),
        *host_text(ledger),
        *(f"warning: {text}" for text in forecast.warnings),
        *(["assumed:"] if forecast.assumptions else []),
        *(f"  {text}" for text in forecast.assumptions),
    ]  # fmt: skip
    return "\n".join(parts)


def footprint_text(footprint: Footprint) -> list[str]:
    """What the script did to files and over the network, and how the user's own were protected."""
    counted = f"{footprint.written} written, {footprint.replaced} replaced, {footprint.deleted} deleted"
    protection = footprint.protection
    if protection.kind == "none":
        files = "files: not protected (--no-protect): what the script wrote is on your disk"
    elif protection.kind == "namespace":
        files = f"files: {counted}, in a scratch layer only (protected by the kernel: overlay in a mount namespace)"
    else:
        beyond = "the kernel refuses what Python does not see" if protection.kernel_refuses else "inside Python only"
        files = f"files: {counted}, in a scratch layer only (protected by the guard, {beyond}: {protection.reason})"
    kept = [f"files kept in {footprint.kept_in}"] if footprint.kept_in else []
    return [files, *kept, *_network_text(footprint)]


def _network_text(footprint: Footprint) -> list[str]:
    if not footprint.connections:
        return []
    what = "connection refused (--offline)" if footprint.offline else "connection to another machine"
    plural = what.replace("connection ", "connections ").replace("another machine", "other machines")
    return [f"network: {footprint.connections} {what if footprint.connections == 1 else plural}: {_listed(footprint)}"]


def _listed(footprint: Footprint) -> str:
    shown = ", ".join(footprint.hosts[:_MOST_HOSTS])
    more = len(footprint.hosts) - _MOST_HOSTS
    return f"{shown} and {more} more" if more > 0 else shown


def timeline_text(timeline: Sequence[tuple[str, int]]) -> list[str]:
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
    return [f"  {bars}  {format_bytes(top)} allocated", f"  {letters}  l load, f forward, b backward, s step, e eval"]


def _letter(phase: str) -> str:
    name = phase.removeprefix("next ")
    return "f" if name == "loss" else name[0]


def kinds_text(ledger: Ledger, peak: Moment) -> list[str]:
    """What is alive at the peak: kinds, largest first, each with its largest modules."""
    alive = ledger.alive(peak.phase, peak.place)
    kinds = _sums(alive, lambda entry: str(entry.category))
    lines = [f"at the peak ({peak.phase}, {peak.place}):"]
    for kind, total in kinds:
        origins = sorted({str(entry.origin) for entry in alive if str(entry.category) == kind})
        lines.append(f"  {format_gib(total):>12}  {kind}  [{', '.join(origins)}]")
        inside = _sums([entry for entry in alive if str(entry.category) == kind], lambda entry: folded(entry.component))
        lines += [f"  {'':12}    {format_gib(nbytes):>12}  {name}" for name, nbytes in inside[:_LINES_PER_KIND]]
        rest = inside[_LINES_PER_KIND:]
        if rest:
            lines.append(f"  {'':12}    {format_gib(sum(size for _, size in rest)):>12}  {len(rest)} more")
    lines.append(f"  {format_gib(peak.process_bytes):>12}  in all, as nvidia-smi would show")
    return lines


def places_text(ledger: Ledger, peak: Moment) -> list[str]:
    """The user's source lines that asked for what is alive at the peak."""
    alive = [entry for entry in ledger.alive(peak.phase, peak.place) if ":" in entry.source and " " not in entry.source]
    if not alive:
        return []
    ranked = _sums(alive, lambda entry: entry.source)
    return ["asked for at:", *(f"  {format_gib(nbytes):>12}  {line}" for line, nbytes in ranked[:8])]


def host_text(ledger: Ledger) -> list[str]:
    return [
        f"host: {format_bytes(ledger.peak(place).process_bytes)} in tensors"
        for place in ledger.places()
        if place == "host"
    ]


def folded(component: str) -> str:
    """Numbered layers are one line: `model.layers.3.mlp` and `model.layers.4.mlp` both become `model.layers.*.mlp`."""
    return re.sub(r"(?<![\w])\d+(?![\w])", "*", component)


def _sums(entries: Sequence[Entry], key: Callable[[Entry], str]) -> list[tuple[str, int]]:
    sums: dict[str, int] = {}
    for entry in entries:
        sums[key(entry)] = sums.get(key(entry), 0) + entry.nbytes
    return sorted(sums.items(), key=lambda pair: -pair[1])
