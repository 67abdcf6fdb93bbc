"""Facts about host memory, about errors that hide an out-of-memory, and about the log as a whole.

In: a Reading. Out: Findings. Rules over one observation first, rules over all of them after.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from vramcast.diagnose.observation import Moment, Observation
from vramcast.diagnose.readers.log import Reading
from vramcast.diagnose.readers.nvidia_smi import NOBODY_LISTED
from vramcast.diagnose.readers.xla import OUTSIDE_POOL
from vramcast.diagnose.rules.findings import BARE_CONTEXT_MAX_BYTES, DEVICE_RULES, Finding, fact

STEPS_THAT_SETTLE = 10  # after so many steps gradients, optimizer states and caches are there
LEAST_PEAKS = 10  # readings of a peak before its growth counts as growth


def killed(observation: Observation) -> Finding | None:
    """SIGKILL without a message is the host's doing; CUDA raises, it does not kill."""
    if observation.kind != "host_oom_kill":
        return None
    if "memcg" in observation.marks:
        return fact("killed_by_limit")
    return fact("killed_by_machine" if "whole machine" in observation.marks else "killed")


def killed_holding(observation: Observation) -> Finding | None:
    if observation.kind != "host_oom_kill" or observation.process_bytes is None:
        return None
    return fact("killed_holding", process_bytes=observation.process_bytes)


def host_limit(observation: Observation) -> Finding | None:
    limit = observation.allowed_bytes or observation.capacity_bytes
    if observation.kind != "host_oom_kill" or observation.used_bytes is None or limit is None:
        return None
    return fact("host_limit", used_bytes=observation.used_bytes, limit_bytes=limit)


def host_allocation(observation: Observation) -> Finding | None:
    if observation.kind != "host_alloc_fail":
        return None
    if observation.requested_bytes is None:
        return fact("host_allocation_unknown")
    return fact("host_allocation", requested_bytes=observation.requested_bytes)


def shared_memory(observation: Observation) -> Finding | None:
    return fact("shared_memory") if observation.kind == "host_shm" else None


def masked(observation: Observation) -> Finding | None:
    if observation.kind != "masked_oom":
        return None
    name = next(iter(observation.marks), "")
    if name == "NCCL":
        return fact("masked_nccl")
    return fact("masked" if "ALLOC" in name or name.endswith("MEMORY_ERROR") else "masked_uncertain", name=name)


def runtime_error(observation: Observation) -> Finding | None:
    return fact("runtime_error") if observation.kind == "cuda_runtime_oom" else None


def not_a_failure(observation: Observation) -> Finding | None:
    return fact("not_a_failure") if "not a failure" in observation.marks else None


def compile_time(observation: Observation) -> Finding | None:
    if observation.kind != "jax_tpu_oom" or observation.requested_bytes is None or observation.capacity_bytes is None:
        return None
    need, room = observation.requested_bytes, observation.capacity_bytes
    if need <= room:  # refused while running, with other programs' buffers beside it
        return None
    return fact("compile_time", requested_bytes=need, capacity_bytes=room)


def vllm_share(observation: Observation) -> Finding | None:
    """vLLM takes a share of the whole card, whatever else is on it."""
    known = (observation.requested_bytes, observation.free_bytes, observation.capacity_bytes)
    share = observation.figure("gpu_memory_utilization")
    if observation.kind != "vllm_startup" or share is None or None in known:
        return None
    wanted, free, total = (size or 0 for size in known)
    return fact("vllm_share", wanted_bytes=wanted, free_bytes=free, used_bytes=max(0, total - free), share=float(share))


def vllm_no_room(observation: Observation) -> Finding | None:
    """Weights and activations filled the share before a single cache block was made."""
    engines = ("vllm_startup", "sglang_startup")
    if observation.kind not in engines or not observation.is_failure() or observation.free_bytes is not None:
        return None
    return fact("vllm_no_room")


def xla_need(observation: Observation) -> Finding | None:
    total = observation.figure("total allocation")
    if observation.kind != "jax_gpu_oom" or total is None:
        return None
    parts = [
        item
        for item in observation.figures
        if item.label.endswith(" allocation") and not item.label.startswith("total")
    ]
    largest = max(parts, key=lambda item: item.value, default=None)
    if largest is None:
        return None
    return fact("xla_need", total_bytes=int(total), part=largest.label, part_bytes=int(largest.value))


def tensor_shape(observation: Observation) -> Finding | None:
    if observation.kind != "tf_oom" or observation.requested_bytes is None:
        return None
    shape = "×".join(str(figure.value) for figure in observation.figures if figure.label.startswith("shape["))
    return fact("tensor_shape", requested_bytes=observation.requested_bytes, shape=shape)


def snapshot(observation: Observation) -> Finding | None:
    return fact("snapshot") if "snapshot" in observation.marks else None


def retries(observation: Observation) -> Finding | None:
    count = observation.figure("cudaMalloc retries")
    return fact("retries", count=int(count)) if count else None


def windows_driver(observation: Observation) -> Finding | None:
    return fact("windows_driver") if "wddm" in observation.marks else None


def unified_memory(observation: Observation) -> Finding | None:
    return fact("unified_memory") if "unified memory" in observation.marks else None


