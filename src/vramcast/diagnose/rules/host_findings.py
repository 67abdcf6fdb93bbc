"""Facts about host memory, about other libraries, and about errors that hide an out-of-memory error.

In: any Observation. Out: Findings. Each rule is a small function. None of them knows about models or jobs.
"""

from __future__ import annotations

from collections.abc import Sequence

from vramcast.diagnose.observation import Observation, ProcessUse
from vramcast.diagnose.readers.cuda_libraries import BARE, OTHER_RUNTIME
from vramcast.diagnose.readers.host import (
    ARRAY,
    FILE_GONE,
    NO_HOST_MEMORY,
    NOT_OPENED,
    OPEN_FILES,
    PAGE_FILE,
    SHM_BUS_ERROR,
    SHM_FULL,
)
from vramcast.diagnose.readers.killed import BY_CGROUP, WHOLE_MACHINE, WORKER
from vramcast.diagnose.readers.nvidia_smi import NOBODY_LISTED
from vramcast.diagnose.readers.xla import NOT_A_FAILURE, OUTSIDE_POOL
from vramcast.diagnose.rules.findings import Finding, fact
from vramcast.diagnose.rules.processes import BARE_CONTEXT_MAX_BYTES
from vramcast.units import MiB


def killed(observation: Observation) -> Finding | None:
    """SIGKILL without a message comes from the host: CUDA raises an exception, it does not kill."""
    if observation.kind != "host_oom_kill":
        return None
    if BY_CGROUP in observation.marks:
        return fact("killed_by_limit")
    if WHOLE_MACHINE in observation.marks:
        return fact("killed_by_machine")
    if WORKER in observation.marks:
        return fact("killed_worker")
    return fact("killed")


def killed_holding(observation: Observation) -> Finding | None:
    if observation.kind != "host_oom_kill" or observation.process_bytes is None:
        return None
    return fact("killed_holding", process_bytes=observation.process_bytes)


def host_limit(observation: Observation) -> Finding | None:
    if observation.kind != "host_oom_kill":
        return None
    limit = observation.allowed_bytes or observation.capacity_bytes
    if observation.used_bytes is None or limit is None:
        return None
    return fact("host_limit", used_bytes=observation.used_bytes, limit_bytes=limit)


SMALL_BYTES = 64 * MiB  # no machine lacks so little: it was full before


def host_allocation(observation: Observation) -> Finding | None:
    if observation.kind == "host_told":
        return fact("host_told")
    if observation.kind != "host_alloc_fail":
        return None
    if PAGE_FILE in observation.marks:
        return fact("page_file")
    if observation.requested_bytes is None:
        return fact("host_allocation_unknown")
    rule = "array_allocation" if ARRAY in observation.marks else "host_allocation"
    if observation.requested_bytes < SMALL_BYTES:
        rule = "small_allocation"
    return fact(rule, requested_bytes=observation.requested_bytes)


def ended(observation: Observation) -> Finding | None:
    """A signal from outside: a closed terminal, a person, a scheduler."""
    if observation.kind != "ended":
        return None
    return fact("ended", signal=observation.marks[0])


def crashed(observation: Observation) -> Finding | None:
    """Native code that crashed; memory that runs out raises an error or ends in SIGKILL."""
    if observation.kind != "crashed":
        return None
    return fact("crashed", signal=observation.marks[0])


def open_files(observation: Observation) -> Finding | None:
    return fact("open_files") if observation.kind == "files" else None


def worker_gone(observation: Observation) -> Finding | None:
    """A DataLoader worker that ended without saying why."""
    return fact("worker_gone") if observation.kind == "worker_gone" else None


def kernel_gone(observation: Observation) -> Finding | None:
    return fact("kernel_gone") if observation.kind == "kernel_gone" else None


def no_batch_fits(observation: Observation) -> Finding | None:
    return fact("no_batch_fits") if observation.kind == "no_batch_fits" else None


