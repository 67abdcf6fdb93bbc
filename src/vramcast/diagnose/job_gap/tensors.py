"""The tensors a job asks for, phase by phase: what a refused request can have been.

In: a Job. Out: Candidates with their shapes, under the phases that make them. One layer stands for all of its kind.
Gradients have the shape of what they belong to; fused kernels' workspaces are known by size only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from vramcast.catalog.gpus import find_gpu
from vramcast.diagnose.job_gap.fingerprint import Candidate, Match, match_request
from vramcast.diagnose.observation import Observation
from vramcast.diagnose.rules.evidence import BACKWARDS, FORWARDS, STEPS
from vramcast.engine.lines.optimizers import implementation
from vramcast.engine.program import record_job
from vramcast.engine.recording.precision import RECIPES
from vramcast.engine.recording.record import sizes_of
from vramcast.errors import VramcastError
from vramcast.job import Job
from vramcast.ledger import EVAL, LOAD, ROLLOUT
from vramcast.models.read.model import read_model
from vramcast.models.record.program import Program
from vramcast.models.record.tape import Op, Param, Placed, Value

PASSES = (*FORWARDS, EVAL, ROLLOUT)
# Requests up to this size come out of shared segments: whatever was small fits them.
TELLING_BYTES = 20 << 20
MOST_TIMES_LONGER = 256
FLAT = ("fsdp1", "zero3")


@dataclass(frozen=True, slots=True)
class Tensor:
    """A candidate, and the phases in which it is asked for."""

    candidate: Candidate
    phases: tuple[str, ...]


def tensors_of(job: Job) -> tuple[Tensor, ...]:
    """Every distinct tensor; none for a model of which only a parameter count or table is known."""
    program = _program(job)
    if program is None:
        return ()
    found: dict[Tensor, None] = {}
    for place in {id(place.section): place for place in program.placed}.values():
        for op in place.section.ops:
            found.update(dict.fromkeys(_of_op(op)))
        for param in place.section.params:
            found.update(dict.fromkeys(_of_param(param, place, job)))
        if job.gpus > 1 and job.strategy in FLAT:
            found.update(dict.fromkeys(_flat(place, job)))
    return tuple(found)


def _flat(place: Placed, job: Job) -> Iterator[Tensor]:
    """FSDP1 and ZeRO-3 work on all parameters of a block at once: gathered for use, a share of them in the step."""
    recipe, numel = RECIPES[job.precision], sum(prod(int(n) for n in param.shape) for param in place.section.params)
    if not numel:
        return
    compute, state = recipe.autocast or recipe.weights, recipe.states or recipe.weights
    name = next(iter(place.section.params)).name.partition("{i}")[0] + "N"
    whole = (numel,)
    yield _tensor(f"gathered parameters of {name}, {compute.name}", whole, compute.nbytes, (*PASSES, *BACKWARDS))
    yield _tensor(f"gradients of {name}, {recipe.gradients.name}", whole, recipe.gradients.nbytes, BACKWARDS)
    share = (-(-numel // (job.shard_size or job.gpus)),)
    yield _tensor(f"temporary or state of a share of {name}, {state.name}", share, state.nbytes, STEPS)


def matches_of(observation: Observation, tensors: tuple[Tensor, ...], phase: str) -> tuple[Match, ...]:
    """What the request was in this phase, if it tells at all."""
    return match_request(observation, [tensor.candidate for tensor in tensors if phase in tensor.phases])


def lengths_of(observation: Observation, job: Job) -> tuple[int, ...]:
    """Sequence lengths under which the request would have been the logits or the attention scores."""
    length, asked = job.longest_seq or job.seq, observation.requested_bytes
    if length is None or asked is None or not is_telling(observation):
        return ()
    lengths: dict[int, None] = {}
    for tensor in tensors_of(replace(job, attention="eager")):
        shape = tensor.candidate.shape
        squared = len(shape) == 4 and shape[-2:] == (length, length)
        if squared or "logits" in tensor.candidate.name:
            lengths[round(length * (asked / tensor.candidate.nbytes) ** (0.5 if squared else 1))] = None
    return tuple(found for found in lengths if MOST_TIMES_LONGER * length >= found > length)


def is_telling(observation: Observation) -> bool:
    return (observation.requested_bytes or 0) > TELLING_BYTES


def _program(job: Job) -> Program | None:
    try:
        config = read_model(job.model).config if job.model else None
        if config is None:
            return None
        return record_job(job, config, find_gpu(job.gpu) if job.gpu else None, sizes_of(job, config))
    except VramcastError:
        return None


def _of_op(op: Op) -> Iterator[Tensor]:
    for value in (op.output, *op.saved):
        if value.param is None and value.copy_of is None:
            yield from _of_value(value, op)
    for nbytes, phases in ((op.forward_temp_bytes, PASSES), (op.backward_temp_bytes, BACKWARDS)):
        if int(nbytes):
            yield _tensor(f"{op.name} workspace", (int(nbytes),), 1, phases)


def _of_value(value: Value, op: Op) -> Iterator[Tensor]:
    shape, size = tuple(int(n) for n in value.storage.shape), value.dtype.nbytes
    name = f"{value.storage.label or op.name}, {value.dtype.name}"
    yield _tensor(name, shape, size, (*PASSES, *BACKWARDS))  # backward too: checkpointing runs the forward again
    if value.requires_grad:
        yield _tensor(f"gradient of {name}", shape, size, BACKWARDS)


def _of_param(param: Param, place: Placed, job: Job) -> Iterator[Tensor]:
    recipe, shape = RECIPES[job.precision], tuple(int(n) for n in param.shape)
    name = param.name.replace("{i}", "N")
    yield _tensor(f"{name}, {param.dtype.name}", shape, param.dtype.nbytes, (LOAD,))
    if recipe.autocast is not None and recipe.autocast != param.dtype and param.kind in ("linear", "head"):
        copied = f"{recipe.autocast.name} copy of {name}"
        yield _tensor(copied, shape, recipe.autocast.nbytes, (*PASSES, *BACKWARDS))
    if param.stored_bytes is not None:
        yield _tensor(f"{name}, dequantised", shape, (recipe.autocast or recipe.weights).nbytes, (*PASSES, *BACKWARDS))
    if not param.trainable:
        return
    gradient = recipe.gradients if recipe.gradients != recipe.weights else param.dtype
    yield _tensor(f"gradient of {name}, {gradient.name}", shape, gradient.nbytes, BACKWARDS)
    state = recipe.states or param.dtype
    what = f"{implementation(job)} temporary or state of"
    yield _tensor(f"{what} {name}, {state.name}", shape, state.nbytes, STEPS)


def _tensor(name: str, shape: tuple[int, ...], itemsize: int, phases: tuple[str, ...]) -> Tensor:
    return Tensor(Candidate(name=name, shape=shape, itemsize=itemsize), phases)
