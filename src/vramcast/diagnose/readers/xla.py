"""JAX, XLA and TensorFlow: RESOURCE_EXHAUSTED on GPU and TPU, BFC allocator lines, tensor shapes.

In: a Passage. Out: Observations. XLA plans memory when it compiles, so what it prints is what the program would
need; the lines under the message are the parts of that need and become figures.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod
from typing import Any

from vramcast.diagnose.observation import Figure, Moment
from vramcast.diagnose.readers.cuda_libraries import device_of
from vramcast.diagnose.readers.quantity import NUMBER, UNIT, to_bytes
from vramcast.diagnose.readers.reader import Read, Reader, observe
from vramcast.diagnose.readers.stream import Passage

_SIZE = rf"({NUMBER})\s*({UNIT})(?![A-Za-z])"
_GPU = re.compile(
    r"(?:Out of memory (?:while trying to allocate|allocating)|allocate request for|trying to allocate"
    rf"|Attempting to (?:allocate|reserve))\s+{_SIZE}(?:\s*\((\d{{1,18}})B?\))?",
    re.IGNORECASE,
)
_IS_GPU = re.compile(
    r"RESOURCE_EXHAUSTED|Resource exhausted|XlaRuntimeError|XLA_PYTHON|BufferAssignment|Failed to allocate request"
    r"|reservable|Attempting to allocate .{0,60}(?:HBM|free)",
    re.IGNORECASE,
)
# What a library's search for algorithms asks the driver for, next to the pool that JAX took in advance.
_OUTSIDE_POOL = re.compile(
    r"Original error: RESOURCE_EXHAUSTED: Failed to allocate request", re.IGNORECASE
)
OUTSIDE_POOL = "outside the pool"
_PART = re.compile(rf"^\s*([A-Za-z_][A-Za-z_ ]{{2,40}}):\s+{_SIZE}")
_RESERVABLE = re.compile(
    rf"There are {_SIZE} free, {_SIZE} reserved,? and {_SIZE} reservable", re.IGNORECASE
)


def read_gpu(passage: Passage) -> Iterator[Read]:
    """A request that XLA refused, with the parts of what the program needs."""
    text = passage.text()
    match = _GPU.search(text)
    # where a terminal wrapped the first words
    above = passage.before[-1].clean() if passage.before else ""
    if match is None or not _IS_GPU.search(f"{above} {text}") or "bfc_allocator" in text:
        return
    number, unit, exact = match.groups()
    requested = int(exact) if exact else to_bytes(number, unit, binary=True)
    fields: dict[str, Any] = {"requested_bytes": requested}
    kind, place = "jax_gpu_oom", device_of(text, "cuda")
    if (room := _RESERVABLE.search(text)) is not None:
        # only a TPU's runtime reserves from the top and from the bottom
        kind, place = "jax_tpu_oom", "tpu:0"
        fields.update(_room_fields(room))
    if _OUTSIDE_POOL.search(text):
        fields["marks"] = (OUTSIDE_POOL,)
    parts, last = _parts(passage) if room is None else _hbm_account(passage, fields)
    fields["figures"] = (*fields.get("figures", ()), *parts)
    yield _failure(passage, last, kind=kind, place=place, **fields)


def _room_fields(room: re.Match[str]) -> dict[str, Any]:
    """What a TPU has free, reserved and reservable."""
    free, reserved, reservable = (
        to_bytes(room.group(at), room.group(at + 1), binary=True) for at in (1, 3, 5)
    )
    figures = (
        Figure(label="reserved", value=reserved or 0),
        Figure(label="reservable", value=reservable or 0),
    )
    return {"free_bytes": free, "figures": figures}


_ACCOUNT = re.compile(
    r"^(HBM capacity|Top-of-Memory reserved|Bottom-of-Memory reserved|Currently allocated|Program requirement):?\s+"
    rf"{_SIZE}:?(?:\s*\(\s*([\d,]{{1,24}}) bytes\))?",
    re.IGNORECASE,
)
_ACCOUNT_FIELDS = {"hbm capacity": "capacity_bytes", "currently allocated": "allocated_bytes"}


def _hbm_account(passage: Passage, fields: dict[str, Any]) -> tuple[tuple[Figure, ...], int]:
    """The sum under a TPU's refusal, in rounded sizes and often also in bytes; fills the fields that it has."""
    figures, last = list[Figure](), passage.line.number
    for line in passage.following(8):
        if (match := _ACCOUNT.match(line.clean())) is None:
            continue
        label, number, unit, exact = match.groups()
        size = int(exact.replace(",", "")) if exact else to_bytes(number, unit, binary=True)
        last = line.number
        if (field := _ACCOUNT_FIELDS.get(label.lower())) is not None:
            fields[field] = size
        elif size is not None:
            figures.append(Figure(label=label.lower(), value=size))
    return tuple(figures), last


