"""Tables that torch and its friends print: memory_summary, MemTracker, ZeRO estimates, Trainer metrics, PEFT's.

In: a Passage whose line is in such a table. Out: one Observation per table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

from vramcast.diagnose.observation import Figure, Moment, Observation
from vramcast.diagnose.readers.quantity import NUMBER, UNIT, decimal, to_bytes
from vramcast.diagnose.readers.reader import Read, Reader, observe
from vramcast.diagnose.readers.stream import LINES_AFTER, Passage

_SIZE = rf"({NUMBER})\s*({UNIT})?"

# torch.cuda.memory_summary(): MB (torch 1) and MiB (torch 2) both mean 2^20. One unit per cell.
_SUMMARY_ROW = re.compile(
    r"^\|\s*([A-Za-z][A-Za-z -]{3,24}?)\s*\|\s*" + r"\s*\|\s*".join([_SIZE] * 4) + r"\s*\|?$"
)
_SUMMARY_HEADER = re.compile(r"memory summary, device ID (\d{1,3})", re.IGNORECASE)
_SUMMARY_COUNTS = re.compile(r"OOMs:\s*(\d{1,9})\s*\|.{0,40}?retries:\s*(\d{1,9})", re.IGNORECASE)
_SUMMARY_FIELDS = {
    "allocated memory": "allocated",
    "gpu reserved memory": "reserved",
    "reserved memory": "reserved",
}
_SUMMARY_COLUMNS = ("current", "peak", "total allocated", "total freed")


def read_memory_summary(passage: Passage) -> Iterator[Read]:
    """torch.cuda.memory_summary() of one device."""
    fields: dict[str, Any] = {"place": "cuda"}
    figures: list[Figure] = []
    last, above = passage.line.number, ""
    for line in chain(passage.preceding(6), passage.lines(52)):
        text = line.clean()
        if (header := _SUMMARY_HEADER.search(text)) is not None:
            if "allocated_bytes" in fields:
                break
            fields["place"] = f"cuda:{header.group(1)}"
        figures += _summary_counts(text)
        if (row := _SUMMARY_ROW.match(text)) is not None:
            name = row.group(1).lower()
            above = above if name.startswith("from ") else name
            _take_summary_row(name if above == name else f"{above} {name}", row, fields, figures)
        last = max(last, line.number) if text.startswith("|") else last
    if "allocated_bytes" in fields:
        observation = observe(
            passage,
            kind="torch_memory_summary",
            moment=Moment.NOW,
            figures=tuple(figures),
            notes=("mb_is_mib",),
            **fields,
        )
        yield Read(observation=observation, last_line=last)


def _summary_counts(text: str) -> list[Figure]:
    """Failures and retries, from the line above the rows."""
    counts = _SUMMARY_COUNTS.search(text)
    if counts is None:
        return []
    named = zip(("CUDA OOMs", "cudaMalloc retries"), counts.groups(), strict=True)
    return [Figure(label=label, value=int(value), unit="count") for label, value in named]


def _take_summary_row(
    name: str, row: re.Match[str], fields: dict[str, Any], figures: list[Figure]
) -> None:
    cells = [(row.group(at), row.group(at + 1)) for at in (2, 4, 6, 8)]
    is_count = cells[0][1] is None
    values = [
        int(decimal(number)) if is_count else to_bytes(number, unit or "B", binary=True)
        for number, unit in cells
    ]
    if (level := _SUMMARY_FIELDS.get(name)) is not None and f"{level}_bytes" not in fields:
        fields[f"{level}_bytes"], fields[f"peak_{level}_bytes"] = values[0], values[1]
    figures += [
        Figure(label=f"{name}, {column}", value=value, unit="count" if is_count else "B")
        for column, value in zip(_SUMMARY_COLUMNS, values, strict=True)
        if value is not None
    ]


_TRACKER_CELL = re.compile(rf"^{_SIZE}$")


def read_memtracker(passage: Passage) -> Iterator[Read]:
    """torch.distributed._tools.MemTracker: a header of _MemRefType names, then one row per device."""
    names = [cell.removeprefix("_MemRefType.") for cell in _cells(passage.text())]
    for line in passage.following(10):
        cells = _cells(line.clean())
        if len(cells) != len(names) or not cells or set(cells[0]) <= set("-: "):
            continue
        sizes = _tracker_sizes(names[1:], cells[1:])
        if not sizes:
            return
        yield Read(
            observation=_tracker_observation(passage, cells[0], sizes), last_line=line.number
        )


def _tracker_observation(
    passage: Passage, device: str, sizes: dict[str, int | None]
) -> Observation:
    """One device's row: every column as a figure, the total as what is allocated."""
    total = next((size for name, size in sizes.items() if name.lower() == "total"), None)
    figures = tuple(
        Figure(label=name, value=size) for name, size in sizes.items() if size is not None
    )
    return observe(
        passage,
        kind="torch_memtracker",
        moment=Moment.PEAK,
        place="host" if device == "cpu" else device[:20],
        allocated_bytes=total,
        figures=figures,
    )


