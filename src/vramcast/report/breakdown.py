"""A Forecast as text or Markdown: the verdict, memory by line at the peak, then phases, CPU memory, assumptions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vramcast.forecast import Forecast, Scaling, Verdict
from vramcast.ledger import Entry, Ledger, Level, Moment
from vramcast.report.phases import is_later_step
from vramcast.report.serving import served_lines
from vramcast.report.table import Column, align, markdown_lines
from vramcast.report.verdict import detail_lines, headline
from vramcast.report.words import say
from vramcast.report.words.forecast import CATEGORIES, COUNTERS, LABELS, ORIGINS, PHASES, PLACES
from vramcast.report.words.sentences import translate
from vramcast.units import GiB, KiB, MiB, format_bytes, format_gib

BAR_WIDTH = 20
MOST_PARTS = 5  # kinds of memory in the short form
SMALL = 0.002  # lines below this share of the peak are put together


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One printed line: entries of one component at the peak."""

    category: str
    component: str
    nbytes: int
    why: str
    origin: str
    level: Level


def render_text(forecast: Forecast, lang: str = "en", *, verbose: bool = False) -> str:
    """What matters in ten lines, then warnings and assumptions; `verbose`: every line, phases, sources."""
    verdict = forecast.verdict()
    first = [headline(verdict, lang), *detail_lines(verdict, lang)]
    first += [f"  {line}" for line in model_lines(forecast, lang)]
    sections = [first, part_lines(forecast, lang)]
    if verbose:
        sections = [first, peak_lines(forecast, lang), largest_lines(forecast, lang)]
        sections += [phase_lines(forecast, lang)]
    if forecast.served is not None:
        sections.append(list(served_lines(forecast.served, lang)))
    sections.append(_last_lines(forecast, lang, verbose=verbose))
    return "\n\n".join("\n".join(section) for section in sections)


def _last_lines(forecast: Forecast, lang: str, *, verbose: bool) -> list[str]:
    lines = [*ranks_lines(forecast, lang), *host_lines(forecast, lang)]
    lines += remark_lines(forecast, lang)
    if verbose:
        return [*lines, *assumption_lines(forecast, lang)]
    return [*lines, *_short_assumptions(forecast, lang), say(LABELS, "verbose", lang)]


def _short_assumptions(forecast: Forecast, lang: str) -> list[str]:
    """What was decided, without why. That something was left open says no more than what was decided instead."""
    decided = (text for text in forecast.assumptions if " was not given:" not in text)
    named = [re.split("[:：]", translate(text, lang))[0] for text in decided]
    return [f"{say(LABELS, 'assumed_short', lang)}: {'; '.join(named)}"] if named else []


def model_lines(forecast: Forecast, lang: str) -> Iterator[str]:
    model = forecast.model
    if model is None:
        return
    text = f"{model.params_total:,} {say(LABELS, 'parameters', lang)}"
    if model.params_trainable != model.params_total:
        text += f", {model.params_trainable:,} {say(LABELS, 'trainable', lang)}"
    yield text if model.name == text else f"{model.name}: {text}"


def lines_at(ledger: Ledger, moment: Moment) -> list[Line]:
    """Entries of one phase, put together by component, largest first within their level."""
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in ledger.alive(moment.phase, moment.place):
        groups.setdefault((str(entry.category), entry.component), []).append(entry)
    lines = [
        Line(
            category=category,
            component=component,
            nbytes=sum(entry.nbytes for entry in entries),
            why=next((entry.formula for entry in entries if entry.formula), ""),
            origin=str(entries[0].origin),
            level=entries[0].level,
        )
        for (category, component), entries in groups.items()
    ]
    order = list(Level)
    return sorted(lines, key=lambda line: (order.index(line.level), -line.nbytes))


# ---- the peak


def part_lines(forecast: Forecast, lang: str) -> list[str]:
    """The largest kinds of memory at the peak, and their sum."""
    verdict = forecast.verdict()
    whole = max(verdict.highest_bytes, 1)
    sums = forecast.ledger.grouped(
        lambda entry: str(entry.category), phase=verdict.peak.phase, place=verdict.peak.place
    )
    parts = sorted(
        ((name, nbytes) for name, nbytes in sums.items() if nbytes), key=lambda part: -part[1]
    )
    shown = parts if len(parts) <= MOST_PARTS + 1 else parts[:MOST_PARTS]
    rows = [
        (format_gib(nbytes), _bar(nbytes, whole), say(CATEGORIES, name, lang))
        for name, nbytes in shown
    ]
    rest = parts[len(shown) :]
    if rest:
        count = say(LABELS, "smaller_count", lang, count=len(rest))
        rows.append((format_gib(sum(nbytes for _, nbytes in rest)), "", count))
    rows.append((format_gib(verdict.highest_bytes), "─" * BAR_WIDTH, _whole(verdict, lang)))
    return align(rows, "rll")


