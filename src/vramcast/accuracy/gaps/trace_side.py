"""A job's loop on the virtual GPU, in a process with the libraries of one transformers version: what was alive.

Every job runs in its own process and has two minutes. What cannot be run is a TraceError that says why; answers are
kept in the job's folder, and taken again where asked for and the job and the libraries are still the same.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from vramcast.accuracy.environments import environment, requirements
from vramcast.accuracy.gaps.draw import GapJob
from vramcast.accuracy.gaps.tensors import AS_TOTALS, COMPARED, ONE_PHASE, Side, Tensor
from vramcast.accuracy.traced import variables_with
from vramcast.errors import TraceError

LIMIT_S = 120
INSTALLED = "installed"
ITEM_BYTES = {
    "float64": 8,
    "int64": 8,
    "uint64": 8,
    "float32": 4,
    "int32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int16": 2,
}
PACKAGE_ROOT = Path(__file__).resolve().parents[3]
REMAINDER_BYTES = 1 << 20  # the allocator does not split less off a large block


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where scripts, lists of libraries, installed libraries and the jobs' folders are."""

    scripts: Path  # with trace_one.py, loops/ and environments/
    environments: Path
    jobs: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSide:
    phases: dict[str, Side]
    versions: dict[str, str]


def environment_name(version: str) -> str:
    """Of the list of libraries; other tests have lists of their own for the same transformers."""
    return f"gaps-{version}"


def write_job(job: GapJob, places: Places) -> Path:
    """The job's folder, with its config and what its loop reads."""
    folder = places.jobs / f"seed-{job.seed}" / f"job-{job.number}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(job.config, indent=1), encoding="utf-8")
    loop = {**job.as_json(), "folder": str(folder)}
    (folder / "job.json").write_text(json.dumps(loop, indent=1), encoding="utf-8")
    return folder


def trace(job: GapJob, version: str, places: Places, *, reuse: bool) -> TraceSide:
    folder = write_job(job, places)
    answer = folder / f"{version}.json"
    stamp = _stamp(folder, version, places)
    if not (reuse and _is_current(answer, stamp)):
        _run(folder, version, places, answer)
        kept = {**json.loads(answer.read_text(encoding="utf-8")), "stamp": stamp}
        answer.write_text(json.dumps(kept), encoding="utf-8")
    return read_answer(json.loads(answer.read_text(encoding="utf-8")), job)


def _stamp(folder: Path, version: str, places: Places) -> str:
    texts = [folder / "job.json", *sorted((places.scripts / "loops").glob("*.py"))]
    if version != INSTALLED:
        texts.append(requirements(environment_name(version), places.scripts))
    return sha256(b"\0".join(path.read_bytes() for path in texts)).hexdigest()


def _is_current(answer: Path, stamp: str) -> bool:
    return answer.is_file() and json.loads(answer.read_text(encoding="utf-8"))["stamp"] == stamp


def _run(folder: Path, version: str, places: Places, answer: Path) -> None:
    overlay = None
    if version != INSTALLED:
        overlay = environment(environment_name(version), places.scripts, places.environments)
    script = places.scripts / "trace_one.py"
    command = [sys.executable, "-W", "ignore", str(script), str(folder / "job.json"), str(answer)]
    try:
        ended = subprocess.run(
            command,
            env=_variables(overlay),
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        raise TraceError(f"was not done after {LIMIT_S} s") from None
    if ended.returncode != 0:
        raise TraceError(_reason(ended.stderr))


def _variables(overlay: Path | None) -> dict[str, str]:
    """The process finds this very package, wherever it was started from."""
    variables = variables_with(overlay)
    libraries = [] if overlay is None else [str(overlay)]
    variables["PYTHONPATH"] = os.pathsep.join([*libraries, str(PACKAGE_ROOT)])
    return variables


def _reason(stderr: str) -> str:
    """The script's own error, out of a traceback that ends with advice."""
    lines = [line for line in stderr.strip().splitlines() if line.strip()]
    named = [line for line in lines if " failed at " in line]
    return (named or lines or ["no message"])[-1].strip()[-400:]


def read_answer(answer: dict[str, Any], job: GapJob) -> TraceSide:
    if answer["out_of_memory"]:
        raise TraceError(f"ran out of memory: {answer['out_of_memory'][:200]}")
    peaks: dict[str, dict[str, Any]] = {}
    for phase, peak in answer["phases"].items():
        compared = ONE_PHASE.get(phase, phase)
        before = peaks.get(compared, {"allocated_bytes": 0})
        if compared in COMPARED and peak["allocated_bytes"] > before["allocated_bytes"]:
            peaks[compared] = peak
    phases = {phase: _side(peak, phase, job) for phase, peak in peaks.items()}
    return TraceSide(phases=phases, versions=answer["versions"])


def _side(peak: dict[str, Any], phase: str, job: GapJob) -> Side:
    tensors = [_tensor(row, phase, job) for row in peak["tensors"]]
    blocks = sum(row[5] * row[7] for row in peak["tensors"])
    rounding = blocks - sum(tensor.total for tensor in tensors)
    tensors.append(Tensor(group="rounding", name="rounding inside blocks", nbytes=rounding))
    inside = peak["inside_a_kernel_bytes"]
    if inside:
        tensors.append(Tensor(group="pass", name="inside a kernel", nbytes=inside))
    return Side(allocated_bytes=peak["allocated_bytes"], tensors=tuple(tensors))


def _tensor(row: list[Any], phase: str, job: GapJob) -> Tensor:
    category, where, op, dtype, sizes, block_bytes, made_in, count = row
    shape = tuple(sizes)
    asked = math.prod(shape) * ITEM_BYTES.get(dtype, 1) if dtype != "None" else block_bytes
    if not 0 <= block_bytes - asked < REMAINDER_BYTES:
        asked = block_bytes  # a tensor that sees only part of its storage
    name = where if op in where or not op else f"{where} {op}"
    if job.vocabulary in shape:
        name = f"{name} over the vocabulary"
    return Tensor(
        group=_group(category, phase, made_in, is_batch=shape in job.input_shapes),
        name=name,
        nbytes=asked,
        count=count,
        dtype=dtype,
        shape=shape,
        made_in=made_in,
    )


def _group(category: str, phase: str, made_in: str, *, is_batch: bool) -> str:
    if category == "inputs":
        return (
            "inputs" if is_batch or made_in != "load" else "weights"
        )  # buffers come with the model
    if category in AS_TOTALS:
        return category
    if phase.endswith("step"):
        return "step temporaries" if made_in == phase else "held outputs"
    last_step = phase.startswith("next ") and not made_in.startswith("next ")
    return "held outputs" if last_step else "pass"
