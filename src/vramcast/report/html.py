"""A Forecast as HTML: fragments that the page, `--html` and notebooks share, and the whole document.

Fragments carry classes and no styles or scripts, so that a strict Content-Security-Policy allows them. Every text that
comes from a user or a file is escaped here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from vramcast.forecast import Forecast, Verdict
from vramcast.ledger import Entry, Ledger, Level
from vramcast.report.breakdown import host_lines, model_lines, note_lines, ranks_lines
from vramcast.report.html_document import bullets, document, gib, notebook, section
from vramcast.report.html_serving import served_html
from vramcast.report.parts import PART_OF
from vramcast.report.phases import is_later_step, phase_name
from vramcast.report.svg import Piece, mark_label, stacked_bar
from vramcast.report.timeline_html import timeline_script, timelines_html
from vramcast.report.verdict import APART, answer_text, range_text
from vramcast.report.words import say
from vramcast.report.words.forecast import CATEGORIES, LABELS, MOMENTS, ORIGINS
from vramcast.report.words.page import PAGE, PARTS
from vramcast.report.words.sentences import translate
from vramcast.timelines.record import Timeline
from vramcast.units import format_bytes

ROOM = 1.03  # a bar's scale beyond the largest mark on it


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """What all bars of one forecast share: their whole, and the card's line."""

    whole: float
    capacity: int | None


def fragments(
    forecast: Forecast, lang: str = "en", beside: Forecast | None = None
) -> dict[str, str]:
    """The pieces of a report, by name, in the order in which they are read. `beside`: another job that the pictures
    show too, on the same scale."""
    verdict = forecast.verdict()
    scale = scale_of(verdict) if beside is None else common_scale([forecast, beside])
    other = "" if beside is None else _beside_html(beside, verdict, scale, lang)
    return {
        "verdict": verdict_html(verdict, lang),
        "bar": bar_html(forecast, scale, lang) + other,
        "served": "" if forecast.served is None else served_html(forecast.served, lang),
        "phases": phases_html(
            forecast.ledger, verdict, scale, lang, None if beside is None else beside.ledger
        ),
        "lines": lines_html(forecast.ledger, verdict, lang),
        "host": host_html(forecast, lang),
        "notes": notes_html(forecast, lang),
    }


def scale_of(verdict: Verdict) -> Scale:
    high = verdict.range_bytes[1] if verdict.range_bytes else 0
    marks = (verdict.highest_bytes, verdict.capacity_bytes or 0, high, 1)
    return Scale(whole=max(marks) * ROOM, capacity=verdict.capacity_bytes)


def common_scale(forecasts: Sequence[Forecast]) -> Scale:
    """Of the first one's card, and as wide as the widest."""
    verdicts = [forecast.verdict() for forecast in forecasts]
    whole = max(scale_of(verdict).whole for verdict in verdicts)
    return Scale(whole=whole, capacity=verdicts[0].capacity_bytes)


# ---- the verdict


def verdict_html(verdict: Verdict, lang: str) -> str:
    kind = "unknown" if verdict.answer is None else str(verdict.answer).replace(" ", "-")
    peak = f'<span class="peak" title="{verdict.highest_bytes:,} B">{gib(verdict.highest_bytes)}</span>'
    if verdict.capacity_bytes is not None:
        peak += (
            f' <span class="of">{say(PAGE, "of", lang, size=gib(verdict.capacity_bytes))}</span>'
        )
    facts = [_room_left(verdict, lang), range_text(verdict, lang).replace(APART, " · ")]
    moment = say(MOMENTS, verdict.peak.phase, lang)
    facts.append(f"{moment}, {verdict.peak.place}")
    more = " · ".join(escape(fact) for fact in facts if fact)
    return (
        f'<p class="verdict {kind}"><strong>{escape(answer_text(verdict.answer, lang))}</strong> {peak}</p>'
        f'<p class="verdict-more">{more}</p>'
    )


def _room_left(verdict: Verdict, lang: str) -> str:
    if verdict.headroom_bytes is None:
        return ""
    key = "free" if verdict.headroom_bytes >= 0 else "short"
    return say(PAGE, key, lang, size=gib(abs(verdict.headroom_bytes)))


# ---- the bar at the peak


