"""A Forecast as text or Markdown: the verdict first, then the bill, then phases, host, assumptions."""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.forecast import Forecast, Scaling, Verdict
from vramcast.ledger import Entry, Ledger, Level
from vramcast.report.words.bill import word
from vramcast.units import GiB, KiB, MiB, format_bytes, format_gib, format_gib_and_gb

BAR_WIDTH = 20
SMALL = 0.002  # lines below this share of the peak are put together


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One printed line: entries of one component at the peak."""

    category: str
    component: str
    nbytes: int
    why: str
    origin: str
    level: Level


def render_text(forecast: Forecast, lang: str = "en") -> str:
    parts = [
        headline(forecast.verdict(), lang), model_line(forecast, lang), *bill_text(forecast, lang),
        *dominates_text(forecast, lang), *phases_text(forecast, lang), *ranks_text(forecast, lang),
        *host_text(forecast, lang), *notes_text(forecast, lang),
    ]  # fmt: skip
    return "\n".join(part for part in parts if part is not None)


def headline(verdict: Verdict, lang: str) -> str:
    """`DOES NOT FIT  peak 85.4 GiB of 79.1, short 6.3 (range …), at step`"""
    highest = next(v for v in (verdict.process_bytes, verdict.reserved_bytes, verdict.allocated_bytes) if v is not None)
    key = {True: "FITS", False: "DOES NOT FIT", None: "NEEDS"}[verdict.fits]
    text = f"{word(key, lang)}   {word('peak', lang)} {format_gib_and_gb(highest)}"
    if verdict.capacity_bytes is not None:
        text += f" {word('of', lang)} {format_gib(verdict.capacity_bytes)}"
    if verdict.headroom_bytes is not None:
        side = "free" if verdict.headroom_bytes >= 0 else "short"
        text += f"   {word(side, lang)} {format_gib(abs(verdict.headroom_bytes))}"
    if verdict.range_bytes is not None:
        low, high = verdict.range_bytes
        text += f"   ({word('range', lang)} {low / GiB:,.2f}–{high / GiB:,.2f})"
    if verdict.reserved_bytes is None:
        text += f"   ({word('lower bound', lang)})"
    return f"{text}   {word('at', lang)} {word(verdict.peak.phase, lang)}, {verdict.peak.place}"


def model_line(forecast: Forecast, lang: str) -> str | None:
    model = forecast.model
    if model is None:
        return None
    trained = (
        ""
        if model.params_trainable == model.params_total
        else f", {model.params_trainable:,} {word('trainable', lang)}"
    )
    return f"{model.name}: {model.params_total:,} {word('parameters', lang)}{trained}"


def rows_at(ledger: Ledger, phase: str, place: str) -> list[Row]:
    """Entries of one phase, put together by component, largest first within their level."""
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in ledger.alive(phase, place):
        groups.setdefault((str(entry.category), entry.component), []).append(entry)
    rows = [
        Row(
            category=category, component=component, nbytes=sum(entry.nbytes for entry in entries),
            why=next((entry.formula for entry in entries if entry.formula), ""), origin=str(entries[0].origin),
            level=entries[0].level,
        )
        for (category, component), entries in groups.items()
    ]  # fmt: skip
    order = list(Level)
    return sorted(rows, key=lambda row: (order.index(row.level), -row.nbytes))


def bill_text(forecast: Forecast, lang: str) -> list[str]:
    """Lines that add up, with subtotals where torch's counters stand."""
    peak = forecast.verdict().peak
    rows = rows_at(forecast.ledger, peak.phase, peak.place)
    top = max(peak.process_bytes, 1)
    lines = [""]
    for level, total, name in _levels(forecast, lang):
        here = [row for row in rows if row.level == level]
        big = [row for row in here if row.nbytes >= SMALL * top]
        lines += [_line(row, top, lang) for row in big]
        rest = sum(row.nbytes for row in here) - sum(row.nbytes for row in big)
        if rest:
            lines.append(f"  {format_gib(rest):>12}  {'':{BAR_WIDTH}}  {_small_lines(here, big)}")
        lines.append(f"  {format_gib(total):>12}  {'─' * BAR_WIDTH}  {name}")
    return lines


def _small_lines(here: list[Row], big: list[Row]) -> str:
    names = [row.component for row in here if row not in big]
    return f"{len(names)} × < {SMALL:.1%}: {', '.join(names)}"


def _levels(forecast: Forecast, lang: str) -> list[tuple[Level, int, str]]:
    verdict = forecast.verdict()
    named = (
        (Level.ALLOCATED, verdict.allocated_bytes, "allocated (torch.cuda.max_memory_allocated)"),
        (Level.RESERVED, verdict.reserved_bytes, "reserved (torch.cuda.max_memory_reserved)"),
        (Level.PROCESS, verdict.process_bytes, "process (nvidia-smi)"),
    )
    return [(level, total, word(name, lang)) for level, total, name in named if total is not None]


