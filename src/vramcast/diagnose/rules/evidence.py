"""What a failure's numbers and frames allow: the figures an explanation must agree with.

In: a Reading. Out: Evidence about one failure on a device: what PyTorch held, what it could have had, and in which
phases of a training step the failing code runs. Does not know any job.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from vramcast.diagnose.observation import Observation, cached_bytes
from vramcast.diagnose.readers.log import Reading
from vramcast.diagnose.rules.findings import limit_bytes, process_bytes
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

# Kinds of failures in which PyTorch's own allocator on a CUDA or ROCm device was refused memory.
REFUSALS = ("torch_cuda_oom", "torch_hip_oom", "torch_cudamallocasync_oom", "snapshot_oom")
FORWARDS = (FORWARD, LOSS, NEXT_FORWARD, NEXT_LOSS)
BACKWARDS = (BACKWARD, NEXT_BACKWARD)
STEPS = (STEP, NEXT_STEP)

# Phases and the code that runs only in them, the surest first. `depth` innermost frames are searched: Lightning runs
# forward and backward inside optimizer.step, so only the innermost frames speak for the optimizer.
CODE: tuple[tuple[tuple[str, ...], int, str], ...] = (
    (STEPS, 2, r"_foreach_|_multi_tensor_|_single_tensor_|_init_group|torch/optim/|bitsandbytes/optim|exp_avg"),
    (BACKWARDS, 8, r"_engine_run_backward|run_backward|loss\.backward\(|accelerator\.backward"),
    ((EVAL,), 8, r"evaluation_loop|prediction_step|nested_concat|def evaluate|\bevaluate\b"),
    ((ROLLOUT, EVAL), 8, r"\bgenerate\b|_sample\b|beam_search"),
    ((RESUME,), 8, r"load_checkpoint|_load_optimizer|optimizer\.load_state_dict|resume_from"),
    ((SAVE,), 8, r"save_checkpoint|save_pretrained|_save_model|optim_state_dict|_full_post_state_dict"),
    ((LOAD,), 8, r"from_pretrained|caching_allocator_warmup|model\.(?:to|cuda|half)\(|\b_apply\b|_move_model"),
    ((*FORWARDS, EVAL), 8, r"cross_entropy|logits|lm_head|\bforward\b|compute_loss|training_step|_call_impl"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One failure. None where the text does not say."""

    observation: Observation
    allocated_bytes: int | None  # just before the refused request: a lower bound for the need
    unallocated_bytes: int  # cached in pieces that did not serve
    least_request_bytes: int  # what the tensor took at least
    capacity_bytes: int | None
    outside_bytes: int | None  # of this process, outside PyTorch
    here_bytes: int | None  # what PyTorch held and could still have got at that moment
    phases: tuple[str, ...] | None  # in which the failing code runs
    code: str = ""  # what says so
    traces: tuple[str, ...] = ()  # the failing code, innermost first


def evidence_of(reading: Reading) -> Evidence | None:
    """About the first failure on a CUDA device that says how much was allocated, or else the first at all."""
    failures = [item for item in reading.observations if item.is_failure() and item.kind.startswith(REFUSALS)]
    failure = next((item for item in failures if item.allocated_bytes is not None), next(iter(failures), None))
    if failure is None:
        return None
    reserved, process = failure.reserved_bytes, process_bytes(failure)
    traces = traces_of(reading)
    phases, code = phases_of(traces)
    return Evidence(
        observation=failure,
        allocated_bytes=failure.allocated_bytes,
        unallocated_bytes=cached_bytes(failure) or 0,
        least_request_bytes=_least(failure),
        capacity_bytes=limit_bytes(failure),
        outside_bytes=None if reserved is None or process is None else max(0, process - reserved),
        here_bytes=None if reserved is None or failure.free_bytes is None else reserved + failure.free_bytes,
        phases=phases,
        code=code,
        traces=traces,
    )


def _least(failure: Observation) -> int:
    """The smallest tensor behind the printed request: a segment of 20 MiB may have been for little over 1 MiB."""
    low, _ = failure.requested_range_bytes or (failure.requested_bytes or 0, 0)
    return {2 << 20: 1, 20 << 20: 1 << 20}.get(failure.requested_bytes or 0, max(0, low - (2 << 20)))


def traces_of(reading: Reading) -> tuple[str, ...]:
    """Functions, files and source lines, innermost first; for pastes without frames, the lines before the message."""
    frames = [f"{frame.function} {frame.file} {frame.source}" for frame in reversed(reading.frames)]
    return tuple(frames or list(reversed(reading.context))[1:])


def phases_of(traces: Sequence[str]) -> tuple[tuple[str, ...] | None, str]:
    """Where in a step the failing code runs, and the word that says so; None if it says nothing."""
    for phases, depth, pattern in CODE:
        for text in traces[:depth]:
            if match := re.search(pattern, text):
                return phases, match.group(0)
    return None, ""