def _tracker_sizes(names: list[str], cells: list[str]) -> dict[str, int | None]:
    """Name of a column → its cell in bytes; cells that hold no size are left out."""
    sizes: dict[str, int | None] = {}
    for name, cell in zip(names, cells, strict=True):
        match = _TRACKER_CELL.match(cell)
        if match is not None:
            sizes[name] = to_bytes(match.group(1), match.group(2) or "B", binary=True)
    return sizes


def _cells(text: str) -> list[str]:
    return [cell.strip() for cell in text.strip().strip("|").split("|")][:24]


_ESTIMATE_ROW = re.compile(
    r"(\d{1,9}(?:\.\d{1,6})?)\s*GB\s*\|\s*(\d{1,9}(?:\.\d{1,6})?)\s*GB\s*\|\s*(\S.{0,160})$"
)
_ESTIMATE_MODEL = re.compile(
    r"Model with (\d{1,9})M total params(?:, (\d{1,9})M largest layer params)?"
)
_ESTIMATE_HARDWARE = re.compile(r"Setup with (\d{1,6}) nodes?, (\d{1,6}) GPUs? per node")


def read_zero_estimate(passage: Passage) -> Iterator[Read]:
    """deepspeed.runtime.zero estimates: host and device per option set, GB meaning 2^30. Theory, not measured."""
    figures: list[Figure] = []
    last = passage.line.number
    for line in chain(passage.preceding(3), passage.lines(14)):
        text = line.clean()
        found = _estimate_figures(text)
        if found and line.number >= passage.line.number:
            last = line.number
        figures += found
    if any(figure.unit == "B" for figure in figures):
        observation = observe(
            passage,
            kind="deepspeed_estimator",
            moment=Moment.THEORY,
            place="cuda",
            figures=tuple(figures),
            notes=("gb_is_gib",),
        )
        yield Read(observation=observation, last_line=last)


def _estimate_figures(text: str) -> list[Figure]:
    if (row := _ESTIMATE_ROW.search(text)) is not None:
        sizes = (("per CPU", row.group(1)), ("per GPU", row.group(2)))
        return [
            Figure(label=f"{side}: {row.group(3)}", value=size)
            for side, number in sizes
            if (size := to_bytes(number, "GB", binary=True)) is not None
        ]
    if (model := _ESTIMATE_MODEL.search(text)) is not None:
        counts = zip(("total params", "largest layer params"), model.groups(), strict=True)
        return [
            Figure(label=label, value=int(value) * 10**6, unit="count")
            for label, value in counts
            if value
        ]
    if (hardware := _ESTIMATE_HARDWARE.search(text)) is not None:
        counts = zip(("nodes", "GPUs per node"), hardware.groups(), strict=True)
        return [Figure(label=label, value=int(value), unit="count") for label, value in counts]
    return []


_METRIC = re.compile(
    r"\b((?:before_init|init|train|eval|test|predict)_mem_(gpu|cpu)(?:_\w{1,20})?)['\"]?\s*[=:"
    r"|]\s*(-?\d{1,16})\s*(MB)?"
)


def read_trainer_metrics(passage: Passage) -> Iterator[Read]:
    """transformers.Trainer with skip_memory_metrics=False: deltas per stage, MB meaning 2^20, or plain bytes."""
    found, last = _trainer_metrics(passage)
    if not found:
        return
    figures = tuple(Figure(label=name, value=value) for name, value in found.items())
    peak = _trainer_peak(found)
    observation = observe(
        passage,
        kind="hf_trainer_metrics",
        moment=Moment.PEAK,
        place="cuda",
        allocated_bytes=peak,
        figures=figures,
        derived=("allocated_bytes",) if peak is not None else (),
        notes=("gb_is_gib",),
    )
    yield Read(observation=observation, last_line=last)


