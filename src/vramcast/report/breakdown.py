"""A Forecast as text or Markdown: the verdict, memory by line at the peak, then phases, CPU memory, assumptions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vramcast.forecast import Forecast, Scaling
from vramcast.ledger import Entry, Ledger, Level, Moment
from vramcast.report.phases import is_later_step
from vramcast.report.table import Column, align, markdown_lines
from vramcast.report.verdict import headline
from vramcast.report.words import say
from vramcast.report.words.forecast import CATEGORIES, COUNTERS, LABELS, ORIGINS, PHASES, PLACES
from vramcast.units import GiB, KiB, MiB, format_bytes, format_gib

BAR_WIDTH = 20
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


def render_text(forecast: Forecast, lang: str = "en") -> str:
    first = [headline(forecast.verdict(), lang), *model_lines(forecast, lang)]
    last = [
        *ranks_lines(forecast, lang),
        *host_lines(forecast, lang),
        *note_lines(forecast, lang),
    ]
    sections = (
        first,
        peak_lines(forecast, lang),
        largest_lines(forecast, lang),
        *([line] for line in phase_lines(forecast, lang)),
    )
    return "\n\n".join("\n".join(section) for section in sections) + "".join(
        f"\n{line}" for line in last
    )


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
    names = ", ".join(line.component for line in lines)
    return [(format_gib(nbytes), "", say(LABELS, key, lang, count=len(lines), names=names))]


def _bar(nbytes: int, whole: int) -> str:
    return "█" * max(round(BAR_WIDTH * nbytes / whole), 0)


def _name(line: Line, lang: str) -> str:
    parts = [f"{say(CATEGORIES, line.category, lang)}: {line.component}", line.why]
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
    parts = (f"{rank.name} {rank.allocated_bytes / GiB:,.2f} (× {rank.ranks:,})" for rank in shown)
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
    yield from (f"{say(LABELS, 'warning', lang)}: {text}" for text in forecast.warnings)
    yield from (f"{say(LABELS, 'note', lang)}: {text}" for text in forecast.notes)
    if forecast.assumptions:
        yield f"{say(LABELS, 'assumed', lang)}:"
    yield from (f"  {text}" for text in forecast.assumptions)


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
        "",
        *model_lines(forecast, lang),
        "",
        *markdown_lines(columns, rows),
        *(f"\n{line}" for line in phase_lines(forecast, lang)),
        *host_lines(forecast, lang),
        "",
        *note_lines(forecast, lang),
    ]
    return "\n".join(parts)


def _markdown_cells(line: Line, lang: str) -> tuple[str, ...]:
    return (
        f"{say(CATEGORIES, line.category, lang)}: {line.component}",
        f"{line.nbytes / GiB:.2f}",
        f"{line.nbytes:,}",
        line.why,
        say(ORIGINS, line.origin, lang),
    )