def _line(row: Row, top: int, lang: str) -> str:
    bar = "█" * max(round(BAR_WIDTH * row.nbytes / top), 0)
    name = f"{word(row.category, lang)}: {row.component}"
    why = f"   {row.why}" if row.why else ""
    known = "" if row.origin == "formula" else f"   [{word(row.origin, lang)}]"
    return f"  {format_gib(row.nbytes):>12}  {bar:<{BAR_WIDTH}}  {name}{why}{known}"


def dominates_text(forecast: Forecast, lang: str) -> list[str]:
    """The three largest kinds at the peak, and how what is kept for backward grows with the length."""
    peak = forecast.verdict().peak
    sums = forecast.ledger.grouped(lambda entry: str(entry.category), phase=peak.phase, place=peak.place)
    largest = sorted(sums.items(), key=lambda item: -item[1])[:3]
    shares = ", ".join(f"{word(name, lang)} {nbytes / max(peak.process_bytes, 1):.0%}" for name, nbytes in largest)
    lines = [f"\n{word('what dominates', lang)}: {shares}"]
    if forecast.scaling is not None:
        lines.append(f"{word('with length', lang)}: {_growth(forecast.scaling, lang)}")
    return lines


def _growth(scaling: Scaling, lang: str) -> str:
    linear = f"{scaling.linear_bytes / MiB:.3g} MiB·s"
    text = f"{word('kept for backward', lang)} ≈ {linear}"
    if scaling.crossover_seq is None:
        return f"{text} ({word('no quadratic part', lang)}), {word('batch', lang)} {scaling.batch}"
    text += f" + {scaling.quadratic_bytes / KiB:.3g} KiB·s², {word('batch', lang)} {scaling.batch}"
    return f"{text}; {word('the quadratic part is the larger one from', lang)} s = {scaling.crossover_seq:,}"


def phases_text(forecast: Forecast, lang: str) -> list[str]:
    """All phases on one line per device."""
    lines = []
    for place in forecast.ledger.devices():
        moments = [forecast.ledger.moment(phase, place) for phase in forecast.ledger.phases(place)]
        parts = (f"{word(moment.phase, lang)} {moment.allocated_bytes / GiB:,.2f}" for moment in moments)
        lines.append(f"\n{word('phases', lang)} ({place}, GiB): {' | '.join(parts)}")
    return lines


def ranks_text(forecast: Forecast, lang: str) -> list[str]:
    """The spread over ranks that hold different parts: fullest and emptiest named."""
    if not forecast.ranks:
        return []
    ranks = sorted(forecast.ranks, key=lambda rank: -rank.allocated_bytes)
    ends = ranks if len(ranks) < 3 else [ranks[0], ranks[len(ranks) // 2], ranks[-1]]
    parts = (f"{rank.name} {rank.allocated_bytes / GiB:,.2f} (× {rank.ranks:,})" for rank in ends)
    total = sum(rank.ranks for rank in ranks)
    return [f"{word('ranks', lang)} ({total:,}, {word('allocated', lang)}, GiB): {' | '.join(parts)}"]


def host_text(forecast: Forecast, lang: str) -> list[str]:
    ledger = forecast.ledger
    places = [place for place in ledger.places() if not place.startswith("cuda")]
    each = f", {word('per node', lang)} × {forecast.nodes:,}" if forecast.ranks else ""
    return [
        f"{word('host', lang)} ({place}{each}): {format_bytes(ledger.peak(place).process_bytes)}" for place in places
    ]


def notes_text(forecast: Forecast, lang: str) -> list[str]:
    assumed = [f"  {text}" for text in forecast.assumptions]
    warned = [f"{word('warning', lang)}: {text}" for text in forecast.warnings]
    told = [f"{word('note', lang)}: {text}" for text in forecast.notes]
    return [*warned, *told, *([f"{word('assumed', lang)}:", *assumed] if assumed else [])]


def render_markdown(forecast: Forecast, lang: str = "en") -> str:
    """The same bill as a table for an issue or a notebook."""
    peak = forecast.verdict().peak
    rows = rows_at(forecast.ledger, peak.phase, peak.place)
    lines = [
        f"**{headline(forecast.verdict(), lang)}**", "", model_line(forecast, lang) or "", "",
        f"| {word('what', lang)} | GiB | bytes | {word('why', lang)} | {word('origin', lang)} |",
        "|---|--:|--:|---|---|",
    ]  # fmt: skip
    for row in rows:
        what = f"{word(row.category, lang)}: {row.component}"
        lines.append(f"| {what} | {row.nbytes / GiB:.2f} | {row.nbytes:,} | {row.why} | {word(row.origin, lang)} |")
    total = sum(row.nbytes for row in rows)
    lines.append(f"| **{word('total', lang)}** | **{total / GiB:.2f}** | **{total:,}** | | |")
    return "\n".join(
        [*lines, *phases_text(forecast, lang), *host_text(forecast, lang), "", *notes_text(forecast, lang)]
    )