_NOT_CAPACITY = {
    "on-chip memory": "on_chip_memory",
    "illegal access": "illegal_access",
    "disk": "disk_full",
}


def not_capacity(observation: Observation) -> Finding | None:
    """What sounds like memory and is not the memory of a card or of the host."""
    if observation.kind != "not_capacity":
        return None
    return fact(_NOT_CAPACITY[observation.marks[0]])


def weights_offloaded(observation: Observation) -> Finding | None:
    """accelerate put part of the weights elsewhere, because the cards have no room for all of them."""
    return fact("weights_offloaded") if observation.kind == "weights_offloaded" else None


# Reasons why a shared file is refused that have nothing to do with the size of /dev/shm.
_OTHER_REASONS = {
    OPEN_FILES: "open_files",
    FILE_GONE: "shared_file_gone",
    NO_HOST_MEMORY: "host_allocation_unknown",
}


def shared_memory(observation: Observation) -> Finding | None:
    """/dev/shm is too small, unless the system gives another reason."""
    if observation.kind != "host_shm":
        return None
    is_about_size = SHM_FULL in observation.marks or SHM_BUS_ERROR in observation.marks
    others = [rule for reason, rule in _OTHER_REASONS.items() if reason in observation.marks]
    if not is_about_size and not others and NOT_OPENED in observation.marks:
        return fact("shared_file_not_opened")
    if is_about_size or not others:
        return fact("shared_memory")
    return fact(others[0])


def masked(observation: Observation) -> Finding | None:
    """An error of a CUDA library whose cause is often that the card was full."""
    if observation.kind != "masked_oom":
        return None
    name = next(iter(observation.marks), "")
    if name == "NCCL":
        return fact("masked_nccl")
    names_memory = "ALLOC" in name or name.endswith("MEMORY_ERROR")
    return fact("masked" if names_memory else "masked_uncertain", name=name)


def runtime_error(observation: Observation) -> Finding | None:
    """PyTorch's own allocator says more than this: another library, or the context itself, found no room."""
    if observation.kind != "cuda_runtime_oom" or OTHER_RUNTIME in observation.marks:
        return None
    return fact("runtime_error_bare" if BARE in observation.marks else "runtime_error")


def not_a_failure(observation: Observation) -> Finding | None:
    return fact("not_a_failure") if NOT_A_FAILURE in observation.marks else None


def compile_time(observation: Observation) -> Finding | None:
    """XLA for TPU refuses a program while compiling it if the program alone is too large."""
    need, capacity = observation.requested_bytes, observation.capacity_bytes
    if observation.kind != "jax_tpu_oom" or need is None or capacity is None:
        return None
    if need <= capacity:  # refused while running, because of buffers of other programs
        return None
    return fact("compile_time", requested_bytes=need, capacity_bytes=capacity)


def vllm_share(observation: Observation) -> Finding | None:
    """vLLM takes a share of the whole card, whatever else is on it."""
    share = observation.figure("gpu_memory_utilization")
    if observation.kind != "vllm_startup" or share is None:
        return None
    wanted, free = observation.requested_bytes, observation.free_bytes
    total = observation.capacity_bytes
    if wanted is None or free is None or total is None:
        return None
    return fact(
        "vllm_share",
        wanted_bytes=wanted,
        free_bytes=free,
        used_bytes=max(0, total - free),
        share=float(share),
    )


def vllm_no_room(observation: Observation) -> Finding | None:
    """Weights and activations filled the share before the first cache block was allocated."""
    if observation.kind not in ("vllm_startup", "sglang_startup"):
        return None
    if not observation.is_failure() or observation.free_bytes is not None:
        return None
    if observation.figure("dummy requests") is not None:
        return fact("vllm_warm_up")
    return fact("vllm_no_room")


