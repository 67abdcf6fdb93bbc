"""A HostForecast as text and as JSON. Verdict first, then the bill, bars, and what the batch has to do with it."""

from __future__ import annotations

from typing import Any

from vramcast.host.bill import HostJob
from vramcast.host.forecast import HostForecast
from vramcast.host.parquet import ParquetFacts
from vramcast.ledger import FORWARD, LOAD, SAVE, Entry, Level
from vramcast.report.as_json import SCHEMA, entry_json
from vramcast.units import format_bytes, format_gib, format_gib_and_gb

BAR_WIDTH = 40


def render_text(forecast: HostForecast, job: HostJob, other_batch: HostForecast | None = None) -> str:
    parts = [_headline(forecast), *_limits(forecast), "", *_bill(forecast, job), ""]
    parts += [*_bars(forecast), ""] if forecast.limits.capacity_bytes else []
    parts.append(batch_sentence(forecast, other_batch))
    if job.data is not None:
        parts += ["", *_dataset(job.data.facts)]
    parts += _assumed(forecast)
    return "\n".join(parts)


def _headline(forecast: HostForecast) -> str:
    key = {True: "FITS", False: "DOES NOT FIT", None: "NEEDS"}[forecast.fits]
    low, high = forecast.range_bytes
    text = f"{key}   host peak {format_gib_and_gb(forecast.peak_bytes)} in {forecast.peak_phase}"
    if (capacity := forecast.limits.capacity_bytes) is not None:
        text += f", of {format_gib(capacity)}"
    return text + (f"   (range {format_gib(low)} to {format_gib(high)})" if low != high else "")


def _limits(forecast: HostForecast) -> list[str]:
    limits = forecast.limits
    shown = (
        ("RAM", limits.ram_bytes), ("container limit", limits.cgroup_limit_bytes), ("free now", limits.free_bytes),
        ("/dev/shm", limits.shm_bytes),
    )  # fmt: skip
    lines = ["   ".join(f"{name} {format_bytes(size)}" for name, size in shown if size is not None)]
    if limits.shm_bytes is not None and forecast.shm_bytes > limits.shm_bytes:
        lines.append(
            f"/dev/shm is too small: batches in flight need {format_bytes(forecast.shm_bytes)}. "
            "Start the container with a larger --shm-size, or lower --workers or --prefetch."
        )
    return [line for line in lines if line]


def _bill(forecast: HostForecast, job: HostJob) -> list[str]:
    entries = forecast.at_peak()
    width = max(len(entry.component) for entry in entries)
    lines = [f"at {forecast.peak_phase}, {job.ranks} rank{'s' if job.ranks > 1 else ''} on this node:"]
    lines += [f"  {_line(entry, width)}" for entry in entries if entry.level == Level.ALLOCATED]
    lines.append(f"  {'needed':<{width}}  {format_bytes(forecast.peak_bytes):>11}")
    mapped = [entry for entry in entries if entry.level != Level.ALLOCATED]
    if mapped:
        lines += [f"  {_line(entry, width)}" for entry in mapped]
        shown = format_bytes(forecast.shown_bytes(forecast.peak_phase))
        lines.append(f"  {'shown by PSS':<{width}}  {shown:>11}  with pages the kernel may drop")
    times = (("load", LOAD), ("training", FORWARD), ("save", SAVE))
    lines.append("  needed by phase: " + ", ".join(f"{n} {format_bytes(forecast.needed_bytes(p))}" for n, p in times))
    per_rank = forecast.peak_bytes // job.ranks
    return lines + ([f"  {'per rank':<{width}}  {format_bytes(per_rank):>11}"] if job.ranks > 1 else [])


def _line(entry: Entry, width: int) -> str:
    place = "" if entry.place == "host" else f" [{entry.place}]"
    return f"{entry.component:<{width}}  {format_bytes(entry.nbytes):>11}  {entry.origin:<8} {entry.formula}{place}"


