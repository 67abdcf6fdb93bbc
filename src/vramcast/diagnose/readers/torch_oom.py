"""PyTorch's out-of-memory messages: every generation and backend, wrapped, cut short or embedded in other text.

In: a Passage. Out: Observations with the moment `failure`. The text is squeezed first (no blanks, no line ends, no
log prefixes), so that wrapping at any column does not matter; then each number is found by the words beside it.
Wording per generation: c10/cuda/CUDACachingAllocator.cpp (torch 1.0 to 2.13), CUDAMallocAsyncAllocator.cpp,
aten/src/ATen/mps/MPSAllocator.mm, and the out-of-tree backends that copy them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from vramcast.diagnose.observation import Figure, Moment, Observation, ProcessUse
from vramcast.diagnose.readers.quantity import SQUEEZED_QUANTITY, printed_range, to_bytes
from vramcast.diagnose.readers.reader import Read, Reader, observe
from vramcast.diagnose.readers.stream import Line, Passage, clean, without_prefix

MAX_MESSAGE_CHARS = 4000
MAX_MESSAGE_LINES = 40
MAX_MESSAGES_PER_LINE = 16

# What begins a message. The name of the exception class is not one: it stands before a message that says it again.
_START = re.compile(
    r"(?:(?P<backend>cuda|hip|xpu|npu|mps|mlu|hpu|musa|gcu|dcu"
    r"|privateuseone)(?:backend)?(?:outof(?:the)?mem{1,2}ory(?!error)|内存不足))"
    r"|(?P<block>cannotallocatememoryblock)"
    r"|(?P<async>(?:memoryerror:)?allocationondevice(?P<async_device>\d{1,4})?wouldexceedallowedmemory"
    r"|(?:memoryerror|exceptionmessage):allocationondevice)"  # ComfyUI keeps the first words
    r"|(?P<bare>triedtoallocate[\d.,]+[a-z]{1,5}(?:\((?:gpu|npu|xpu)\d|\.(?:gpu|npu|xpu)\d{0,4}hasatotalcapac))"
    r"|(?P<barer>(?<!b)\((?:gpu|npu|xpu|mlu)\d{1,4};[\d.]+[kmgt]ibtotalcapacity"
    r"|(?:gpu|npu|xpu)\d{1,4}hasatotalcapaci?tyof)"
    r"|(?P<tail>thisprocesshas[\d.]{1,12}[kmgt]ibmemoryinuse|(?<![\d.])[\d.]{1,12}[kmgt]ibisallocatedbypytorch)"
)
# Where it ends. The explanation after the numbers adds nothing that is counted.
_END = re.compile(
    r"res[a-z]{3,7}intotal(?:bypytorch)?\)?|ibcached\)|butunallocated\.?|onsharedpool|onprivatepool|onunifiedpool"
    r"|suppliedmemoryfraction\)?n?:[\d.]+[a-z]{1,5}|morethan1ebmemory"
)
_MAX_END_CHARS = 80  # no ending that matters is longer
# A browser that translates threads translates the message with them.
_TRANSLATED = (
    ("requested_bytes", r"尝试分配{q}"),
    ("capacity_bytes", r"{q}总容量"),
    ("allocated_bytes", r"已分配{q}"),
    ("free_bytes", r"{q}可用"),
    ("reserved_bytes", r"总共保留{q}"),
)


def _literal(pattern: str) -> str:
    """The longest piece of a pattern that is in every text it matches."""
    without_choices = re.sub(r"\{q\}|\([^)]{0,80}\)|\w\?|\[[^]]{0,20}\]", " ", pattern)
    return max(re.split(r"[^a-z一-龥]", without_choices), key=len)


_QUANTITY = SQUEEZED_QUANTITY.lower()  # its only letters are those of units
# field, words without which it need not be looked for, pattern
_FIELDS: tuple[tuple[str, str, re.Pattern[str]], ...] = tuple(
    (field, _literal(pattern), re.compile(pattern.replace("{q}", _QUANTITY)))
    for field, pattern in (
        ("requested_bytes", r"tr(?:ied|ying)toallocate{q}"),
        ("requested_bytes", r"requested:{q}"),
        ("capacity_bytes", r"{q}totalcapac"),
        ("capacity_bytes", r"\((?:gpu|npu|xpu)\d{1,4};{q}t[a-z]{0,12}$"),  # cut off inside the word
        ("capacity_bytes", r"totalcapaci?ty(?:of)?{q}"),
        ("capacity_bytes", r"devicelimit:{q}"),
        ("allocated_bytes", r"{q}alreadyallocated"),
        ("allocated_bytes", r"{q}isallocated(?:bypytorch|$)"),
        (
            "allocated_bytes",
            r"oftheallocatedmemory{q}i?s?al?l?o?c?[a-z]{0,4}$",
        ),  # cut off inside the word
        ("allocated_bytes", r"(?:currentlyallocated|mpsallocated):{q}"),
        ("free_bytes", r"free\(accordingtocuda\):{q}"),
        ("free_bytes", r"{q}(?:is)?free"),
        ("unallocated_bytes", r"{q}cached"),
        ("unallocated_bytes", r"{q}isreservedbypytorch"),
        ("unallocated_bytes", r"and{q}isres[a-z]{0,5}(?:by?p?[a-z]{0,6})?$"),
        ("reserved_bytes", r"{q}res[a-z]{3,7}intotal"),  # also as people type it
        ("process_bytes", r"thisprocesshas{q}"),
        ("allowed_bytes", r"{q}allowed"),
        ("allowed_bytes", r"maxallowed:{q}"),
        ("allowed_bytes", r"suppliedmemoryfraction\)?n?:{q}"),
        ("+current active", r"{q}currentactive"),
        *_TRANSLATED,
        ("+other allocations", r"otherallocations:{q}"),
        ("+allocated in private pools", r"with{q}allocatedinprivatepools"),
    )
)
_OTHERS = re.compile(rf"(?<!this)process(\d{{1,10}})has{_QUANTITY}memoryinuse")
_DEVICE = re.compile(r"(?:gpu|npu|xpu|mlu|hpu|dcu|gcu|musa)(?::)?(\d{1,4})(?:;|has)")
_HINTS = (
    ("hint expandable_segments", "expandable_segments"),
    ("hint max_split_size_mb", "max_split_size_mb"),
    ("hint high_watermark", "high_watermark_ratio"),
    ("absurd request", "morethan1ebmemory"),
    ("block limit", "cannotallocatememoryblock"),
)
_DECORATION = re.compile(r"[\s\u00a0│┃║|*`\"'\\^~]+")


_WIDE = str.maketrans("（）；：，", "();:,")


def squeeze(text: str) -> str:
    """What it says, in small letters and without how it was pasted: blanks, borders, markdown and quotes go."""
    return _DECORATION.sub("", text if text.isascii() else text.translate(_WIDE)).lower()


def read(passage: Passage) -> Iterator[Read]:
    """Every message that begins on this line."""
    first, rest = _opening(passage)
    begins = _beginnings(first)
    for index, start in enumerate(begins):
        is_last = index + 1 == len(begins)
        head = (
            first[start.start() :] if is_last else first[start.start() : begins[index + 1].start()]
        )
        text, last = (
            _until_complete(head, rest, passage.line.number)
            if is_last
            else (head, passage.line.number)
        )
        yield Read(observation=_observation(passage, text, start), last_line=last)


def _opening(passage: Passage) -> tuple[str, Iterator[Line]]:
    """The line, and with it the neighbour over which its first words are wrapped: `CUDA out of` / `memory. Tried`.
    With it the lines that may continue it."""
    first = squeeze(clean(passage.line.raw))
    rest = passage.following(MAX_MESSAGE_LINES)
    begins = _START.search(first)
    if begins and not _is_part(begins):
        return first, rest
    with_next = first + squeeze(_continuation(passage.following(1)))
    if not begins and _START.search(with_next):
        return with_next, islice(rest, 1, None)
    above = squeeze(_continuation(passage.preceding(2)))[-60:]
    with_above = above + squeeze(_continuation((passage.line,)))
    is_better = begins is None or (not _END.search(above) and _begins_another(with_above))
    return (with_above if is_better else first), rest


def _beginnings(text: str) -> list[re.Match[str]]:
    """Where messages begin; `Tried to allocate` inside one that has already begun does not begin another."""
    begins: list[re.Match[str]] = []
    has_ended = True  # the message that began last
    searched = 0
    for match in _START.finditer(text):
        if not has_ended:
            has_ended = _END.search(text, searched, match.start()) is not None
            searched = max(searched, match.start() - _MAX_END_CHARS)
        if has_ended or not _is_part(match):
            begins.append(match)
            has_ended = False
            searched = match.start()
    return begins[:MAX_MESSAGES_PER_LINE]


def _until_complete(head: str, rest: Iterable[Line], last: int) -> tuple[str, int]:
    """Add lines until the message says its last number; if it never does, only those that still carry numbers."""
    if _END.search(head):
        return head, last
    text = head
    pieces: list[tuple[str, int]] = []
    for line in rest:
        piece = squeeze(_continuation((line,)))
        if len(text) > MAX_MESSAGE_CHARS or _begins_another(piece):
            break
        searched = max(0, len(text) - _MAX_END_CHARS)
        text += piece
        pieces.append((piece, line.number))
        if _END.search(text, searched):
            return text, line.number
    return _as_far_as_it_speaks(head, pieces, last)


def _begins_another(piece: str) -> bool:
    """A bracket with numbers continues the message that was begun; only its first words begin another."""
    return any(not _is_part(match) for match in _START.finditer(piece))


def _is_part(match: re.Match[str]) -> bool:
    """Words that begin a paste whose own beginning was cut off, and else stand inside a message."""
    return bool(match["bare"] or match["barer"] or match["tail"])


def _as_far_as_it_speaks(head: str, pieces: list[tuple[str, int]], last: int) -> tuple[str, int]:
    text = head
    for piece, number in pieces:
        if len(_found(text + piece)) <= len(_found(text)):
            break
        text, last = text + piece, number
    return text, last


def _continuation(lines: Iterable[Line]) -> str:
    return "".join(without_prefix(clean(line.raw)) for line in lines)


def _found(text: str) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for field, needed, pattern in _FIELDS:
        match = None if field in found or needed not in text else pattern.search(text)
        if match:
            found[field] = (match.group(1), match.group(2))
    return found


def _fields_in_bytes(printed: dict[str, tuple[str, str]], *, binary: bool) -> dict[str, Any]:
    """Printed numbers as bytes; those whose name begins with a plus become figures."""
    fields: dict[str, Any] = {}
    figures: list[Figure] = []
    for field, (number, unit) in printed.items():
        value = to_bytes(number, unit, binary=binary)
        if not field.startswith("+"):
            fields[field] = value
        elif value is not None:
            figures.append(Figure(label=field[1:], value=value))
    fields["figures"] = tuple(figures)
    if "requested_bytes" in printed:
        fields["requested_range_bytes"] = printed_range(*printed["requested_bytes"], binary=binary)
    return fields


def _observation(passage: Passage, text: str, start: re.Match[str]) -> Observation:
    end = _END.search(text)
    message = text[: end.end()] if end else text
    printed = _found(message)
    backend = start["backend"] or "cuda"
    fields = _fields_in_bytes(printed, binary=backend == "mps")
    others = tuple(
        ProcessUse(pid=int(pid), nbytes=to_bytes(number, unit))
        for pid, number, unit in _OTHERS.findall(message)
    )
    kind = _kind(backend, start, _generation(message, printed))
    place = _place(backend, start, message)
    return observe(
        passage,
        kind=kind,
        moment=Moment.FAILURE,
        place=place,
        other_processes=others or None,
        marks=_marks(passage, text, printed),
        **_completed(kind, fields, printed),
    )


def _kind(backend: str, start: re.Match[str], generation: str) -> str:
    if start["async"]:
        return "torch_cudamallocasync_oom"
    if start["block"]:
        return "torch_xpu_oom"
    return f"torch_{backend}_oom" if backend != "cuda" else f"torch_cuda_oom_{generation}"


def _generation(text: str, printed: dict[str, tuple[str, str]]) -> str:
    if any(word in text for word in ("alreadyallocated", "totalcapacity;", "总容量;")):
        return "legacy_cached" if "unallocated_bytes" in printed else "v1"
    return "v2" if "capacity_bytes" in printed or "allocated_bytes" in printed else "truncated"


def _place(backend: str, start: re.Match[str], text: str) -> str | None:
    if backend == "mps":
        return "mps"
    name = "xpu" if start["block"] else "cuda" if backend == "hip" else backend
    device = _DEVICE.search(text)
    index = start["async_device"] or (device.group(1) if device else None)
    return name if index is None else f"{name}:{index}"


def _marks(passage: Passage, text: str, printed: dict[str, tuple[str, str]]) -> tuple[str, ...]:
    hinted = text[:MAX_MESSAGE_CHARS] + squeeze(
        "".join(line.raw[:400] for line in passage.following(4))
    )
    marks = [name for name, words in _HINTS if words in hinted]
    if "capacity_bytes" not in printed and "allowed_bytes" not in printed:
        marks.append("truncated")
    return tuple(marks)


def _completed(
    kind: str, fields: dict[str, Any], printed: dict[str, tuple[str, str]]
) -> dict[str, Any]:
    """Fill what follows exactly from what was printed, by this generation's own definitions, and say so."""
    allocated, unallocated = fields.get("allocated_bytes"), fields.get("unallocated_bytes")
    reserved, derived = fields.get("reserved_bytes"), []
    notes: list[str] = []
    if reserved is None and allocated is not None and unallocated is not None:
        fields["reserved_bytes"], derived = allocated + unallocated, ["reserved_bytes"]
    elif unallocated is None and allocated is not None and reserved is not None:
        fields["unallocated_bytes"], derived = max(0, reserved - allocated), ["unallocated_bytes"]
    if kind == "torch_mps_oom":
        _complete_mps(fields, derived, notes, printed)
    if (
        fields.get("process_bytes") == 0
    ):  # in containers that hide process ids; no process holds nothing
        fields["process_bytes"] = None
    if any(fields.get(name, 0) is None for name in printed):
        notes.append("nonsense_is_unknown")
    return {**fields, "derived": tuple(derived), "notes": tuple(notes)}