def _whole(verdict: Verdict, lang: str) -> str:
    if verdict.process_bytes is not None:
        return say(LABELS, "all_of_it", lang)
    key = "all_allocated" if verdict.reserved_bytes is None else "all_reserved"
    return say(LABELS, key, lang)


def peak_lines(forecast: Forecast, lang: str) -> list[str]:
    """Lines that add up, with subtotals where torch's counters stand."""
    peak = forecast.verdict().peak
    lines = lines_at(forecast.ledger, peak)
    whole = max(peak.process_bytes, 1)
    rows: list[tuple[str, str, str]] = []
    for level, total in _level_totals(forecast):
        of_level = [line for line in lines if line.level == level]
        large = [line for line in of_level if line.nbytes >= SMALL * whole]
        small = [line for line in of_level if line.nbytes < SMALL * whole]
        rows += [
            (format_gib(line.nbytes), _bar(line.nbytes, whole), _name(line, lang)) for line in large
        ]
        rows += _small_row(small, lang)
        rows.append((format_gib(total), "─" * BAR_WIDTH, say(COUNTERS, str(level), lang)))
    return align(rows, "rll")


def _level_totals(forecast: Forecast) -> list[tuple[Level, int]]:
    """The levels that are modelled."""
    verdict = forecast.verdict()
    totals = (
        (Level.ALLOCATED, verdict.allocated_bytes),
        (Level.RESERVED, verdict.reserved_bytes),
        (Level.PROCESS, verdict.process_bytes),
    )
    return [(level, total) for level, total in totals if total is not None]


def _small_row(lines: Sequence[Line], lang: str) -> list[tuple[str, str, str]]:
    nbytes = sum(line.nbytes for line in lines)
    if nbytes == 0:
        return []
    key = "smaller_one" if len(lines) == 1 else "smaller"
    names = ", ".join(translate(line.component, lang) for line in lines)
    return [(format_gib(nbytes), "", say(LABELS, key, lang, count=len(lines), names=names))]


def _bar(nbytes: int, whole: int) -> str:
    return "█" * max(round(BAR_WIDTH * nbytes / whole), 0)


def _name(line: Line, lang: str) -> str:
    parts = [
        f"{say(CATEGORIES, line.category, lang)}: {translate(line.component, lang)}",
        translate(line.why, lang),
    ]
    if line.origin != "formula":
        parts.append(f"[{say(ORIGINS, line.origin, lang)}]")
    return "   ".join(part for part in parts if part)


def largest_lines(forecast: Forecast, lang: str) -> list[str]:
    """The three largest categories at the peak, and how activations grow with the length."""
    peak = forecast.verdict().peak
    sums = forecast.ledger.grouped(
        lambda entry: str(entry.category), phase=peak.phase, place=peak.place
    )
    largest = sorted(sums.items(), key=lambda item: -item[1])[:3]
    whole = max(peak.process_bytes, 1)
    shares = ", ".join(
        f"{say(CATEGORIES, name, lang)} {nbytes / whole:.0%}" for name, nbytes in largest
    )
    lines = [f"{say(LABELS, 'largest', lang)}: {shares}"]
    if forecast.scaling is not None:
        lines.append(_growth(forecast.scaling, lang))
    return lines


def _growth(scaling: Scaling, lang: str) -> str:
    linear = f"{scaling.linear_bytes / MiB:.2g} MiB"
    if scaling.linear_bytes >= 100 * MiB:
        linear = f"{scaling.linear_bytes / MiB:,.0f} MiB"
    if scaling.crossover_seq is None:
        return say(LABELS, "growth", lang, linear=linear, batch=scaling.batch)
    return say(
        LABELS,
        "growth_quadratic",
        lang,
        linear=linear,
        quadratic=f"{scaling.quadratic_bytes / KiB:.2g} KiB",
        batch=scaling.batch,
        length=f"{scaling.crossover_seq:,}",
    )


# ---- phases, ranks, CPU memory, notes


def phase_lines(forecast: Forecast, lang: str) -> list[str]:
    """One line per device: the phases of the first step, of later steps, and what comes after them."""
    ledger = forecast.ledger
    return [
        f"{say(LABELS, 'phases', lang, place=place)}: {_phases_at(ledger, place, lang)}"
        for place in ledger.devices()
    ]