def parts_at(ledger: Ledger, phase: str, place: str) -> dict[str, int]:
    """Bytes of every group alive in a phase, in the order of colours."""
    found = ledger.grouped(
        lambda entry: PART_OF.get(str(entry.category), "temporary"), phase=phase, place=place
    )
    return {part: found[part] for part in PARTS if found.get(part)}


def bar_html(forecast: Forecast, scale: Scale, lang: str) -> str:
    verdict = forecast.verdict()
    sums = parts_at(forecast.ledger, verdict.peak.phase, verdict.peak.place)
    bar = stacked_bar(
        pieces_of(sums, lang),
        scale.whole,
        label=bar_label(sums, say(PAGE, "peak_at", lang), lang),
        limit=scale.capacity,
        span=verdict.range_bytes,
        height=56,
    )
    mark = ""
    if scale.capacity is not None:
        text = say(PAGE, "capacity", lang, size=gib(scale.capacity))
        mark = mark_label(scale.capacity, scale.whole, text)
    return f'<figure class="at-peak">{mark}{bar}{_legend(sums, lang)}</figure>'


def _beside_html(beside: Forecast, now: Verdict, scale: Scale, lang: str) -> str:
    """The bar of the job to compare with, thinner, and what the present one has more or less."""
    verdict = beside.verdict()
    sums = parts_at(beside.ledger, verdict.peak.phase, verdict.peak.place)
    name = say(PAGE, "pinned", lang)
    change = now.highest_bytes - verdict.highest_bytes
    facts = [
        f"{name} {gib(verdict.highest_bytes)}",
        answer_text(verdict.answer, lang),
        f"{say(PAGE, 'now', lang)} {'−' if change < 0 else '+'}{gib(abs(change))}",
    ]
    bar = stacked_bar(
        pieces_of(sums, lang),
        scale.whole,
        label=bar_label(sums, name, lang),
        limit=verdict.capacity_bytes,
        height=24,
    )
    return (
        f'<figure class="beside">{bar}<figcaption>{escape(" · ".join(facts))}</figcaption></figure>'
    )


def pieces_of(sums: dict[str, int], lang: str) -> list[Piece]:
    return [
        Piece(part=part, size=nbytes, text=f"{say(PARTS, part, lang)} {gib(nbytes)}")
        for part, nbytes in sums.items()
    ]


def bar_label(sums: dict[str, int], title: str, lang: str) -> str:
    return f"{title}: " + ", ".join(
        f"{say(PARTS, part, lang)} {gib(nbytes)}" for part, nbytes in sums.items()
    )