def _complete_mps(
    fields: dict[str, Any], derived: list[str], notes: list[str], printed: dict[str, Any]
) -> None:
    """MPSAllocator counts cached blocks as allocated and prints everything else of the process as `other`."""
    others = next(
        (figure.value for figure in fields["figures"] if figure.label == "other allocations"), None
    )
    if others is not None and fields.get("allocated_bytes") is not None:
        fields["process_bytes"] = fields["allocated_bytes"] + others
        derived.append("process_bytes")
    if fields.get("allowed_bytes") is not None:
        fields["capacity_bytes"] = fields["allowed_bytes"]
        derived.append("capacity_bytes")
        notes.append("mps_limit_is_not_the_machine")
    if any(unit.lower() in ("gb", "mb", "kb") for _, unit in printed.values()):
        notes.append("gb_is_gib")


# The exception's name where its message was cut off: a notebook's heading, DataParallel's, ComfyUI's.
_NAME_ALONE = re.compile(
    r"^(?:torch\.)?(?:cuda\.)?OutOfMemoryError\s*[:：]?\s*(?:CUDA|HIP)?(?: out(?: of)?)?\s*$"
    r"|^(?:torch\.)?(?:cuda\.)?OutOfMemoryError:? .{0,80}Traceback \(most recent"
    r"|Caught (?:torch\.)?(?:cuda\.)?OutOfMemoryError in \w+|CUDA OutOfMemoryError in \w+"
    r"|(?:^|processing ?!{0,3} ?|Error: )Allocation on device\s*\d{0,3}\s*$"
)
LINES_TO_THE_MESSAGE = 120


def read_name(passage: Passage) -> Iterator[Read]:
    """Only the name, unless the message itself follows."""
    if not _NAME_ALONE.search(without_prefix(passage.text())):
        return
    if any(_says_it_again(line) for line in passage.following(LINES_TO_THE_MESSAGE)):
        return
    observation = observe(
        passage,
        kind="torch_cuda_oom_truncated",
        moment=Moment.FAILURE,
        place="cuda",
        marks=("truncated",),
    )
    yield Read(observation=observation, last_line=passage.line.number)


def _says_it_again(line: Line) -> bool:
    text = line.raw.lower()
    return "out of memory" in text or "outofmemoryerror" in text


NAME_READER = Reader(
    words=("outofmemoryerror", "allocation on device"), read=read_name, is_fallback=True
)
READER = Reader(
    words=(
        "out of memory",
        "out of memmory",
        "out of the memory",
        "memory. tried to",
        "allocation on device",
        "tried to allocate",
        "total capac",
        "exceed allowed memory",
        "allocate memory block",
        "outofmemoryerror",
        "is allocated by pytorch",
        "memory in use",
        "内存不足",
    ),
    read=read,
)
