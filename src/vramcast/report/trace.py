"""A traced run as text: verdict, timeline, memory by category and module, the source lines, what was assumed.

Layers of the same kind are folded into one line (`model.layers.*.mlp`); the JSON has every line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from vramcast.forecast import Forecast
from vramcast.ledger import HOST, Entry, Ledger, Moment, Origin
from vramcast.report.breakdown import note_lines, phase_lines
from vramcast.report.table import align
from vramcast.report.verdict import headline
from vramcast.report.words import say
from vramcast.report.words.forecast import CATEGORIES, MOMENTS, ORIGINS
from vramcast.report.words.sentences import translate
from vramcast.report.words.snapshot import TRACED
from vramcast.sandbox.session import Footprint
from vramcast.units import format_bytes, format_gib

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 72
_LINES_PER_CATEGORY = 4
_SOURCE_LINES = 8
_MOST_HOSTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class HowItEnded:
    """How a traced script ended, and what that makes of its peak."""

    script: str
    how: str  # "ran to its end", …
    steps: int
    line: str = ""  # where it failed
    exit_code: str = ""
    out_of_memory_line: str = ""
    steps_before_limit: int = 0
    went_on: bool = False  # without the limit of the card
    is_whole: bool = True
    is_decided: bool = True
    lost: tuple[str, ...] = ()


def render_trace(
    forecast: Forecast,
    timeline: Sequence[tuple[str, int]],
    ending: HowItEnded,
    place: str,
    lang: str = "en",
) -> str:
    """`timeline`: (phase, allocated bytes) in the order of time."""
    verdict = forecast.verdict(place)
    if not ending.is_decided and verdict.fits is not False:
        verdict = replace(verdict, answer=None)
    ledger, peak = forecast.ledger, verdict.peak
    sections = (
        [headline(verdict, lang), *(translate(line, lang) for line in ending_lines(ending))],
        timeline_lines(timeline, lang),
        peak_lines(ledger, peak, lang),
        source_lines(ledger, peak, lang),
        [*phase_lines(forecast, lang), *host_lines(ledger, lang), *note_lines(forecast, lang)],
    )
    return "\n\n".join("\n".join(section) for section in sections if section)


def ending_lines(ending: HowItEnded) -> list[str]:
    """What the script did, where it stopped, and how far its peak can be trusted."""
    steps = f"{ending.steps} optimizer step{'' if ending.steps == 1 else 's'}"
    how = ending.how
    if ending.out_of_memory_line:
        how = f"ran out of memory at {ending.out_of_memory_line}"
        done = ending.steps_before_limit
        steps = f"{done} optimizer step{'' if done == 1 else 's'}"
    elif ending.line:
        how = f"failed at {ending.line}"
    elif ending.exit_code:
        how = f"left with exit code {ending.exit_code}"
    lines = [f"{ending.script} {how} after {steps}"]
    if ending.went_on:
        more = ending.steps - ending.steps_before_limit
        lines.append(
            f"it went on without the limit for {more} more, to see what it needs: the figures are those of that run"
        )
    if not ending.is_whole or ending.lost:
        lines.append(_trust(ending))
    return lines + [f"not followed: {text}" for text in ending.lost]


def _trust(ending: HowItEnded) -> str:
    if ending.lost:
        return "part of its work was not followed, so the peak is a lower bound: nothing is decided"
    if ending.steps == 0:
        return "no whole step was seen, so the peak is a lower bound: nothing is decided"
    if ending.steps == 1:
        return (
            "one whole step was seen; later ones can need more, since optimizer states exist then"
        )
    return "whole steps were seen, so the peak stands for the loop up to there"


def footprint_lines(footprint: Footprint, lang: str = "en") -> list[str]:
    """What the script did to files and over the network, and how the user's own files were protected."""
    lines = [f"{say(TRACED, 'files', lang)}: {translate(_files(footprint), lang)}"]
    if footprint.kept_in:
        lines.append(say(TRACED, "kept", lang, folder=footprint.kept_in))
    if footprint.connections:
        told = translate(_connections(footprint), lang)
        hosts = translate(_listed(footprint), lang)
        lines.append(f"{say(TRACED, 'network', lang)}: {told}: {hosts}")
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


def timeline_lines(timeline: Sequence[tuple[str, int]], lang: str = "en") -> list[str]:
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
        f"  {bars}  {say(TRACED, 'allocated', lang, size=format_bytes(top))}",
        f"  {letters}  {say(TRACED, 'letters', lang)}",
    ]


def _letter(phase: str) -> str:
    name = phase.removeprefix("next ")
    return "f" if name == "loss" else name[0]


def peak_lines(ledger: Ledger, peak: Moment, lang: str = "en") -> list[str]:
    """What is alive at the peak: categories, largest first, each with its largest modules."""
    alive = ledger.alive(peak.phase, peak.place)
    rows: list[tuple[str, str, str]] = []
    for category, total in _sums(alive, lambda entry: str(entry.category)):
        entries = [entry for entry in alive if str(entry.category) == category]
        rows += _category_rows(category, total, entries, lang)
    rows.append((format_gib(peak.process_bytes), "", say(TRACED, "in_total", lang)))
    moment = say(MOMENTS, peak.phase, lang)
    title = say(TRACED, "peak_title", lang, moment=moment, place=peak.place)
    return [title, *align(rows, "rrl")]


def _category_rows(
    category: str, total: int, entries: Sequence[Entry], lang: str
) -> Iterator[tuple[str, str, str]]:
    found = sorted({str(entry.origin) for entry in entries})
    origins = ", ".join(say(ORIGINS, origin, lang) for origin in found)
    yield format_gib(total), "", f"{say(CATEGORIES, category, lang)}  [{origins}]"
    modules = _sums(entries, lambda entry: folded(entry.component))
    for name, nbytes in modules[:_LINES_PER_CATEGORY]:
        yield "", format_gib(nbytes), translate(name, lang)
    rest = modules[_LINES_PER_CATEGORY:]
    if rest:
        yield (
            "",
            format_gib(sum(nbytes for _, nbytes in rest)),
            say(TRACED, "more", lang, count=len(rest)),
        )


def source_lines(ledger: Ledger, peak: Moment, lang: str = "en") -> list[str]:
    """The user's source lines that allocated what is alive at the peak."""
    alive = [
        entry
        for entry in ledger.alive(peak.phase, peak.place)
        if entry.origin == Origin.TRACED and ":" in entry.source
    ]
    if not alive:
        return []
    largest = _sums(alive, lambda entry: entry.source)[:_SOURCE_LINES]
    rows = [(format_gib(nbytes), line) for line, nbytes in largest]
    return [say(TRACED, "by_lines", lang), *align(rows, "rl")]


def host_lines(ledger: Ledger, lang: str = "en") -> list[str]:
    if HOST not in ledger.places():
        return []
    size = format_bytes(ledger.peak(HOST).process_bytes)
    return [say(TRACED, "host", lang, size=size)]


def folded(component: str) -> str:
    """Numbered layers are one line: `model.layers.3.mlp` and `model.layers.4.mlp` both become `model.layers.*.mlp`."""
    if " " in component:
        return component
    return re.sub(r"(?:(?<=\.)|^)\d+(?=\.|$)", "*", component)


def _sums(entries: Sequence[Entry], key: Callable[[Entry], str]) -> list[tuple[str, int]]:
    sums: dict[str, int] = {}
    for entry in entries:
        sums[key(entry)] = sums.get(key(entry), 0) + entry.nbytes
    return sorted(sums.items(), key=lambda pair: -pair[1])
