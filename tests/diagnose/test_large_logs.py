"""Logs of any shape are read in time that grows with their length, and what matters in them is found."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from vramcast.diagnose.readers.log import WORDS, read_stream

SAMPLES = Path(__file__).parent / "samples"
MEGABYTES = 12
SECONDS = 6.0  # of processor time; most shapes took 3 to 140 s when every reader could take all that it wanted
LINE_BYTES = 2_400_000
OOM = (
    b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    b"capacity of 23.65 GiB of which 1.30 GiB is free. Including non-PyTorch memory, this process "
    b"has 22.33 GiB memory in use. Of the allocated memory 20.14 GiB is allocated by PyTorch, and "
    b"1.73 GiB is reserved by PyTorch but unallocated."
)


def _repeated(unit: bytes, size: int) -> bytes:
    return (unit * (size // len(unit) + 1))[:size]


def _long_lines(unit: bytes) -> bytes:
    count = MEGABYTES * 10**6 // LINE_BYTES
    return b"\n".join([_repeated(unit, LINE_BYTES)] * count)


def _lines(unit: bytes) -> bytes:
    return _repeated(unit + b"\n", MEGABYTES * 10**6)


def _samples() -> bytes:
    return b"".join(path.read_bytes() for path in sorted(SAMPLES.glob("*.txt")))


_WORDS = [word.encode() for word in WORDS]
SHAPES: dict[str, Callable[[], bytes]] = {
    "long lines of messages": lambda: _long_lines(OOM + b" "),
    "long lines of every sample": lambda: _long_lines(_samples().replace(b"\n", b" ")),
    "long lines of every word": lambda: _long_lines(b" ".join(_WORDS)),
    "long lines of words and sizes": lambda: _long_lines(b" 12.5 GiB ".join(_WORDS)),
    "long lines of blanks": lambda: _long_lines(b"out of memory" + b" " * 3_000),
    "long lines of digits": lambda: _long_lines(b"out of memory " + b"1234567890" * 500),
    "long lines of brackets": lambda: _long_lines(b"memory [[[[((((]]]]"),
    "one endless line": lambda: _repeated(b'{"memory allocated": 1}, ', MEGABYTES * 10**6),
    "beginnings without an end": lambda: _lines(b"CUDA out of memory. Tried to allocate"),
    "short lines of every word": lambda: _lines(b"\n".join(_WORDS)),
    "samples": lambda: _lines(_samples()),
    "carriage returns": lambda: _lines(OOM + b"\r"),
    "escapes that never end": lambda: _long_lines(b"\x1b]0;out of memory"),
    "UTF-16": lambda: b"\xff\xfe" + _long_lines(OOM).decode().encode("utf-16-le"),
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_time_is_linear_whatever_the_lines_are(shape: str) -> None:
    stream = io.BytesIO(SHAPES[shape]())
    begin = time.process_time()
    read_stream(stream)
    assert time.process_time() - begin < SECONDS


@pytest.mark.parametrize("position", [0, 1_000, LINE_BYTES // 2, LINE_BYTES - 60])
def test_a_message_inside_a_very_long_line_is_found(position: int) -> None:
    record = _repeated(b'{"step": 1, "text": "some memory of it"}, ', LINE_BYTES)
    line = record[:position] + OOM + record[position:]
    reading = read_stream(io.BytesIO(b"\n".join([record, line, record])))
    (failure,) = [item for item in reading.observations if item.is_failure()]
    assert failure.requested_bytes == 2 * 2**30
    assert failure.capacity_bytes == round(23.65 * 2**30)
    assert failure.line == 2


def test_a_failure_after_a_hundred_thousand_lines_about_memory_is_read() -> None:
    lines = b"\n".join(
        b"step %d memory allocated: 12.%d GB max memory reserved: 13.00 GB" % (step, step % 90)
        for step in range(100_000)
    )
    reading = read_stream(io.BytesIO(lines + b"\n" + OOM + b"\n"))
    assert [item.requested_bytes for item in reading.observations if item.is_failure()] == [
        2 * 2**30
    ]


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_failure_in_a_log_full_of_counters_is_read_wherever_it_stands(share: float) -> None:
    """Counters use up what all readers may take together; who knows what is rare here is asked all the same."""
    lines = b"".join(
        b"step %d memory allocated: 12.%d GB max memory reserved: 13.00 GB\n" % (step, step % 90)
        for step in range(600_000)
    )
    cut = lines.index(b"\n", round(share * len(lines)) - 200) + 1
    reading = read_stream(io.BytesIO(lines[:cut] + OOM + b"\n" + lines[cut:]))
    assert [item.requested_bytes for item in reading.observations if item.is_failure()] == [
        2 * 2**30
    ]
