"""The figures of one failure that every explanation must agree with.

In: a Reading. Out: Evidence about one failure on a device: what PyTorch had allocated, what it could have got, and in
which phases of a training step the failing code runs. Does not know any job.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from vramcast.allocator.constants import (
    DEFAULT_LARGE_SEGMENT_BYTES,
    SEGMENT_ROUNDING_BYTES,
    SMALL_REQUEST_MAX_BYTES,
    SMALL_SEGMENT_BYTES,
)
from vramcast.diagnose.observation import Observation, cached_bytes
from vramcast.diagnose.readers.frames import Frame
from vramcast.diagnose.readers.log import Reading
from vramcast.diagnose.rules.findings import limit_bytes
from vramcast.diagnose.rules.processes import process_bytes
from vramcast.ledger import (
    BACKWARD,
    EVAL,
    FORWARD,
    LOAD,
    LOSS,
    NEXT_BACKWARD,
    NEXT_FORWARD,
    NEXT_LOSS,
    NEXT_STEP,
    RESUME,
    ROLLOUT,
    SAVE,
    STEP,
)

# Failures in which the driver of a CUDA or ROCm device refused memory to PyTorch's allocator.
REFUSALS = (
    "torch_cuda_oom",
    "torch_hip_oom",
    "torch_cudamallocasync_oom",
    "snapshot_oom",
    "gpu_told",
)
FORWARDS = (FORWARD, LOSS, NEXT_FORWARD, NEXT_LOSS)
BACKWARDS = (BACKWARD, NEXT_BACKWARD)
STEPS = (STEP, NEXT_STEP)

# Lightning runs forward and backward inside optimizer.step, so only the innermost frames prove the optimizer.
STEP_DEPTH, USUAL_DEPTH = 2, 8


@dataclass(frozen=True, slots=True)
class PhaseCode:
    """Code that runs only in these phases, searched in the `depth` innermost frames."""

    phases: tuple[str, ...]
    pattern: str
    depth: int = USUAL_DEPTH


# The most reliable first.
PHASE_CODE = (
    PhaseCode(
        STEPS,
        r"_foreach_|_multi_tensor_|_single_tensor_|_init_group|torch/optim/|bitsandbytes/optim"
        r"|exp_avg",
        STEP_DEPTH,
    ),
    PhaseCode(
        BACKWARDS, r"_engine_run_backward|run_backward|loss\.backward\(|accelerator\.backward"
    ),
    PhaseCode((EVAL,), r"evaluation_loop|prediction_step|nested_concat|def evaluate|\bevaluate\b"),
    PhaseCode((ROLLOUT, EVAL), r"\bgenerate\b|_sample\b|beam_search"),
    PhaseCode((RESUME,), r"load_checkpoint|_load_optimizer|optimizer\.load_state_dict|resume_from"),
    PhaseCode(
        (SAVE,),
        r"save_checkpoint|save_pretrained|_save_model|optim_state_dict|_full_post_state_dict",
    ),
    PhaseCode(
        (LOAD,),
        r"from_pretrained|caching_allocator_warmup|model\.(?:to|cuda|half)\(|\b_apply\b|_move_model",
    ),
    PhaseCode(
        (*FORWARDS, EVAL),
        r"cross_entropy|logits|lm_head|\bforward\b|compute_loss|training_step|_call_impl",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One failure. None where the text does not say."""

    observation: Observation
    allocated_bytes: int | None  # just before the refused request: a lower bound of the need
    unallocated_bytes: int  # cached in pieces that were too small
    least_request_bytes: int  # the smallest tensor that the request can have been
    capacity_bytes: int | None
    outside_bytes: int | None  # of this process, outside PyTorch
    here_bytes: int | None  # reserved by PyTorch, plus what was still free at that moment
    phases: tuple[str, ...] | None  # in which the failing code runs
    code: str = ""  # the part of the failing code that tells the phases
    traces: tuple[str, ...] = ()  # the failing code, innermost first


def evidence_of(reading: Reading) -> Evidence | None:
    """None where no CUDA device refused memory to PyTorch."""
    failure = _failure_to_explain(reading)
    if failure is None:
        return None
    traces = traces_of(reading)
    phases, code = phases_of(traces)
    return Evidence(
        observation=failure,
        allocated_bytes=failure.allocated_bytes,
        unallocated_bytes=cached_bytes(failure) or 0,
        least_request_bytes=_least_request_bytes(failure),
        capacity_bytes=limit_bytes(failure),
        outside_bytes=_outside_bytes(failure),
        here_bytes=_here_bytes(failure),
        phases=phases,
        code=code,
        traces=traces,
    )


def _failure_to_explain(reading: Reading) -> Observation | None:
    """The first failure that says how much was allocated, otherwise the first one."""
    failures = [item for item in reading.observations if item.is_failure()]
    refusals = [item for item in failures if item.kind.startswith(REFUSALS)]
    telling = [item for item in refusals if item.allocated_bytes is not None]
    return next(iter(telling or refusals), None)


def _outside_bytes(failure: Observation) -> int | None:
    reserved, process = failure.reserved_bytes, process_bytes(failure)
    if reserved is None or process is None:
        return None
    return max(0, process - reserved)


def _here_bytes(failure: Observation) -> int | None:
    if failure.reserved_bytes is None or failure.free_bytes is None:
        return None
    return failure.reserved_bytes + failure.free_bytes


def _least_request_bytes(failure: Observation) -> int:
    """PyTorch prints the segment that it asked for: a segment of 20 MiB serves any tensor above 1 MiB."""
    requested = failure.requested_bytes or 0
    if requested == SMALL_SEGMENT_BYTES:
        return 1
    if requested == DEFAULT_LARGE_SEGMENT_BYTES:
        return SMALL_REQUEST_MAX_BYTES
    low, _ = failure.requested_range_bytes or (requested, requested)
    return max(0, low - SEGMENT_ROUNDING_BYTES)


def traces_of(reading: Reading) -> tuple[str, ...]:
    """Functions, files and source lines, innermost first; without frames, the lines before the message."""
    if reading.frames:
        return tuple(frame_text(frame) for frame in reversed(reading.frames))
    return tuple(reversed(reading.context))[1:]


def frame_text(frame: Frame) -> str:
    return f"{frame.function} {frame.file} {frame.source}"


def phases_of(traces: Sequence[str]) -> tuple[tuple[str, ...] | None, str]:
    """The phases in which the failing code runs, and the part of the code that tells; None if nothing tells."""
    for code in PHASE_CODE:
        for text in traces[: code.depth]:
            match = re.search(code.pattern, text)
            if match:
                return code.phases, match.group(0)
    return None, ""
