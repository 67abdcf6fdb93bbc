"""A job on the virtual GPU, in a process of its own, kept for the next time it is asked.

A process of its own: the virtual GPU patches torch, and the caller may be a notebook with a real one. What comes back
is data. It is kept in the user's cache folder under a name made of everything that decides it: the config, the job,
and the versions of the libraries. Without torch there is one clear line that says what to install.

A process that must answer at once (a server's) sets VRAMCAST_NO_NEW_TRACES=1: it reads what is kept, and says
TraceNeededError where somebody else has to run the job first.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from vramcast.catalog.gpus import all_gpus, find_gpu
from vramcast.engine import DEFAULT_SEQ, sizes_of
from vramcast.errors import InputError, TraceNeededError, UnsupportedError
from vramcast.forecasting import cache
from vramcast.job import FIELDS, Job, job_values
from vramcast.models.read.config import Config
from vramcast.models.read.source import ModelSource
from vramcast.setup import complete, resolve
from vramcast.traces.record import Trace, from_json

TARGET = "vramcast.virtual.jobs.trace_any:trace_here"
ANY_CARD = "a100-80gb"  # whose kernels run where the job names no card
NEEDED = ("torch", "transformers")
NO_NEW = "VRAMCAST_NO_NEW_TRACES"
DECIDING = ("vramcast", "torch", "transformers", "peft", "bitsandbytes", "accelerate", "trl")
# Loops that differ from the Trainer's in what they ask of a model, which is all said in the completed job.
LIKE_TRAINER = ("trl", "unsloth", "torchtune", "litgpt")
LOOPS = ("plain", "hf", "lightning", "accelerate")


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedJob:
    """What a trace says of a job."""

    trace: Trace
    kind: str  # the model's class
    params_total: int
    params_trainable: int
    stored_as: Mapping[str, str]
    inputs: Mapping[str, tuple[int, ...]]
    has_own_loss: bool
    seq: int
    versions: str
    warnings: tuple[str, ...]
    kept_in: str  # the cache folder; empty if nothing was kept


def trace_job(said: Job, source: ModelSource) -> TracedJob:
    """Two training steps of the job. Raises UnsupportedError where they cannot be run from a job."""
    found = trace_jobs([said], source)[0]
    if isinstance(found, UnsupportedError):
        raise found
    return found


def trace_jobs(saids: Sequence[Job], source: ModelSource) -> list[TracedJob | UnsupportedError]:
    """Jobs with one model, in one process. What cannot be run has its error in the list."""
    missing = missing_libraries()
    if missing:
        what = source.name if not source.is_described else f"these adapters on {source.name}"
        raise UnsupportedError(
            f"no formula describes {what}: with torch and transformers the virtual GPU runs its step and gives "
            f"the whole bill: pip install 'vramcast[trace]' ({', '.join(missing)} is missing)"
        )
    assert source.config is not None
    config, versions = source.config, versions_here()
    asked = [_payload(said, config) for said in saids]
    keys = [cache.key_of({**payload, "versions": versions}) for payload, _ in asked]
    known = {key: found for key in keys if (found := cache.load(key)) is not None}
    new = {key: payload for key, (payload, _) in zip(keys, asked, strict=True) if key not in known}
    kept_in = ""
    if new and os.environ.get(NO_NEW):
        raise TraceNeededError(
            f"no formula describes {source.name}: the virtual GPU runs its step first"
        )
    if new:
        # Imports multiprocessing, which a browser does not have: only where something is traced.
        from vramcast.sandbox.process import Options, run_protected

        request = {"jobs": list(new.values())}
        answers = run_protected(TARGET, request, Options(protect="none"))["answers"]
        for key, answer in zip(new, answers, strict=True):
            known[key] = answer
            kept_in = cache.keep(key, answer) if "error" not in answer else kept_in
    return [
        UnsupportedError(known[key]["error"])
        if "error" in known[key]
        else _read(known[key], payload["job"]["seq"], warnings, kept_in)
        for key, (payload, warnings) in zip(keys, asked, strict=True)
    ]


def missing_libraries() -> list[str]:
    """Of those that the virtual GPU needs."""
    return [name for name in NEEDED if find_spec(name) is None]


def _read(found: Mapping[str, Any], seq: int, warnings: tuple[str, ...], kept_in: str) -> TracedJob:
    left_out = found["left_out"]
    if left_out:
        warnings = (
            *warnings,
            f"{', '.join(left_out)}: this model takes them in a form that a job does not describe, so the step ran on "
            "text alone",
        )
    ran = int(found["seq"])
    if ran > seq:
        text = f"seq {seq} is less than the pictures and sounds take: the step ran with {ran}"
        warnings = (*warnings, text)
    elif ran < seq:
        text = f"seq {seq} is beyond the {ran} positions of this model: the step ran with {ran}"
        warnings = (*warnings, text)
    return TracedJob(
        trace=from_json(found["trace"]),
        kind=str(found["kind"]),
        params_total=int(found["params_total"]),
        params_trainable=int(found["params_trainable"]),
        stored_as=found["stored_as"],
        inputs={name: tuple(shape) for name, shape in found["inputs"].items()},
        has_own_loss=bool(found["has_own_loss"]),
        seq=int(found["seq"]),
        versions=str(found["versions"]),
        warnings=(*warnings, *map(str, found["notes"])),
        kept_in=kept_in,
    )


def request_of(said: Job, config: Config) -> dict[str, Any]:
    """What the process is asked, in plain values."""
    return _payload(said, config)[0]


def _payload(said: Job, config: Config) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Everything that the process needs, in plain values, and what is told of it."""
    job, warnings = _job_of_loops(said, config)
    recipe, setup = resolve(job).precision, resolve(job)
    loop = {
        "weights": recipe.weights.name,
        "autocast": recipe.autocast.name if recipe.autocast else None,
        "implementation": setup.optimizer.implementation,
        "keeps_outputs": setup.loop.keeps_outputs,
        "zeroes_first": setup.loop.zero_grad != "after-forward",
        "zeroes_in_place": setup.loop.zero_grad == "in-place",
    }
    card = card_like(job.gpu)
    values = {name: value for name, value in job_values(job).items() if value is not None}
    payload = {
        "job": {**values, "gpu": card, "model": config.model_type},
        "config": dict(config.data),
        "where": config.where,
        "loop": loop,
        "gpu": card,
    }
    return payload, warnings


