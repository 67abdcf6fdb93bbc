"""A HostForecast as text and as JSON: the verdict, CPU memory line by line, bars, and how the batch size matters."""

from __future__ import annotations

from typing import Any

from vramcast.host.forecast import HostForecast
from vramcast.host.host_job import HostJob
from vramcast.host.parquet_facts import ParquetFacts
from vramcast.ledger import FORWARD, LOAD, SAVE, Entry, Level
from vramcast.report.as_json import SCHEMA, entry_json
from vramcast.report.table import align
from vramcast.report.verdict import fits_text
from vramcast.report.words import say
from vramcast.report.words.forecast import CATEGORIES, HEADLINE, LABELS, MOMENTS, ORIGINS
from vramcast.report.words.host import HOST, PLACES_SHORT
from vramcast.report.words.sentences import translate
from vramcast.units import format_bytes, format_gib, format_gib_and_gb

BAR_WIDTH = 40


def render_text(
    forecast: HostForecast,
    job: HostJob,
    other_batch: HostForecast | None = None,
    lang: str = "en",
) -> str:
    parts = [_headline(forecast, lang), *_limits(forecast, lang), ""]
    parts += [*_lines_at_peak(forecast, job, lang), ""]
    if forecast.limits.capacity_bytes:
        parts += [*_bars(forecast, lang), ""]
    parts.append(batch_sentence(forecast, other_batch, lang))
    if job.data is not None:
        parts += ["", *_dataset(job.data.facts, lang)]
    parts += _assumed(forecast, lang)
    return "\n".join(parts)


def _moment(phase: str, lang: str) -> str:
    """What holds in the forward pass holds all through training."""
    return say(HOST, "training", lang) if phase == FORWARD else say(MOMENTS, phase, lang)


def _headline(forecast: HostForecast, lang: str) -> str:
    low, high = forecast.range_bytes
    text = say(HOST, "peak", lang, size=format_gib_and_gb(forecast.peak_bytes))
    if (capacity := forecast.limits.capacity_bytes) is not None:
        text += f" {say(HEADLINE, 'of', lang, capacity=format_gib(capacity))}"
    if low != high:
        text += f"   {say(HOST, 'range', lang, low=format_gib(low), high=format_gib(high))}"
    return f"{fits_text(forecast.fits, lang)}   {text}   {_moment(forecast.peak_phase, lang)}"


def _limits(forecast: HostForecast, lang: str) -> list[str]:
    limits = forecast.limits
    sizes = (
        ("ram", limits.ram_bytes),
        ("container", limits.cgroup_limit_bytes),
        ("free", limits.free_bytes),
        ("shm", limits.shm_bytes),
    )
    known = [
        f"{say(HOST, key, lang)} {format_bytes(size)}" for key, size in sizes if size is not None
    ]
    lines = ["   ".join(known)] if known else []
    if limits.shm_bytes is not None and forecast.shm_bytes > limits.shm_bytes:
        lines.append(say(HOST, "small_shm", lang, size=format_bytes(forecast.shm_bytes)))
    return lines


