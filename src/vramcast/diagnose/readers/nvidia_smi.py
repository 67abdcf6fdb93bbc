"""nvidia-smi in its layouts, its CSV queries, and gpustat: who holds how much on which card.

In: a Passage. Out: one Observation per card, with the processes the table lists. `used` is the whole card's, by
everybody; which of the processes is the reader's own is not known here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from vramcast.diagnose.observation import Moment, Observation, ProcessUse
from vramcast.diagnose.readers.quantity import to_bytes
from vramcast.diagnose.readers.reader import Read, Reader, observe
from vramcast.diagnose.readers.stream import Passage, clean

_USAGE = re.compile(r"(\d{1,9}|N/A|\?\?)\s*(MiB|MB)?\s*/\s*(\d{1,9}|N/A|\?\?)\s*(MiB|MB)")
_UNSUPPORTED = re.compile(r"\|\s*Not Supported\s*\|")
_CARD = re.compile(
    r"^\|?\s*(\d{1,3})\s+([A-Z][\w .-]{2,40}?)\s{0,20}(?:On|Off|WDDM|TCC|MCDM|\.\.\.)?\s*\|"
)
_PROCESS = re.compile(
    r"^\|?\s*(?P<gpu>\d{1,3})\s+(?:(?:N/A|\d{1,3})\s+(?:N/A"
    r"|\d{1,3})\s+)?(?P<pid>\d{1,10})\s+(?P<type>C\+G|C|G|M\+C)\s+"
    r"(?P<name>\S.{0,80}?)\s+(?P<size>\d{1,9}MiB|N/A)\s*\|?\s*$"
)
# A row of a table, or of nvidia-top; the second row of a MIG device begins with an empty cell and is about BAR1.
_HAS_USAGE = re.compile(r"\|(?! ?\|)|\d{1,3} [A-Z]")
_BORDER = re.compile(r"^[|+ ]")


NOBODY_LISTED = "nobody listed"


@dataclass(slots=True)
class _Cards:
    """The cards of one printed table, gathered row by row."""

    used: dict[int, tuple[int | None, int | None]] = field(default_factory=dict)
    processes: dict[int, list[ProcessUse]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    marks: dict[int, tuple[str, ...]] = field(default_factory=dict)
    current: int = -1
    has_processes: bool = False  # the table of processes was printed, be it empty


def read_table(passage: Passage) -> Iterator[Read]:
    cards = _Cards()
    last = passage.line.number
    for line in chain(passage.preceding(2), passage.lines(140)):
        text = line.clean().replace("│", "|")  # nvitop's border
        took = _take_row(text, cards)
        if took or (_BORDER.match(text) and _USAGE.search(text)):
            last = max(last, line.number)
        elif text and not _BORDER.match(text) and line.number > passage.line.number:
            break
    for index in sorted({*cards.used, *cards.processes}):
        yield Read(observation=_card(passage, cards, index), last_line=last)


def _take_row(text: str, cards: _Cards) -> bool:
    """Was it a row about a process, about memory in use, or about a card's name?"""
    cards.has_processes |= "Processes:" in text
    if (process := _PROCESS.match(text)) is not None:
        _take_process(process, cards)
        return True
    usage = _USAGE.search(text) if _HAS_USAGE.match(text) else None
    if usage is not None or _UNSUPPORTED.search(text):
        _take_usage(usage, cards)
        return True
    if (card := _CARD.match(text)) is not None:
        cards.current = int(card.group(1))
        cards.names[cards.current] = card.group(2).strip()
        cards.marks[cards.current] = ("wddm",) if "WDDM" in text else ()
        return True
    return False


def _take_process(process: re.Match[str], cards: _Cards) -> None:
    """A process and what it holds, if the driver says it."""
    size = None if process["size"] == "N/A" else to_bytes(process["size"][:-3], "MiB")
    use = ProcessUse(pid=int(process["pid"]), nbytes=size, name=process["name"][:40])
    cards.processes.setdefault(int(process["gpu"]), []).append(use)