def stray_contexts(observation: Observation) -> Finding | None:
    """Processes of one program that hold nothing but a context here: ranks that belong on other cards."""
    uses = [use for use in observation.other_processes or () if use.name]
    names = {use.name for use in uses}
    bare = [use for use in uses if use.nbytes is not None and use.nbytes <= BARE_CONTEXT_MAX_BYTES]
    if len(bare) < 2 or len(names) != 1 or len(bare) == len(uses) or observation.place is None:
        return None
    total = sum(use.nbytes or 0 for use in bare)
    return fact("stray_contexts", count=len(bare), total_bytes=total, place=observation.place)


def outside_jax_pool(observation: Observation) -> Finding | None:
    return fact("outside_jax_pool") if OUTSIDE_POOL in observation.marks else None


def nobody_listed(observation: Observation) -> Finding | None:
    """nvidia-smi shows memory in use and no process: somebody it cannot see, or one that died without letting go."""
    used = observation.used_bytes or 0
    if NOBODY_LISTED not in observation.marks or used <= BARE_CONTEXT_MAX_BYTES or observation.place is None:
        return None
    return fact("nobody_listed", used_bytes=used, place=observation.place)


ANY_RULES = (
    killed, killed_holding, host_limit, host_allocation, shared_memory, masked, runtime_error, not_a_failure,
    compile_time, vllm_share, vllm_no_room, xla_need, tensor_shape, snapshot, retries, windows_driver, unified_memory,
    stray_contexts, nobody_listed, outside_jax_pool,
)  # fmt: skip


def host_before_the_end(reading: Reading) -> Finding | None:
    """The last host reading before a kill, and the size of the machine that its percentage implies."""
    if not any(item.kind == "host_oom_kill" for item in reading.observations):
        return None
    shares = [(item.used_bytes, item.figure("percent")) for item in reading.observations if item.place == "host"]
    known = [(used, share) for used, share in shares if used is not None and share]
    if not known:
        return None
    used, share = known[-1]
    return fact("host_before_the_end", used_bytes=used, total_bytes=round(used / (share / 100)))


def failing_ranks(reading: Reading) -> Finding | None:
    ranks = sorted({item.rank for item in reading.observations if item.is_failure() and item.rank is not None})
    if len(ranks) < 2:
        return None
    return fact("failing_ranks", count=len(ranks), ranks=", ".join(map(str, ranks[:16])))


def theory_only(reading: Reading) -> Finding | None:
    """Another tool's estimate was printed; what was measured beside it is higher."""
    theory = any(item.moment is Moment.THEORY and item.kind == "deepspeed_estimator" for item in reading.observations)
    return fact("theory_only") if theory else None


def growing(reading: Reading) -> Finding | None:
    """The same counter, read again and again, never came down and ended well above where it began."""
    series = [
        item.allocated_bytes for item in reading.observations
        if item.moment is Moment.NOW and not item.is_host() and item.allocated_bytes is not None
    ]  # fmt: skip
    settled = series[len(series) // 4 :]
    if len(settled) < 5 or any(later < earlier for earlier, later in pairwise(settled)):
        return None
    if settled[-1] < settled[0] * 1.1:
        return None
    return fact("growing", count=len(settled), first_bytes=settled[0], last_bytes=settled[-1])


def peak_growing(reading: Reading) -> Finding | None:
    """A peak settles after a few steps; one that is higher at every reading grows with the steps."""
    peaks = [
        item.peak_allocated_bytes or item.allocated_bytes or 0 for item in reading.observations
        if item.moment is Moment.PEAK and not item.is_host()
    ]  # fmt: skip
    if len(peaks) < LEAST_PEAKS or any(later <= earlier for earlier, later in pairwise(peaks)):
        return None
    return fact("growing", count=len(peaks), first_bytes=peaks[0], last_bytes=peaks[-1])


def ran_before(reading: Reading) -> Finding | None:
    """A need that is the same at every step shows in the first ones."""
    if reading.progress is None or reading.progress < STEPS_THAT_SETTLE:
        return None
    return fact("ran_before", count=reading.progress)


def highest(reading: Reading) -> Finding | None:
    """The most that any counter in the log showed, when nothing in it failed."""
    if any(item.is_failure() for item in reading.observations):
        return None
    levels = ("peak_reserved_bytes", "reserved_bytes", "peak_allocated_bytes", "allocated_bytes")
    for level in levels:
        sizes = [getattr(item, level) for item in reading.observations if not item.is_host()]
        known = [size for size in sizes if size is not None]
        if known:
            return fact("highest", level="reserved" if "reserved" in level else "allocated", size_bytes=max(known))
    return None


READING_RULES = (highest, host_before_the_end, failing_ranks, theory_only, growing, peak_growing, ran_before)


def find(reading: Reading) -> tuple[Finding, ...]:
    """Everything the numbers say, in the order of the log; what concerns the whole log comes last."""
    found: list[Finding] = []
    for index, observation in enumerate(reading.observations):
        rules = DEVICE_RULES if observation.is_failure() and not observation.is_host() else ()
        results = [rule(observation) for rule in (*rules, *ANY_RULES)]
        found += [replace(result, observation=index) for result in results if result is not None]
    found += [result for rule in READING_RULES if (result := rule(reading)) is not None]
    return tuple(found)