def _bars(forecast: HostForecast) -> list[str]:
    capacity = forecast.limits.capacity_bytes or 1
    groups: dict[str, int] = {}
    for entry in forecast.at_peak():
        if entry.level == Level.ALLOCATED:
            groups[str(entry.category)] = groups.get(str(entry.category), 0) + entry.nbytes
    groups["free"] = max(capacity - forecast.peak_bytes, 0)
    width = max(map(len, groups))
    return [f"  {name:<{width}}  {_bar(size, capacity)} {size / capacity:6.1%}" for name, size in groups.items()]


def _bar(nbytes: int, capacity: int) -> str:
    filled = min(BAR_WIDTH, round(BAR_WIDTH * nbytes / capacity))
    return "█" * filled + "░" * (BAR_WIDTH - filled)


def batch_sentence(forecast: HostForecast, other: HostForecast | None) -> str:
    """What varies with the batch and what does not, in one sentence."""
    needed, varies = forecast.needed_bytes(FORWARD), forecast.batch_bytes()
    share = varies / needed if needed else 0.0
    text = (
        f"In training, {format_bytes(varies)} of {format_bytes(needed)} ({share:.2%}) follows the batch: batches in "
        f"use, in flight and pinned; the other {format_bytes(needed - varies)} (libraries, model, dataset, workers) "
        "does not"
    )
    if other is None:
        return text + "."
    return text + f". The batch compared moves host memory by {format_bytes(other.needed_bytes(FORWARD) - needed)}."


def _dataset(facts: ParquetFacts) -> list[str]:
    largest = facts.largest_group
    lines = [
        f"dataset: {facts.num_rows:,} rows in {len(facts.row_groups):,} row groups of {len(facts.files)} "
        f"file{'s' if len(facts.files) > 1 else ''}; {format_bytes(facts.encoded_bytes)} encoded, "
        f"{format_bytes(facts.decoded_bytes)} decoded{'' if facts.exact else ' (estimated)'}; largest row group "
        f"{largest.num_rows:,} rows, {format_bytes(largest.decoded_bytes)}"
    ]
    width = max(len(column.name) for column in facts.columns)
    lines += [
        f"  {column.name:<{width}}  {format_bytes(column.encoded_bytes):>11} encoded  "
        f"{format_bytes(column.decoded_bytes):>11} decoded"
        for column in facts.columns
    ]
    if facts.partition_bytes:
        names = ", ".join(key for key, _ in facts.files[0].partition)
        lines.append(f"  from folders: {names}, {format_bytes(facts.partition_bytes)} decoded")
    return lines


def _assumed(forecast: HostForecast) -> list[str]:
    assumed = [entry for entry in forecast.at_peak() if entry.origin == "assumed"]
    return ["", "assumed:", *(f"  {entry.component}: {entry.source}" for entry in assumed)] if assumed else []


def render_json(forecast: HostForecast, job: HostJob) -> dict[str, Any]:
    limits, low_high = forecast.limits, forecast.range_bytes
    return {
        "schema": SCHEMA, "fits": forecast.fits, "peak_phase": forecast.peak_phase, "peak_bytes": forecast.peak_bytes,
        "range_bytes": list(low_high), "shown_bytes": forecast.shown_bytes(forecast.peak_phase),
        "shm_bytes": forecast.shm_bytes, "batch_bytes": forecast.batch_bytes(), "ranks": job.ranks,
        "limits": {
            "ram_bytes": limits.ram_bytes, "cgroup_limit_bytes": limits.cgroup_limit_bytes,
            "free_bytes": limits.free_bytes, "shm_bytes": limits.shm_bytes, "cpus": limits.cpus,
        },
        "dataset": None if job.data is None else _dataset_json(job.data.facts),
        "entries": [entry_json(entry) for entry in forecast.ledger.entries],
    }  # fmt: skip


def _dataset_json(facts: ParquetFacts) -> dict[str, Any]:
    return {
        "num_rows": facts.num_rows, "num_row_groups": len(facts.row_groups), "encoded_bytes": facts.encoded_bytes,
        "decoded_bytes": facts.decoded_bytes, "exact": facts.exact,
        "largest_group_bytes": facts.largest_group.decoded_bytes,
        "columns": [
            {"name": c.name, "encoded_bytes": c.encoded_bytes, "decoded_bytes": c.decoded_bytes} for c in facts.columns
        ],
    }  # fmt: skip