def _take_usage(usage: re.Match[str] | None, cards: _Cards) -> None:
    """Used and total memory of the card named above; of the next one where none was."""
    is_named = cards.current >= 0 and cards.current not in cards.used
    index = cards.current if is_named else len(cards.used)
    cards.used[index] = (_size(usage.group(1)), _size(usage.group(3))) if usage else (None, None)


def _card(passage: Passage, cards: _Cards, index: int) -> Observation:
    used, total = cards.used.get(index, (None, None))
    marks = cards.marks.get(index, ())
    if index in cards.used and total is None:
        marks = (*marks, "unified memory")
    if cards.has_processes and not cards.processes:
        marks = (*marks, NOBODY_LISTED)
    return observe(
        passage,
        kind="nvidia_smi_text",
        moment=Moment.NOW,
        place=f"cuda:{index}",
        used_bytes=used,
        capacity_bytes=total,
        marks=marks,
        other_processes=tuple(cards.processes[index]) if index in cards.processes else None,
    )


def _size(text: str) -> int | None:
    return to_bytes(text, "MiB") if text.isdigit() else None


_COLUMNS = {
    "memory.used": "used_bytes",
    "memory.total": "capacity_bytes",
    "memory.free": "free_bytes",
    "fb_memory_usage.used": "used_bytes",
}
_CELL = re.compile(r"^(-?\d{1,12})\s*(MiB)?$")


def read_csv(passage: Passage) -> Iterator[Read]:
    """`nvidia-smi --query-gpu=... --format=csv`: the header names the columns, in any order."""
    names = [_column(cell) for cell in passage.text().split(",")][:40]
    if "pid" in names:
        yield from _read_apps(passage, names)
        return
    if not any(name in _COLUMNS for name in names):
        return
    for row, line in enumerate(passage.following(128)):
        cells = [cell.strip() for cell in line.clean().split(",")]
        if len(cells) != len(names):
            return
        yield _csv_row(passage, row, dict(zip(names, cells, strict=True)), line.number)


def _csv_row(passage: Passage, row: int, cells: dict[str, str], number: int) -> Read:
    sizes = {_COLUMNS[name]: _mib(cell) for name, cell in cells.items() if name in _COLUMNS}
    index = cells.get("index", cells.get("gpu", ""))
    marks = ("unified memory",) if sizes and all(size is None for size in sizes.values()) else ()
    observation = observe(
        passage,
        kind="nvidia_smi_csv",
        moment=Moment.NOW,
        place=f"cuda:{index if index.isdigit() else row}",
        marks=marks,
        **sizes,
    )
    return Read(observation=observation, last_line=number)


def _read_apps(passage: Passage, names: list[str]) -> Iterator[Read]:
    """`nvidia-smi --query-compute-apps=... --format=csv`: a process per row."""
    processes, last = list[ProcessUse](), passage.line.number
    memory = next((name for name in names if name.startswith("used_") and "memory" in name), None)
    for line in passage.following(256):
        cells = [cell.strip() for cell in line.clean().split(",")]
        if len(cells) != len(names) or memory is None:
            break
        use = _app(dict(zip(names, cells, strict=True)), memory)
        if use is not None:
            processes.append(use)
            last = line.number
    if processes:
        observation = observe(
            passage,
            kind="nvidia_smi_csv",
            moment=Moment.NOW,
            place="cuda",
            other_processes=tuple(processes),
        )
        yield Read(observation=observation, last_line=last)


def _app(row: dict[str, str], memory: str) -> ProcessUse | None:
    """The process of a row; None where its id is no number."""
    pid = row["pid"]
    if not pid.isdigit() or len(pid) > 10:
        return None
    return ProcessUse(pid=int(pid), nbytes=_mib(row[memory]), name=row.get("process_name", "")[:40])


def _column(cell: str) -> str:
    return cell.strip().split(" ")[0].lower()


def _mib(cell: str) -> int | None:
    match = _CELL.match(cell)
    return to_bytes(match.group(1), "MiB") if match else None