def _parts(passage: Passage) -> tuple[tuple[Figure, ...], int]:
    """The `BufferAssignment stats` under the message, and the peak buffers that newer versions list after them."""
    parts: list[Figure] = []
    last, buffer = passage.line.number, ""
    for line in passage.following(90):
        text = line.clean()
        if (header := _BUFFER.match(text)) is not None:
            buffer = f"buffer {header.group(1)}"
        match = _PART.match(text)
        if match and (size := to_bytes(match.group(2), match.group(3), binary=True)) is not None:
            label = match.group(1).strip()
            parts.append(Figure(label=buffer if buffer and label == "Size" else label, value=size))
            last = line.number
        elif not buffer and not _STATS_LINE.search(text):
            break
    return tuple(parts[:40]), last


_BUFFER = re.compile(r"^Buffer (\d{1,4}):")
_STATS_LINE = re.compile(r"BufferAssignment|Peak buffers|Buffer \d")
_HBM = re.compile(rf"Used {_SIZE} of {_SIZE} (\w{{1,20}})", re.IGNORECASE)
_EXCEEDED = re.compile(rf"Exceeded \w+ capacity by {_SIZE}", re.IGNORECASE)
_TPU_PART = re.compile(
    r"^(reserved|program|arguments|global|scoped|HLO temp|output|overlays|stack|Total \w+ usage >="
    rf"|Program \w+ requirement)\s+{_SIZE}",
    re.IGNORECASE,
)
_TPU_LARGEST = re.compile(rf"^(\d{{1,3}})\. Size: {_SIZE}", re.IGNORECASE)
_FRAGMENTED = re.compile(rf"fragmentation \({_SIZE}\)", re.IGNORECASE)
_PADDED = re.compile(rf"\b((?:Unp|P)added) \({_SIZE}\)")
_UNPADDED = re.compile(rf"^Unpadded size: {_SIZE}")
_PADDING = re.compile(rf"^Extra memory due to padding: {_SIZE}")
_TPU_FIGURES = (
    ("", _TPU_PART),
    ("", _PADDED),
    ("exceeded by", _EXCEEDED),
    ("fragmentation", _FRAGMENTED),
    ("largest", _TPU_LARGEST),
    ("unpadded size", _UNPADDED),
    ("padding", _PADDING),
)


def read_tpu(passage: Passage) -> Iterator[Read]:
    match = _HBM.search(passage.text())
    if match is None:
        return
    figures: list[Figure] = []
    last = passage.line.number
    for line in passage.lines(60):
        found = _tpu_figures(line.clean())
        figures += found
        last = line.number if found else last
    yield _failure(
        passage,
        last,
        kind="jax_tpu_oom",
        place="tpu:0",
        figures=tuple(figures[:60]),
        requested_bytes=to_bytes(match.group(1), match.group(2), binary=True),
        capacity_bytes=to_bytes(match.group(3), match.group(4), binary=True),
        notes=("gb_is_gib",),
    )


def _tpu_figures(text: str) -> list[Figure]:
    """Each pattern's last two groups are the size; what stands before them, or its own name, is the label."""
    figures: list[Figure] = []
    for name, pattern in _TPU_FIGURES:
        for match in pattern.finditer(text):
            *words, number, unit = match.groups()
            size = to_bytes(number, unit, binary=True)
            if size is not None:
                figures.append(
                    Figure(label=" ".join([name, *words]).strip().rstrip(" >=").lower(), value=size)
                )
    return figures


_BFC = re.compile(
    rf"ran out of memory trying to allocate {_SIZE}(?: ?\(rounded to (\d{{1,18}})\))?",
    re.IGNORECASE,
)
_BFC_STATS = re.compile(r"^(?:.*\] )?(Limit|InUse|MaxInUse|MaxAllocSize|NumAllocs):\s+(\d{1,18})")
NOT_A_FAILURE = "not a failure"