def xla_need(observation: Observation) -> Finding | None:
    """What the whole XLA program needs, and the largest part of it."""
    total = observation.figure("total allocation")
    if observation.kind != "jax_gpu_oom" or total is None:
        return None
    allocations = [item for item in observation.figures if item.label.endswith(" allocation")]
    parts = [item for item in allocations if not item.label.startswith("total")]
    if not parts:
        return None
    largest = max(parts, key=lambda item: item.value)
    return fact(
        "xla_need", total_bytes=int(total), part=largest.label, part_bytes=int(largest.value)
    )


def tensor_shape(observation: Observation) -> Finding | None:
    if observation.kind != "tf_oom" or observation.requested_bytes is None:
        return None
    sides = [item.value for item in observation.figures if item.label.startswith("shape[")]
    shape = "×".join(str(side) for side in sides)
    return fact("tensor_shape", requested_bytes=observation.requested_bytes, shape=shape)


def snapshot(observation: Observation) -> Finding | None:
    return fact("snapshot") if "snapshot" in observation.marks else None


def retries(observation: Observation) -> Finding | None:
    """PyTorch had to empty its cache to go on."""
    count = observation.figure("cudaMalloc retries")
    return fact("retries", count=int(count)) if count else None


def windows_driver(observation: Observation) -> Finding | None:
    return fact("windows_driver") if "wddm" in observation.marks else None


def unified_memory(observation: Observation) -> Finding | None:
    return fact("unified_memory") if "unified memory" in observation.marks else None


def stray_contexts(observation: Observation) -> Finding | None:
    """Several processes of the program that uses this card hold only a CUDA context here: ranks of other cards."""
    named = [use for use in observation.other_processes or () if use.name]
    contexts = _bare_contexts(named)
    is_one_program = len({use.name for use in named}) == 1
    is_in_use = len(contexts) < len(named)
    if len(contexts) < 2 or not is_one_program or not is_in_use or observation.place is None:
        return None
    return fact(
        "stray_contexts",
        count=len(contexts),
        total_bytes=sum(contexts),
        place=observation.place,
    )


def _bare_contexts(processes: Sequence[ProcessUse]) -> list[int]:
    sizes = [use.nbytes for use in processes if use.nbytes is not None]
    return [nbytes for nbytes in sizes if nbytes <= BARE_CONTEXT_MAX_BYTES]


def outside_jax_pool(observation: Observation) -> Finding | None:
    return fact("outside_jax_pool") if OUTSIDE_POOL in observation.marks else None


# What nvidia-smi prints in place of a name that it can no longer ask for.
_NAMELESS = ("unknown error", "[not found]")


def dead_process(observation: Observation) -> Finding | None:
    """A process that has ended and whose memory was not released."""
    dead = [
        use for use in observation.other_processes or () if use.name.strip().lower() in _NAMELESS
    ]
    if not dead:
        return None
    pids = ", ".join(str(use.pid) for use in dead[:8])
    return fact("dead_process", pids=pids, total_bytes=sum(use.nbytes or 0 for use in dead))


def nobody_listed(observation: Observation) -> Finding | None:
    """nvidia-smi shows memory in use but no process: one it cannot see, or a dead one whose memory was "
    "not released."""
    if NOBODY_LISTED not in observation.marks or observation.place is None:
        return None
    used = observation.used_bytes or 0
    if used <= BARE_CONTEXT_MAX_BYTES:
        return None
    return fact("nobody_listed", used_bytes=used, place=observation.place)


# Rules for every observation, in the order in which a report prints their findings.
OBSERVATION_RULES = (
    killed,
    killed_holding,
    host_limit,
    host_allocation,
    shared_memory,
    open_files,
    worker_gone,
    ended,
    crashed,
    weights_offloaded,
    kernel_gone,
    no_batch_fits,
    not_capacity,
    masked,
    runtime_error,
    not_a_failure,
    compile_time,
    vllm_share,
    vllm_no_room,
    xla_need,
    tensor_shape,
    snapshot,
    retries,
    windows_driver,
    unified_memory,
    stray_contexts,
    nobody_listed,
    dead_process,
    outside_jax_pool,
)