def card_like(name: str | None) -> str:
    """The largest card of the same generation: its kernels are the same, and one trace answers for all of them."""
    capability = None if name is None else find_gpu(name).compute_capability
    alike = [gpu for gpu in all_gpus() if capability and gpu.compute_capability == capability]
    if not alike:
        return ANY_CARD
    return max(alike, key=lambda gpu: (gpu.total_bytes or 0, gpu.name)).name


def _job_of_loops(said: Job, config: Config) -> tuple[Job, tuple[str, ...]]:
    """The job completed, in the terms of the loops that the virtual GPU has."""
    job, warnings = complete(said), _other_versions(said)
    runs_as = resolve(job).versions.framework
    if job.framework not in LOOPS:
        warnings.append(
            f"the loop of {job.framework} was traced as the Hugging Face Trainer's, with {job.framework}'s settings"
        )
        job = replace(job, framework=runs_as if runs_as in LOOPS else "hf")
    if said.loss is None:
        job = replace(job, loss="full")
    if job.evaluate:
        warnings.append("evaluate was not traced: evaluation keeps no graph")
        job = replace(job, evaluate=False)
    if job.seq is None:
        job = replace(job, seq=_usual_length(job, config))
    # Two spellings of one job are one trace.
    return replace(job, model=config.model_type, task=None, labels=None), tuple(warnings)


def _usual_length(job: Job, config: Config) -> int:
    try:
        return int(sizes_of(resolve(job).data, config).seq)
    except (InputError, UnsupportedError):
        return DEFAULT_SEQ


def _other_versions(said: Job) -> list[str]:
    """Versions that the job asks for and that are not the installed ones, which decide a trace."""
    found = []
    for name, asked in (("torch", said.torch_version), ("transformers", said.transformers_version)):
        default = FIELDS[f"{name}_version"].default
        here = version(name)
        if asked != default and not here.startswith(asked):
            found.append(
                f"{name} {asked} was asked for, but {name} {here} is installed and ran the step"
            )
    return found


def versions_here() -> dict[str, str]:
    """Of the libraries that decide a trace."""
    found = {}
    for name in DECIDING:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