def read_bfc(passage: Passage) -> Iterator[Read]:
    """TensorFlow's allocator. Its warning that more memory would make things faster is no failure."""
    text = passage.text()
    match = _BFC.search(text)
    if match is None:
        return
    following = " ".join(line.clean() for line in passage.lines(3))
    harmless = NOT_A_FAILURE in following
    size = to_bytes(match.group(1), match.group(2), binary=True)
    figures = (Figure(label="rounded to", value=int(match.group(3))),) if match.group(3) else ()
    observation = observe(
        passage,
        kind="tf_bfc",
        moment=Moment.NOW if harmless else Moment.FAILURE,
        place=_tf_place(text),
        requested_bytes=size,
        figures=figures,
        marks=(NOT_A_FAILURE,) if harmless else (),
    )
    yield Read(observation=observation, last_line=passage.line.number)


def read_bfc_stats(passage: Passage) -> Iterator[Read]:
    """The `Stats:` block that TensorFlow dumps after a failure."""
    found: dict[str, int] = {}
    last = passage.line.number
    for line in passage.lines(8):
        match = _BFC_STATS.match(line.clean())
        if match is None or match.group(1) in found:
            break
        found[match.group(1)] = int(match.group(2))
        last = line.number
    if "Limit" in found and "InUse" in found:
        extra = (("MaxInUse", "B"), ("MaxAllocSize", "B"), ("NumAllocs", "count"))
        observation = observe(
            passage,
            kind="tf_bfc",
            moment=Moment.NOW,
            place="cuda",
            allowed_bytes=found["Limit"],
            allocated_bytes=found["InUse"],
            peak_allocated_bytes=found.get("MaxInUse"),
            figures=tuple(
                Figure(label=name, value=found[name], unit=unit)
                for name, unit in extra
                if name in found
            ),
        )
        yield Read(observation=observation, last_line=last)


_TENSOR = re.compile(
    r"OOM when allocating tensor(?: with shape| of shape)\s*\[([\d,\s]{0,200})\](?: and type (\w{1,20}))?",
    re.IGNORECASE,
)
_TF_BYTES = {
    "float": 4,
    "float32": 4,
    "half": 2,
    "float16": 2,
    "bfloat16": 2,
    "double": 8,
    "float64": 8,
    "int32": 4,
    "int64": 8,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "complex64": 8,
    "complex128": 16,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
}


def read_tensor(passage: Passage) -> Iterator[Read]:
    text = passage.text()
    match = _TENSOR.search(text)
    if match is None:
        return
    shape = [int(size) for size in match.group(1).replace(" ", "").split(",") if size][:16]
    itemsize = _TF_BYTES.get((match.group(2) or "").lower())
    requested = (
        prod(shape) * itemsize if itemsize and all(0 <= size < 2**40 for size in shape) else None
    )
    read = _failure(
        passage,
        passage.line.number,
        kind="tf_oom",
        place=_tf_place(text),
        requested_bytes=requested,
        derived=("requested_bytes",) if requested is not None else (),
        figures=tuple(
            Figure(label=f"shape[{axis}]", value=size, unit="count")
            for axis, size in enumerate(shape)
        ),
    )
    yield read


def _tf_place(text: str) -> str:
    match = re.search(r"(?:device:(GPU|XPU):|GPU_)(\d{1,3})", text)
    name = "xpu" if match and match.group(1) == "XPU" else "cuda"
    return (
        f"{name}:{match.group(2)}"
        if match
        else "host"
        if re.search(r"device:CPU|\bcpu\b|mklcpu", text)
        else "cuda"
    )


def _failure(passage: Passage, last: int, **fields: Any) -> Read:
    fields.setdefault("place", "cuda")
    return Read(observation=observe(passage, moment=Moment.FAILURE, **fields), last_line=last)


READERS = (
    Reader(
        words=(
            "while trying to allocate",
            "out of memory allocating",
            "allocate request for",
            "bottom of memory",
            "attempting to allocate",
            "resource_exhausted",
        ),
        read=read_gpu,
    ),
    Reader(words=("ran out of memory in memory space", " hbm."), read=read_tpu),
    Reader(words=("ran out of memory trying to allocate",), read=read_bfc),
    Reader(words=("limit: ",), read=read_bfc_stats),
    Reader(words=("oom when allocating tensor",), read=read_tensor),
)