def _lines_at_peak(forecast: HostForecast, job: HostJob, lang: str) -> list[str]:
    entries = forecast.at_peak()
    needed = [_cells(entry, lang) for entry in entries if entry.level == Level.ALLOCATED]
    mapped = [_cells(entry, lang) for entry in entries if entry.level != Level.ALLOCATED]
    rows = [*needed, (say(HOST, "needed", lang), format_bytes(forecast.peak_bytes), "", "")]
    if job.ranks > 1:
        each = format_bytes(forecast.peak_bytes // job.ranks)
        rows.append((say(HOST, "per_rank", lang), each, "", ""))
    if mapped:
        shown = format_bytes(forecast.shown_bytes(forecast.peak_phase))
        rows += mapped
        rows.append((say(HOST, "shown", lang), shown, "", say(HOST, "file_pages", lang)))
    key = "on_node_one" if job.ranks == 1 else "on_node"
    title = say(HOST, key, lang, moment=_moment(forecast.peak_phase, lang), count=job.ranks)
    return [title, *align(rows, "lrll"), _needed_by_phase(forecast, lang)]


def _cells(entry: Entry, lang: str) -> tuple[str, str, str, str]:
    place = "" if entry.place == "host" else f" [{say(PLACES_SHORT, entry.place, lang)}]"
    formula = f"{translate(entry.formula, lang)}{place}".strip()
    component = translate(entry.component, lang)
    return component, format_bytes(entry.nbytes), say(ORIGINS, str(entry.origin), lang), formula


def _needed_by_phase(forecast: HostForecast, lang: str) -> str:
    times = (("at_load", LOAD), ("at_training", FORWARD), ("at_save", SAVE))
    sizes = (
        f"{say(HOST, key, lang)} {format_bytes(forecast.needed_bytes(phase))}"
        for key, phase in times
    )
    return f"  {say(HOST, 'by_phase', lang)}: {', '.join(sizes)}"


def _bars(forecast: HostForecast, lang: str) -> list[str]:
    capacity = forecast.limits.capacity_bytes or 1
    groups: dict[str, int] = {}
    for entry in forecast.at_peak():
        if entry.level == Level.ALLOCATED:
            name = say(CATEGORIES, str(entry.category), lang)
            groups[name] = groups.get(name, 0) + entry.nbytes
    groups[say(HOST, "left", lang)] = max(capacity - forecast.peak_bytes, 0)
    rows = [(name, _bar(size, capacity), f"{size / capacity:.1%}") for name, size in groups.items()]
    return align(rows, "llr")


def _bar(nbytes: int, capacity: int) -> str:
    filled = min(BAR_WIDTH, round(BAR_WIDTH * nbytes / capacity))
    return "█" * filled + "░" * (BAR_WIDTH - filled)


def batch_sentence(forecast: HostForecast, other: HostForecast | None, lang: str = "en") -> str:
    """What varies with the batch and what does not, in one sentence."""
    needed, varies = forecast.needed_bytes(FORWARD), forecast.batch_bytes()
    share = varies / needed if needed else 0.0
    text = say(
        HOST,
        "batch",
        lang,
        varies=format_bytes(varies),
        needed=format_bytes(needed),
        share=f"{share:.2%}",
        rest=format_bytes(needed - varies),
    )
    if other is None:
        return text
    change = format_bytes(other.needed_bytes(FORWARD) - needed)
    return f"{text} {say(HOST, 'other_batch', lang, change=change)}"


def _dataset(facts: ParquetFacts, lang: str) -> list[str]:
    columns = [
        (
            column.name,
            say(HOST, "encoded", lang, size=format_bytes(column.encoded_bytes)),
            say(HOST, "decoded", lang, size=format_bytes(column.decoded_bytes)),
        )
        for column in facts.columns
    ]
    lines = [_dataset_sentence(facts, lang), *align(columns, "lrr")]
    if facts.partition_bytes:
        names = ", ".join(key for key, _ in facts.files[0].partition)
        size = format_bytes(facts.partition_bytes)
        lines.append(f"  {say(HOST, 'partitions', lang, names=names, size=size)}")
    return lines


def _dataset_sentence(facts: ParquetFacts, lang: str) -> str:
    largest = facts.largest_group
    return say(
        HOST,
        "dataset_one" if len(facts.files) == 1 else "dataset",
        lang,
        rows=f"{facts.num_rows:,}",
        groups=f"{len(facts.row_groups):,}",
        files=len(facts.files),
        encoded=format_bytes(facts.encoded_bytes),
        decoded=format_bytes(facts.decoded_bytes),
        estimated="" if facts.exact else say(HOST, "estimated", lang),
        largest=f"{largest.num_rows:,}",
        size=format_bytes(largest.decoded_bytes),
    )


def _assumed(forecast: HostForecast, lang: str) -> list[str]:
    assumed = [entry for entry in forecast.at_peak() if entry.origin == "assumed"]
    if not assumed:
        return []
    lines = (
        f"  {translate(entry.component, lang)}: {translate(entry.source, lang)}"
        for entry in assumed
    )
    return ["", f"{say(LABELS, 'assumed', lang)}:", *lines]


def render_json(forecast: HostForecast, job: HostJob) -> dict[str, Any]:
    limits, low_high = forecast.limits, forecast.range_bytes
    return {
        "schema": SCHEMA,
        "fits": forecast.fits,
        "peak_phase": forecast.peak_phase,
        "peak_bytes": forecast.peak_bytes,
        "range_bytes": list(low_high),
        "shown_bytes": forecast.shown_bytes(forecast.peak_phase),
        "shm_bytes": forecast.shm_bytes,
        "batch_bytes": forecast.batch_bytes(),
        "ranks": job.ranks,
        "limits": {
            "ram_bytes": limits.ram_bytes,
            "cgroup_limit_bytes": limits.cgroup_limit_bytes,
            "free_bytes": limits.free_bytes,
            "shm_bytes": limits.shm_bytes,
            "cpus": limits.cpus,
        },
        "dataset": None if job.data is None else _dataset_json(job.data.facts),
        "entries": [entry_json(entry) for entry in forecast.ledger.entries],
    }


def _dataset_json(facts: ParquetFacts) -> dict[str, Any]:
    return {
        "num_rows": facts.num_rows,
        "num_row_groups": len(facts.row_groups),
        "encoded_bytes": facts.encoded_bytes,
        "decoded_bytes": facts.decoded_bytes,
        "exact": facts.exact,
        "largest_group_bytes": facts.largest_group.decoded_bytes,
        "columns": [
            {"name": c.name, "encoded_bytes": c.encoded_bytes, "decoded_bytes": c.decoded_bytes}
            for c in facts.columns
        ],
    }