_TYPED_HEAD = re.compile(r"^PID\s.{0,40}\bMemory\b", re.IGNORECASE)
_TYPED_ROW = re.compile(r"^(\d{2,10})\s+(?:(\S.{0,60}?)\s+)?(\d{1,9}) ?MiB$")


def read_typed_list(passage: Passage) -> Iterator[Read]:
    """A heading with PID and memory, and rows below it that people copied out of a table."""
    if not _TYPED_HEAD.match(passage.text()):
        return
    processes, last = list[ProcessUse](), passage.line.number
    for line in passage.following(64):
        if (row := _TYPED_ROW.match(line.clean())) is None:
            break
        use = ProcessUse(
            pid=int(row.group(1)), nbytes=_size(row.group(3)), name=(row.group(2) or "")[:40]
        )
        processes.append(use)
        last = line.number
    if processes:
        observation = observe(
            passage,
            kind="nvidia_smi_text",
            moment=Moment.NOW,
            place="cuda",
            other_processes=tuple(processes),
        )
        yield Read(observation=observation, last_line=last)


MAX_ROW_CHARS = 2_000  # a card and all its users; longer lines are something else
_GPUSTAT = re.compile(
    r"\[(\d{1,3})\] ?(.{2,60}?)\|.{0,60}?\|\s*(\d{1,9}|\?\?)\s*/\s*(\d{1,9}|\?\?)\s*MB"
)
_GPUSTAT_USER = re.compile(r"([\w.-]{1,32})(?::[\w.-]{1,40})?(?:/(\d{1,10}))?\((\d{1,9})M\)")


def read_gpustat(passage: Passage) -> Iterator[Read]:
    """`[0] name | 40°C, 70 % | 6999 / 40960 MB | user(6989M)`: NVML bytes divided by 2^20, printed as MB."""
    text = clean(passage.line.raw[:MAX_ROW_CHARS])
    match = _GPUSTAT.search(text)
    if match is None:
        return
    users = _GPUSTAT_USER.findall(text[match.end() :])
    processes = tuple(
        ProcessUse(pid=int(pid) if pid else None, nbytes=_size(size), name=name)
        for name, pid, size in users[:64]
    )
    observation = observe(
        passage,
        kind="gpustat",
        moment=Moment.NOW,
        place=f"cuda:{match.group(1)}",
        used_bytes=_size(match.group(3)),
        capacity_bytes=_size(match.group(4)),
        other_processes=processes or None,
        marks=(NOBODY_LISTED,) if "(null)" in text[match.end() :] else (),
        notes=("mb_is_mib",),
    )
    yield Read(observation=observation, last_line=passage.line.number)


_QUERY_ROW = re.compile(r"^(Total|Reserved|Used|Free)\s*:\s*(\d{1,9}) MiB")


def read_query(passage: Passage) -> Iterator[Read]:
    """`nvidia-smi -q`: FB Memory Usage, then Total, Reserved, Used, Free on lines of their own."""
    found: dict[str, int | None] = {}
    last = passage.line.number
    for line in passage.following(5):
        match = _QUERY_ROW.match(line.clean())
        if match:
            found[match.group(1)], last = to_bytes(match.group(2), "MiB"), line.number
    if found:
        observation = observe(
            passage,
            kind="nvidia_smi_text",
            moment=Moment.NOW,
            place="cuda",
            capacity_bytes=found.get("Total"),
            used_bytes=found.get("Used"),
            free_bytes=found.get("Free"),
        )
        yield Read(observation=observation, last_line=last)


READERS = (
    Reader(words=("mib /", "mib/", "mib |", "| not supported", "mib|"), read=read_table),
    Reader(
        words=("memory.used", "memory.total", "memory.free", "used_gpu_memory", "used_memory"),
        read=read_csv,
    ),
    Reader(words=(" mb |", " mb|"), read=read_gpustat),
    Reader(words=("fb memory usage",), read=read_query),
    Reader(words=("gpu memory", "memory usage"), read=read_typed_list),
)