def _phases_at(ledger: Ledger, place: str, lang: str) -> str:
    groups: list[tuple[bool, list[str]]] = []
    for phase in ledger.phases(place):
        is_later = is_later_step(phase)
        size = ledger.moment(phase, place).allocated_bytes / GiB
        text = f"{say(PHASES, phase, lang)} {size:,.2f}"
        if not groups or groups[-1][0] != is_later:
            groups.append((is_later, []))
        groups[-1][1].append(text)
    heading = say(LABELS, "later_steps", lang)
    return "; ".join(
        f"{heading}: {' | '.join(texts)}" if is_later else " | ".join(texts)
        for is_later, texts in groups
    )


def ranks_lines(forecast: Forecast, lang: str) -> list[str]:
    """The spread over ranks that hold different parts: the fullest, a middle one and the emptiest."""
    if not forecast.ranks:
        return []
    ranks = sorted(forecast.ranks, key=lambda rank: -rank.allocated_bytes)
    shown = ranks if len(ranks) < 3 else [ranks[0], ranks[len(ranks) // 2], ranks[-1]]
    parts = (
        f"{translate(rank.name, lang)} {rank.allocated_bytes / GiB:,.2f} (× {rank.ranks:,})"
        for rank in shown
    )
    total = sum(rank.ranks for rank in ranks)
    return [f"{say(LABELS, 'ranks', lang, count=f'{total:,}')}: {' | '.join(parts)}"]


def host_lines(forecast: Forecast, lang: str) -> list[str]:
    ledger = forecast.ledger
    node = ""
    if forecast.ranks:
        key = "per_one_node" if forecast.nodes == 1 else "per_node"
        node = f" ({say(LABELS, key, lang, count=f'{forecast.nodes:,}')})"
    return [
        f"{say(PLACES, place, lang)}{node}: {format_bytes(ledger.peak(place).process_bytes)}"
        for place in ledger.places()
        if not place.startswith("cuda")
    ]


def note_lines(forecast: Forecast, lang: str) -> Iterator[str]:
    yield from remark_lines(forecast, lang)
    yield from assumption_lines(forecast, lang)


def remark_lines(forecast: Forecast, lang: str) -> Iterator[str]:
    said = (
        ("warning", forecast.warnings),
        ("not_counted", forecast.not_understood),
        ("note", forecast.notes),
    )
    for key, texts in said:
        yield from (f"{say(LABELS, key, lang)}: {translate(text, lang)}" for text in texts)


def assumption_lines(forecast: Forecast, lang: str) -> Iterator[str]:
    if forecast.assumptions:
        yield f"{say(LABELS, 'assumed', lang)}:"
    yield from (f"  {translate(text, lang)}" for text in forecast.assumptions)


# ---- Markdown


def render_markdown(forecast: Forecast, lang: str = "en") -> str:
    """The same breakdown as a table for an issue or a notebook."""
    lines = lines_at(forecast.ledger, forecast.verdict().peak)
    columns = (
        Column(title=say(LABELS, "what", lang)),
        Column(title="GiB", right=True),
        Column(title="bytes", right=True),
        Column(title=say(LABELS, "why", lang)),
        Column(title=say(LABELS, "origin", lang)),
    )
    rows = [_markdown_cells(line, lang) for line in lines]
    total = sum(line.nbytes for line in lines)
    name = say(LABELS, "total", lang)
    rows.append((f"**{name}**", f"**{total / GiB:.2f}**", f"**{total:,}**", "", ""))
    parts = [
        f"**{headline(forecast.verdict(), lang)}**",
        *(f"\n{line.strip()}" for line in detail_lines(forecast.verdict(), lang)),
        "",
        *model_lines(forecast, lang),
        "",
        *markdown_lines(columns, rows),
        *(f"\n{line}" for line in phase_lines(forecast, lang)),
        *host_lines(forecast, lang),
        *(() if forecast.served is None else served_lines(forecast.served, lang)),
        "",
        *note_lines(forecast, lang),
    ]
    return "\n".join(parts)


def _markdown_cells(line: Line, lang: str) -> tuple[str, ...]:
    return (
        f"{say(CATEGORIES, line.category, lang)}: {translate(line.component, lang)}",
        f"{line.nbytes / GiB:.2f}",
        f"{line.nbytes:,}",
        translate(line.why, lang),
        say(ORIGINS, line.origin, lang),
    )
