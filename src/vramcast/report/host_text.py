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
from vramcast.report.words.forecast import MOMENTS
from vramcast.units import format_bytes, format_gib, format_gib_and_gb

BAR_WIDTH = 40


def render_text(
    forecast: HostForecast, job: HostJob, other_batch: HostForecast | None = None
) -> str:
    parts = [_headline(forecast), *_limits(forecast), "", *_lines_at_peak(forecast, job), ""]
    if forecast.limits.capacity_bytes:
        parts += [*_bars(forecast), ""]
    parts.append(batch_sentence(forecast, other_batch))
    if job.data is not None:
        parts += ["", *_dataset(job.data.facts)]
    parts += _assumed(forecast)
    return "\n".join(parts)


def _moment(phase: str) -> str:
    """What holds in the forward pass holds all through training."""
    return "while training" if phase == FORWARD else say(MOMENTS, phase, "en")


def _headline(forecast: HostForecast) -> str:
    low, high = forecast.range_bytes
    peak = format_gib_and_gb(forecast.peak_bytes)
    text = f"{fits_text(forecast.fits, 'en')}   CPU memory peak {peak}"
    if (capacity := forecast.limits.capacity_bytes) is not None:
        text += f" of {format_gib(capacity)}"
    if low != high:
        text += f"   (range {format_gib(low)} to {format_gib(high)})"
    return f"{text}   {_moment(forecast.peak_phase)}"


def _limits(forecast: HostForecast) -> list[str]:
    limits = forecast.limits
    sizes = (
        ("RAM", limits.ram_bytes),
        ("container limit", limits.cgroup_limit_bytes),
        ("free now", limits.free_bytes),
        ("/dev/shm", limits.shm_bytes),
    )
    known = [f"{name} {format_bytes(size)}" for name, size in sizes if size is not None]
    lines = ["   ".join(known)] if known else []
    if limits.shm_bytes is not None and forecast.shm_bytes > limits.shm_bytes:
        lines.append(
            f"/dev/shm is too small: prefetched batches need {format_bytes(forecast.shm_bytes)}. "
            "Start the container with a larger --shm-size, or lower --workers or --prefetch."
        )
    return lines


def _lines_at_peak(forecast: HostForecast, job: HostJob) -> list[str]:
    entries = forecast.at_peak()
    needed = [entry for entry in entries if entry.level == Level.ALLOCATED]
    mapped = [entry for entry in entries if entry.level != Level.ALLOCATED]
    rows = [*map(_cells, needed), ("needed", format_bytes(forecast.peak_bytes), "", "")]
    if job.ranks > 1:
        rows.append(("per rank", format_bytes(forecast.peak_bytes // job.ranks), "", ""))
    if mapped:
        shown = format_bytes(forecast.shown_bytes(forecast.peak_phase))
        rows += [*map(_cells, mapped)]
        rows.append(("shown by PSS", shown, "", "includes file pages that the kernel may drop"))
    ranks = "1 rank" if job.ranks == 1 else f"{job.ranks} ranks"
    title = f"{_moment(forecast.peak_phase)}, {ranks} on this node:"
    return [title, *align(rows, "lrll"), _needed_by_phase(forecast)]


def _cells(entry: Entry) -> tuple[str, str, str, str]:
    place = "" if entry.place == "host" else f" [{entry.place}]"
    formula = f"{entry.formula}{place}".strip()
    return entry.component, format_bytes(entry.nbytes), str(entry.origin), formula


def _needed_by_phase(forecast: HostForecast) -> str:
    times = (("load", LOAD), ("training", FORWARD), ("save", SAVE))
    sizes = (f"{name} {format_bytes(forecast.needed_bytes(phase))}" for name, phase in times)
    return f"  needed by phase: {', '.join(sizes)}"


def _bars(forecast: HostForecast) -> list[str]:
    capacity = forecast.limits.capacity_bytes or 1
    groups: dict[str, int] = {}
    for entry in forecast.at_peak():
        if entry.level == Level.ALLOCATED:
            groups[str(entry.category)] = groups.get(str(entry.category), 0) + entry.nbytes
    groups["free"] = max(capacity - forecast.peak_bytes, 0)
    rows = [(name, _bar(size, capacity), f"{size / capacity:.1%}") for name, size in groups.items()]
    return align(rows, "llr")


def _bar(nbytes: int, capacity: int) -> str:
    filled = min(BAR_WIDTH, round(BAR_WIDTH * nbytes / capacity))
    return "█" * filled + "░" * (BAR_WIDTH - filled)


def batch_sentence(forecast: HostForecast, other: HostForecast | None) -> str:
    """What varies with the batch and what does not, in one sentence."""
    needed, varies = forecast.needed_bytes(FORWARD), forecast.batch_bytes()
    share = varies / needed if needed else 0.0
    text = (
        f"In training, {format_bytes(varies)} of {format_bytes(needed)} ({share:.2%}) depends on the batch size "
        f"(batches in use, prefetched and pinned); the other {format_bytes(needed - varies)} (libraries, model, "
        "dataset, workers) does not."
    )
    if other is None:
        return text
    change = other.needed_bytes(FORWARD) - needed
    return f"{text} The other batch size changes CPU memory by {format_bytes(change)}."


def _dataset(facts: ParquetFacts) -> list[str]:
    columns = [
        (
            column.name,
            f"{format_bytes(column.encoded_bytes)} encoded",
            f"{format_bytes(column.decoded_bytes)} decoded",
        )
        for column in facts.columns
    ]
    lines = [_dataset_sentence(facts), *align(columns, "lrr")]
    if facts.partition_bytes:
        names = ", ".join(key for key, _ in facts.files[0].partition)
        lines.append(f"  from folders: {names}, {format_bytes(facts.partition_bytes)} decoded")
    return lines


def _dataset_sentence(facts: ParquetFacts) -> str:
    largest = facts.largest_group
    files = "1 file" if len(facts.files) == 1 else f"{len(facts.files)} files"
    estimated = "" if facts.exact else " (estimated)"
    return (
        f"dataset: {facts.num_rows:,} rows in {len(facts.row_groups):,} row groups of {files}; "
        f"{format_bytes(facts.encoded_bytes)} encoded, {format_bytes(facts.decoded_bytes)} decoded{estimated}; "
        f"largest row group {largest.num_rows:,} rows, {format_bytes(largest.decoded_bytes)}"
    )


def _assumed(forecast: HostForecast) -> list[str]:
    assumed = [entry for entry in forecast.at_peak() if entry.origin == "assumed"]
    if not assumed:
        return []
    return ["", "assumed:", *(f"  {entry.component}: {entry.source}" for entry in assumed)]


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