def _legend(sums: dict[str, int], lang: str) -> str:
    items = (
        f'<li data-part="{part}" data-bytes="{nbytes}"><svg class="swatch" width="10" height="10" aria-hidden="true">'
        f'<rect class="part-{part}" width="10" height="10"/></svg> {escape(say(PARTS, part, lang))} '
        f"<b>{gib(nbytes)}</b></li>"
        for part, nbytes in sums.items()
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


# ---- phases


def phases_html(
    ledger: Ledger, verdict: Verdict, scale: Scale, lang: str, beside: Ledger | None = None
) -> str:
    """A bar for every phase of every device, on the scale of the bar at the peak. Marks: those of `beside`."""
    devices = ledger.devices()
    tables = []
    for place in devices:
        heading = f"<h4>{escape(place)}</h4>" if len(devices) > 1 else ""
        tables.append(heading + _phase_rows(ledger, place, verdict, scale, lang, beside))
    return "".join(tables)


def _phase_rows(
    ledger: Ledger, place: str, verdict: Verdict, scale: Scale, lang: str, beside: Ledger | None
) -> str:
    rows = []
    was_later = False
    for phase in ledger.phases(place):
        moment = ledger.moment(phase, place)
        sums = parts_at(ledger, phase, place)
        name = phase_name(phase, lang)
        is_peak = (phase, place) == (verdict.peak.phase, verdict.peak.place)
        classes = " ".join(
            word
            for word, holds in (
                ("phase", True),
                ("at-peak", is_peak),
                ("new-step", is_later_step(phase) and not was_later),
            )
            if holds
        )
        was_later = was_later or is_later_step(phase)
        bar = stacked_bar(
            pieces_of(sums, lang),
            scale.whole,
            label=bar_label(sums, name, lang),
            limit=scale.capacity,
            beside=_bytes_in(beside, phase, place),
            height=20,
        )
        rows.append(
            f'<li class="{classes}"><span class="name">{escape(name)}</span>{bar}'
            f'<span class="size">{gib(moment.process_bytes)}</span></li>'
        )
    return f'<ol class="phases">{"".join(rows)}</ol>'


def _bytes_in(ledger: Ledger | None, phase: str, place: str) -> int | None:
    """Nothing where the other job has no such phase."""
    if ledger is None or place not in ledger.devices() or phase not in ledger.phases(place):
        return None
    return ledger.moment(phase, place).process_bytes


# ---- lines


def lines_html(ledger: Ledger, verdict: Verdict, lang: str) -> str:
    """Every line at the peak, largest first within its level; formula and source unfold."""
    entries = sorted(
        ledger.alive(verdict.peak.phase, verdict.peak.place),
        key=lambda entry: (list(Level).index(entry.level), -entry.nbytes),
    )
    largest = max((entry.nbytes for entry in entries), default=1)
    rows = "".join(_line(entry, largest, lang) for entry in entries if entry.nbytes)
    return f'<div class="lines">{rows}</div>'


def _line(entry: Entry, largest: int, lang: str) -> str:
    part = PART_OF.get(str(entry.category), "temporary")
    name = f"{say(CATEGORIES, str(entry.category), lang)}: {translate(entry.component, lang)}"
    width = max(100 * entry.nbytes / largest, 0.5)
    bar = (
        '<svg class="small-bar" width="100%" height="10" aria-hidden="true">'
        f'<rect class="part-{part}" width="{width:.2f}%" height="10"/></svg>'
    )
    facts = "".join(
        f'<dt>{escape(say(PAGE, key, lang))}</dt><dd data-fact="{key}">{escape(text)}</dd>'
        for key, text in _facts(entry, lang)
    )
    return (
        f'<details data-part="{part}"><summary><span class="size">{format_bytes(entry.nbytes)}</span>{bar}'
        f'<span class="name">{escape(name)}</span></summary><dl>{facts}</dl></details>'
    )


def _facts(entry: Entry, lang: str) -> Iterable[tuple[str, str]]:
    """By their keys in PAGE."""
    yield "exact", f"{entry.nbytes:,} B"
    if entry.formula:
        yield "formula", translate(entry.formula, lang)
    if entry.range_bytes:
        low, high = map(format_bytes, entry.range_bytes)
        yield "could_be", f"{low} – {high}"
    source = f": {translate(entry.source, lang)}" if entry.source else ""
    yield "known_by", f"{say(ORIGINS, str(entry.origin), lang)}{source}"
    if entry.needed_by:
        yield "needed_by", translate(entry.needed_by, lang)
    yield "alive_in", ", ".join(phase_name(phase, lang) for phase in entry.phases)


# ---- host memory, ranks, notes


def host_html(forecast: Forecast, lang: str) -> str:
    return bullets([*host_lines(forecast, lang), *ranks_lines(forecast, lang)])


def notes_html(forecast: Forecast, lang: str) -> str:
    heading = f"{say(LABELS, 'assumed', lang)}:"
    return bullets([line.strip() for line in note_lines(forecast, lang) if line != heading])


# ---- the whole document


def render_document(forecast: Forecast, lang: str = "en", timeline: Timeline | None = None) -> str:
    """One self-contained file: opens from disk, needs no network. Only a timeline brings a script."""
    pieces = fragments(forecast, lang)
    if timeline is not None:
        pieces["timeline"] = timelines_html([timeline], lang)
    order = ("served", "phases", "timeline", "lines", "host", "notes")
    body = "".join(section(say(PAGE, key, lang), pieces.get(key, "")) for key in order)
    about = "".join(f"<p>{escape(line)}</p>" for line in model_lines(forecast, lang))
    return document(
        say(PAGE, "title", lang, name=name_of(forecast)),
        f"{about}{pieces['verdict']}{pieces['bar']}{body}",
        lang,
        "" if timeline is None else timeline_script(),
    )


def name_of(forecast: Forecast) -> str:
    names = [
        forecast.model.name if forecast.model else "—",
        forecast.gpu.name if forecast.gpu else "",
    ]
    return " · ".join(name for name in names if name)


def render_notebook(forecast: Forecast, lang: str = "en") -> str:
    """For a notebook's cell: the verdict, the bar and the phases, with their styles."""
    pieces = fragments(forecast, lang)
    return notebook(f"{pieces['verdict']}{pieces['bar']}{pieces['phases']}")