def _trainer_metrics(passage: Passage) -> tuple[dict[str, int], int]:
    """Name → bytes up to where names repeat or end, and the last line with one."""
    found: dict[str, int] = {}
    last = passage.line.number
    for line in passage.lines(40):
        matches = _METRIC.findall(line.clean())
        if any(name in found for name, *_ in matches) or (not matches and line.number > last + 6):
            break
        for name, _, value, unit in matches:
            found[name] = int(value) * (2**20 if unit else 1)
        last = line.number if matches else last
    return found, last


def _trainer_peak(found: dict[str, int]) -> int | None:
    """The stages follow one another, so the peak needs every one of them (transformers/trainer_utils.py)."""
    names = (
        "before_init_mem_gpu",
        "init_mem_gpu_alloc_delta",
        "train_mem_gpu_alloc_delta",
        "train_mem_gpu_peaked_delta",
    )
    return sum(found[name] for name in names) if all(name in found for name in names) else None


_TRACER = re.compile(
    r"(GPU|CPU) ((?:Total )?(?:Peak )?Memory (?:before entering|consumed at the end of|consumed during) "
    r"the (\w{1,12})"
    r"(?: \([\w-]{1,12}\))?)\s*:\s*(-?\d{1,12})(?: ?(GB))?"
)


def read_peft_tracer(passage: Passage) -> Iterator[Read]:
    """PEFT's example tracer: whole MiB without a unit, first the device, then the host."""
    match = _TRACER.search(passage.text())
    if match is None:
        return
    side = match.group(1)
    rows, last = _tracer_rows(passage, side)
    peak = next((size for label, size in rows.items() if label.startswith("Total Peak")), None)
    level = "allocated_bytes" if side == "GPU" else "process_bytes"
    observation = observe(
        passage,
        kind="peft_tracemalloc",
        moment=Moment.PEAK,
        place="cuda" if side == "GPU" else "host",
        figures=tuple(Figure(label=label, value=size) for label, size in rows.items()),
        notes=("bare_number_is_mib",),
        **{level: peak},
    )
    yield Read(observation=observation, last_line=last)


def _tracer_rows(passage: Passage, side: str) -> tuple[dict[str, int], int]:
    """Label → bytes of one side, up to where labels repeat or end, and the last line with one."""
    rows: dict[str, int] = {}
    last = passage.line.number
    for line in passage.lines(6):
        match = _TRACER.search(line.clean())
        if match is None or match.group(1) != side or match.group(2) in rows:
            break
        # PEFT prints MiB without a unit; llama-recipes, which copied it, prints whole GiB as GB.
        rows[match.group(2)] = int(match.group(4)) * (2**30 if match.group(5) else 2**20)
        last = line.number
    return rows, last


_SNAPSHOT_SIZES = re.compile(r'"(total_size|allocated_size)": ?(\d{1,18})')
_SNAPSHOT_OOM = re.compile(r'"action": ?"oom", ?"device_free": ?(\d{1,18}), ?"size": ?(\d{1,18})')


def read_snapshot_text(passage: Passage) -> Iterator[Read]:
    """A snapshot printed as JSON, near one place: its segments and the event that failed."""
    text = " ".join(_near(passage))
    sizes = _SNAPSHOT_SIZES.findall(text)
    if not sizes:
        return
    reserved = sum(int(size) for name, size in sizes if name == "total_size")
    allocated = sum(int(size) for name, size in sizes if name == "allocated_size")
    fields: dict[str, Any] = {}
    if (oom := _SNAPSHOT_OOM.search(text)) is not None:
        fields = {"free_bytes": int(oom.group(1)), "requested_bytes": int(oom.group(2))}
    observation = observe(
        passage,
        kind="torch_snapshot_structure",
        moment=Moment.FAILURE if oom else Moment.NOW,
        place="cuda",
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        unallocated_bytes=max(0, reserved - allocated),
        derived=("unallocated_bytes",),
        marks=("snapshot",),
        **fields,
    )
    yield Read(
        observation=observation,
        last_line=passage.after[-1].number if passage.after else passage.line.number,
    )


def _near(passage: Passage) -> Iterator[str]:
    for line in passage.lines(LINES_AFTER):
        yield line.clean()


READERS = (
    Reader(words=("memory summary", "| allocated memory"), read=read_memory_summary),
    Reader(words=("_memreftype",), read=read_memtracker),
    Reader(words=("estimated memory needed", "largest layer params"), read=read_zero_estimate),
    Reader(words=("_mem_gpu", "_mem_cpu"), read=read_trainer_metrics),
    Reader(words=("memory before entering", "memory consumed"), read=read_peft_tracer),
    Reader(words=('"segments"',), read=read_snapshot_text),
)
