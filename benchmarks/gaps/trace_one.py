"""One job's loop on the virtual GPU, in a process of its own: python trace_one.py JOB.json ANSWER.json

The answer has each phase's peak, the storages alive at it (identical ones counted), and the versions that decided.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from vramcast.virtual import virtual_gpu
from vramcast.virtual.accounting.bill import Line
from vramcast.virtual.accounting.meter import Peak
from vramcast.virtual.script import run_script

LOOPS = Path(__file__).resolve().parent / "loops"
LIBRARIES = ("torch", "transformers", "accelerate", "peft", "trl")
PLACE = "cuda:0"


class Peaks:
    """The largest peak of each phase, as rows that JSON can hold."""

    def __init__(self) -> None:
        self.phases: dict[str, dict[str, Any]] = {}

    def watch(self, peak: Peak, lines: tuple[Line, ...]) -> None:
        if peak.place != PLACE:
            return
        counted: Counter[tuple[Any, ...]] = Counter()
        for record, line in zip(peak.alive, lines, strict=True):
            counted[_row(record, line)] += 1
        known = sum(record.nbytes for record in peak.alive)
        self.phases[peak.phase] = {
            "allocated_bytes": peak.allocated_bytes,
            "inside_a_kernel_bytes": peak.allocated_bytes - known,
            "tensors": [[*row, count] for row, count in counted.items()],
        }


def _row(record: Any, line: Line) -> tuple[Any, ...]:
    """category, module or parameter, op, dtype, shape, bytes, phase in which it was made"""
    where = re.sub(r"\b\d+\b", "*", line.component)
    dtype = str(record.dtype).removeprefix("torch.")
    return (
        str(line.category),
        where,
        record.cause,
        dtype,
        record.shape,
        record.nbytes,
        record.phase,
    )


def _versions() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def main(job_path: str, answer_path: str) -> None:
    job = json.loads(Path(job_path).read_text(encoding="utf-8"))
    gpu = virtual_gpu(job["gpu"], empty_weights=True, protect=False)
    peaks = Peaks()
    gpu.bill.watch = peaks.watch
    ended = run_script(str(LOOPS / f"loop_{job['framework']}.py"), [job_path], gpu)
    ended.check()
    answer = {
        "versions": _versions(),
        "steps": ended.steps,
        "out_of_memory": ended.out_of_memory,
        "phases": peaks.phases,
    }
    Path(answer_path).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
