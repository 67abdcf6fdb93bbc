"""The tensors that a job requests, phase by phase: what a refused request can have been.

In: a Job. Out: Tensors with their shapes and the phases that request them. Layers of one kind are listed once.
Gradients have the shape of what they belong to; of the workspaces of fused kernels only the size is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod

from vramcast.diagnose.job_gap.fingerprint import Candidate, Match, match_request
from vramcast.diagnose.job_gap.job_facts import record_program
from vramcast.diagnose.observation import Observation
from vramcast.diagnose.rules.evidence import BACKWARDS, FORWARDS, STEPS
from vramcast.job import Job
from vramcast.ledger import EVAL, LOAD, ROLLOUT
from vramcast.models.record.program import Program
from vramcast.models.record.tape import Op, Param, Section, Value
from vramcast.setup import resolve
from vramcast.units import MiB

FORWARD_PASSES = (*FORWARDS, EVAL, ROLLOUT)
ALL_PASSES = (*FORWARD_PASSES, *BACKWARDS)
# Smaller requests come from shared segments, which any small tensor fits.
TELLING_BYTES = 20 * MiB
# A sequence length that is inferred from a request is at most so many times the described one.
MAX_TIMES_LONGER = 256
# Strategies that keep all parameters of a block in one flat tensor.
FLAT_STRATEGIES = ("fsdp1", "zero3")


@dataclass(frozen=True, slots=True)
class Tensor:
    """A candidate, and the phases in which it is requested."""

    candidate: Candidate
    phases: tuple[str, ...]


def tensors_of(job: Job) -> tuple[Tensor, ...]:
    """Every distinct tensor; none for a model of which only the parameters are known."""
    program = record_program(job)
    if program is None:
        return ()
    found: dict[Tensor, None] = {}
    for section in _distinct_sections(program):
        found.update(dict.fromkeys(_tensors_of_section(section, job)))
    return tuple(found)


def matches_of(
    observation: Observation, tensors: tuple[Tensor, ...], phase: str
) -> tuple[Match, ...]:
    """The tensors of this phase that the request can have been."""
    candidates = [tensor.candidate for tensor in tensors if phase in tensor.phases]
    return match_request(observation, candidates)


def has_logits(matches: Iterable[Match]) -> bool:
    return any(_is_logits(match.candidate) for match in matches)


def has_attention_scores(matches: Iterable[Match]) -> bool:
    names = [match.candidate.name for match in matches]
    return any(word in name for name in names for word in ("score", "softmax", "attention"))


def _is_logits(candidate: Candidate) -> bool:
    return "logits" in candidate.name


def lengths_of(observation: Observation, job: Job) -> tuple[int, ...]:
    """Longer sequences at which the request would have been the logits or the attention scores."""
    described, requested = job.longest_seq or job.seq, observation.requested_bytes
    if described is None or requested is None or not is_telling(observation):
        return ()
    lengths: dict[int, None] = {}
    for tensor in tensors_of(replace(job, attention="eager")):
        power = _power_of_length(tensor.candidate, described)
        if power is not None:
            times_larger = requested / tensor.candidate.nbytes
            length = round(described * times_larger ** (1 / power))
            lengths[length] = None
    return tuple(length for length in lengths if described < length <= MAX_TIMES_LONGER * described)


def _power_of_length(candidate: Candidate, seq: int) -> int | None:
    """With which power of the sequence length the tensor grows; None for tensors other than scores and logits."""
    if len(candidate.shape) == 4 and candidate.shape[-2:] == (seq, seq):
        return 2
    return 1 if _is_logits(candidate) else None


def is_telling(observation: Observation) -> bool:
    return (observation.requested_bytes or 0) > TELLING_BYTES


def _distinct_sections(program: Program) -> list[Section]:
    """Layers of one kind share one Section object."""
    return list({id(placed.section): placed.section for placed in program.sections}.values())


def _tensors_of_section(section: Section, job: Job) -> Iterator[Tensor]:
    for op in section.ops:
        yield from _tensors_of_op(op)
    for param in section.params:
        yield from _tensors_of_param(param, job)
    if job.gpus > 1 and job.strategy in FLAT_STRATEGIES:
        yield from _flat_tensors(section, job)


def _tensors_of_op(op: Op) -> Iterator[Tensor]:
    for value in (op.output, *op.saved):
        is_new = value.param is None and value.copy_of is None
        if is_new:
            yield from _tensors_of_value(value, op)
    forward, backward = int(op.forward_temp_bytes), int(op.backward_temp_bytes)
    if forward:
        yield _tensor(f"{op.name} workspace", (forward,), 1, FORWARD_PASSES)
    if backward:
        yield _tensor(f"{op.name} workspace", (backward,), 1, BACKWARDS)


def _tensors_of_value(value: Value, op: Op) -> Iterator[Tensor]:
    name = f"{value.storage.label or op.name}, {value.dtype.name}"
    shape = tuple(int(side) for side in value.storage.shape)
    itemsize = value.dtype.nbytes
    # In backward too, because checkpointing runs the forward again.
    yield _tensor(name, shape, itemsize, ALL_PASSES)
    if value.requires_grad:
        yield _tensor(f"gradient of {name}", shape, itemsize, BACKWARDS)


def _tensors_of_param(param: Param, job: Job) -> Iterator[Tensor]:
    dtypes = resolve(job).precision
    name = _name_for_all_layers(param)
    shape = tuple(int(side) for side in param.shape)
    yield _tensor(f"{name}, {param.dtype.name}", shape, param.dtype.nbytes, (LOAD,))
    is_matrix = param.kind in ("linear", "head")
    if dtypes.autocast is not None and dtypes.autocast != param.dtype and is_matrix:
        copy = f"{dtypes.autocast.name} copy of {name}"
        yield _tensor(copy, shape, dtypes.autocast.nbytes, ALL_PASSES)
    if param.stored_bytes is not None:
        compute = dtypes.autocast or dtypes.weights
        yield _tensor(f"{name}, dequantised", shape, compute.nbytes, ALL_PASSES)
    if param.trainable:
        yield from _training_tensors_of_param(param, job)


def _training_tensors_of_param(param: Param, job: Job) -> Iterator[Tensor]:
    dtypes = resolve(job).precision
    name = _name_for_all_layers(param)
    shape = tuple(int(side) for side in param.shape)
    gradient = dtypes.gradients if dtypes.gradients != dtypes.weights else param.dtype
    yield _tensor(f"gradient of {name}, {gradient.name}", shape, gradient.nbytes, BACKWARDS)
    state = dtypes.states or param.dtype
    what = f"{resolve(job).optimizer.implementation} temporary or state of"
    yield _tensor(f"{what} {name}, {state.name}", shape, state.nbytes, STEPS)


def _flat_tensors(section: Section, job: Job) -> Iterator[Tensor]:
    """FSDP1 and ZeRO-3 handle all parameters of a block at once: gathered for the passes, one shard in the step."""
    numel = sum(prod(int(side) for side in param.shape) for param in section.params)
    if not numel:
        return
    dtypes = resolve(job).precision
    compute = dtypes.autocast or dtypes.weights
    gradients, state = dtypes.gradients, dtypes.states or dtypes.weights
    name = next(iter(section.params)).name.partition("{i}")[0] + "N"
    yield _tensor(
        f"gathered parameters of {name}, {compute.name}", (numel,), compute.nbytes, ALL_PASSES
    )
    yield _tensor(f"gradients of {name}, {gradients.name}", (numel,), gradients.nbytes, BACKWARDS)
    shard_numel = -(-numel // (job.shard_size or job.gpus))
    yield _tensor(
        f"temporary or state of a share of {name}, {state.name}",
        (shard_numel,),
        state.nbytes,
        STEPS,
    )


def _name_for_all_layers(param: Param) -> str:
    return param.name.replace("{i}", "N")


def _tensor(name: str, shape: tuple[int, ...], itemsize: int, phases: tuple[str, ...]) -> Tensor:
    return Tensor(Candidate(name=name, shape=shape, itemsize=itemsize), phases)
