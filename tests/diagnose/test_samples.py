"""Every sample file against figures read off its text by eye.

The golden files say what is printed, in the units it is printed in (GB written as GiB where the printer divides by
2^30), and apart from that what follows by definition. Whatever they do not name must be null.
"""

from __future__ import annotations

import io
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from vramcast.diagnose.readers.log import read_stream

HERE = Path(__file__).parent
SAMPLES = sorted((HERE / "samples").glob("*.txt"))
SCALE = {
    "bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "GB": 10**9, "count": 1, "share": 1, "%": 1,
}  # fmt: skip
BYTE_FIELDS = (
    "requested_bytes", "capacity_bytes", "free_bytes", "allocated_bytes", "reserved_bytes", "unallocated_bytes",
    "process_bytes", "allowed_bytes", "used_bytes", "peak_allocated_bytes", "peak_reserved_bytes",
)  # fmt: skip


def value(text: str) -> int | float:
    """`3.14 GiB + 634.00 KiB` by hand: each term rounded to bytes, as each is printed."""
    total: int | float = 0
    for sign, number, unit in re.findall(r"([+-] )?(-?[\d.]+) (\S+)", text):
        term = float(number) if unit in ("%", "share") else round(Decimal(number) * SCALE[unit])
        total += -term if sign == "- " else term
    return total


def read(path: Path) -> tuple[Any, ...]:
    with path.open("rb") as stream:
        stream.readline()  # the source
        return read_stream(stream).observations


def test_every_sample_has_a_golden_file() -> None:
    golden = {path.stem for path in (HERE / "golden").glob("*.json")}
    assert golden == {path.stem for path in SAMPLES}
    assert len(golden) >= 59


@pytest.mark.parametrize("path", SAMPLES, ids=[path.stem for path in SAMPLES])
def test_sample_says_what_its_text_says(path: Path) -> None:
    expected = json.loads((HERE / "golden" / f"{path.stem}.json").read_text())["observations"]
    observations = read(path)
    assert [item.kind for item in observations] == [item["kind"] for item in expected]
    for observation, wanted in zip(observations, expected, strict=True):
        derived = wanted.get("derived", {})
        said = {name: value(text) for name, text in {**wanted["printed"], **derived}.items()}
        assert {name: getattr(observation, name) for name in BYTE_FIELDS} == {
            name: said.get(name) for name in BYTE_FIELDS
        }
        assert set(observation.derived) == set(derived)
        assert observation.place == wanted["place"]
        others = [
            {"pid": other["pid"], "bytes": value(other["bytes"])}
            for other in wanted.get("other_processes", ())
        ]
        assert [
            {"pid": use.pid, "bytes": use.nbytes} for use in observation.other_processes or ()
        ] == others
        for label, text in wanted.get("figures", {}).items():
            assert observation.figure(label) == value(text), label
        for name in ("rank", "count", "moment"):
            if name in wanted:
                assert getattr(observation, name) == wanted[name]


PROSE = [path for path in SAMPLES if " out of memory. Tried to allocate" in path.read_text()]


@pytest.mark.parametrize("width", [33, 57, 80])
@pytest.mark.parametrize("path", PROSE, ids=[path.stem for path in PROSE])
def test_a_message_wrapped_anywhere_and_prefixed_says_the_same(path: Path, width: int) -> None:
    line = next(
        line for line in path.read_text().splitlines()[1:] if " out of memory. Tried" in line
    )
    message = line[max(0, line.index(" out of memory. Tried") - 4) :].removeprefix(" ")
    wrapped = "\n".join(
        f"[rank5]: {message[at : at + width]}" for at in range(0, len(message), width)
    )
    (found,) = read_stream(io.BytesIO(wrapped.encode())).observations
    (expected,) = read(path)
    assert [getattr(found, name) for name in BYTE_FIELDS] == [
        getattr(expected, name) for name in BYTE_FIELDS
    ]
    assert (found.kind, found.other_processes, found.rank) == (
        expected.kind,
        expected.other_processes,
        5,
    )
