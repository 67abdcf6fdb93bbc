"""Facts that follow from one failure's numbers alone: whose memory it was, and whether the printed hint can help.

In: an Observation of a device running out. Out: Findings. Each rule is a small function; none knows about models or
jobs, and none guesses: where the text leaves a number out, the rule that needs it stays silent.
"""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.allocator.constants import DEFAULT_LARGE_SEGMENT_BYTES, SMALL_SEGMENT_BYTES
from vramcast.diagnose.observation import Observation, ProcessUse, cached_bytes, outside_bytes
from vramcast.units import GiB, MiB

# Printed figures have two decimals: differences below this are rounding.
ROUNDING_BYTES = 32 * MiB
# The largest part outside PyTorch seen in a training process: 1.86 GiB (H20, 8 GPUs, huggingface/trl#2776).
LIBRARIES_MAX_BYTES = 2 * GiB
# A CUDA context alone, on the cards people published: 222 to 871 MiB.
BARE_CONTEXT_MAX_BYTES = 1 * GiB
# MI355X as CUDA-level tools report it (pytorch/pytorch#175431); the largest single device in the catalog.
LARGEST_CARD_BYTES = 288 * GiB
# The driver rounds and keeps a little back, so a few MiB "free" beyond the request prove nothing.
DRIVER_MARGIN_BYTES = 256 * MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A fact, by name, with the numbers it rests on. The words are made elsewhere."""

    rule: str
    values: tuple[tuple[str, int | float | str], ...] = ()
    observation: int | None = None  # which of the reading's observations it is about


def fact(rule: str, **values: int | float | str) -> Finding:
    return Finding(rule=rule, values=tuple(values.items()))


def limit_bytes(oom: Observation) -> int | None:
    """What this process may hold: the cap where one was printed, else the card."""
    limits = [size for size in (oom.allowed_bytes, oom.capacity_bytes) if size is not None]
    return min(limits, default=None)


def own_process(oom: Observation) -> ProcessUse | None:
    """The listed process that must be this one: no `this process` clause, yet one holds what PyTorch reserved.

    NVML reports host process ids, so in a container PyTorch does not recognise its own."""
    if oom.process_bytes is not None or oom.reserved_bytes is None or not oom.other_processes:
        return None
    large_enough = [
        use
        for use in oom.other_processes
        if use.nbytes is not None and use.nbytes >= oom.reserved_bytes - ROUNDING_BYTES
    ]
    return min(large_enough, key=lambda use: use.nbytes or 0, default=None)


def process_bytes(oom: Observation) -> int | None:
    own = own_process(oom)
    return own.nbytes if own else oom.process_bytes


def neighbours(oom: Observation) -> tuple[ProcessUse, ...]:
    own = own_process(oom)
    return tuple(use for use in oom.other_processes or () if use is not own)


def neighbour_bytes(oom: Observation) -> int:
    return sum(use.nbytes or 0 for use in neighbours(oom))


def room_bytes(oom: Observation) -> int | None:
    """What one request could get if PyTorch's whole cache were in one piece with what the driver has left."""
    unallocated = cached_bytes(oom)
    if oom.free_bytes is None or unallocated is None:
        return None
    free = oom.free_bytes
    if oom.allowed_bytes is not None and oom.reserved_bytes is not None:
        free = min(free, max(0, oom.allowed_bytes - oom.reserved_bytes))
    return free + unallocated


def request_larger_than_card(oom: Observation) -> Finding | None:
    limit = limit_bytes(oom)
    if oom.requested_bytes is None or limit is None or oom.requested_bytes <= limit or not _is_one_tensor(oom):
        return None
    return fact("request_larger_than_card", requested_bytes=oom.requested_bytes, limit_bytes=limit)


def request_larger_than_any_card(oom: Observation) -> Finding | None:
    """The message was cut before the card's size, but no card has this much."""
    if oom.requested_bytes is None or limit_bytes(oom) is not None or not _is_one_tensor(oom):
        return None
    if oom.requested_bytes <= LARGEST_CARD_BYTES:
        return None
    return fact("request_larger_than_any_card", requested_bytes=oom.requested_bytes, limit_bytes=LARGEST_CARD_BYTES)


def _is_one_tensor(oom: Observation) -> bool:
    """XLA for TPU prints what the whole program needs, vLLM the share it wants; others print one request."""
    return oom.kind not in ("jax_tpu_oom", "vllm_startup")


def one_large_tensor(oom: Observation) -> Finding | None:
    """A single request for an eighth of the card or more: logits, attention scores, a gathered output."""
    limit = limit_bytes(oom)
    if oom.requested_bytes is None or limit is None or not _is_one_tensor(oom):
        return None
    if not limit <= oom.requested_bytes * 8 <= limit * 8:
        return None
    return fact("one_large_tensor", requested_bytes=oom.requested_bytes, elements=f"{oom.requested_bytes // 4:,}")


def as_much_again(oom: Observation) -> Finding | None:
    """One request for all that this process holds already: a second copy of it."""
    process, requested = process_bytes(oom), oom.requested_bytes or 0
    if requested < GiB:
        return None
    if oom.allocated_bytes is not None:
        is_same = abs(requested - oom.allocated_bytes) <= oom.allocated_bytes // 50
    else:
        is_same = process is not None and 0 <= process - requested <= BARE_CONTEXT_MAX_BYTES
    return fact("as_much_again", requested_bytes=requested) if is_same else None


def capped(oom: Observation) -> Finding | None:
    """The process ran into its own cap, not into the card."""
    if oom.allowed_bytes is None or oom.capacity_bytes is None or oom.allowed_bytes >= oom.capacity_bytes:
        return None
    return fact("capped", allowed_bytes=oom.allowed_bytes, capacity_bytes=oom.capacity_bytes)


def container(oom: Observation) -> Finding | None:
    own = own_process(oom)
    if own is None or own.nbytes is None or own.pid is None:
        return None
    return fact("container", pid=own.pid, process_bytes=own.nbytes, reserved_bytes=oom.reserved_bytes or 0)


def this_process(oom: Observation) -> Finding | None:
    """How the process's memory divides into PyTorch's and the rest."""
    process, allocated, unallocated = process_bytes(oom), oom.allocated_bytes, cached_bytes(oom)
    if process is None or allocated is None or unallocated is None or oom.place == "mps":
        return None
    outside = max(0, process - allocated - unallocated)
    return fact(
        "this_process", process_bytes=process, allocated_bytes=allocated, unallocated_bytes=unallocated,
        outside_bytes=outside,
    )  # fmt: skip


def large_outside(oom: Observation) -> Finding | None:
    """More outside PyTorch's allocator than context and communication buffers explain."""
    process = process_bytes(oom)
    outside = outside_bytes(oom) if oom.process_bytes is not None else None
    if outside is None and process is not None and oom.reserved_bytes is not None:
        outside = process - oom.reserved_bytes
    if outside is None or outside <= LIBRARIES_MAX_BYTES or oom.place == "mps":
        return None
    return fact("large_outside", outside_bytes=outside)


def other_processes(oom: Observation) -> Finding | None:
    """Processes that the message lists and that are not this one."""
    listed, total = neighbours(oom), neighbour_bytes(oom)
    if not listed or total <= ROUNDING_BYTES:
        return None
    pids = ", ".join(str(use.pid) for use in listed[:8])
    if oom.free_bytes is not None and oom.requested_bytes is not None and oom.requested_bytes <= oom.free_bytes + total:
        return fact("other_processes_decide", others_bytes=total, pids=pids, requested_bytes=oom.requested_bytes)
    return fact("other_processes", others_bytes=total, pids=pids)


def unlisted_processes(oom: Observation) -> Finding | None:
    """Used memory that neither this process nor a listed one accounts for."""
    process = process_bytes(oom)
    if process is None or oom.capacity_bytes is None or oom.free_bytes is None or oom.place == "mps":
        return None
    unlisted = oom.capacity_bytes - oom.free_bytes - process - neighbour_bytes(oom)
    if unlisted <= BARE_CONTEXT_MAX_BYTES:
        return None
    return fact("unlisted_processes", unlisted_bytes=unlisted, process_bytes=process)


def held_outside_pytorch(oom: Observation) -> Finding | None:
    """Old messages do not list processes, but total, free and reserved leave the rest."""
    known = (oom.capacity_bytes, oom.free_bytes, oom.reserved_bytes)
    has_own_memory = (oom.place or "").startswith(("cuda", "npu", "mlu", "musa"))
    if process_bytes(oom) is not None or oom.other_processes or None in known or not has_own_memory:
        return None
    total, free, reserved = (size or 0 for size in known)
    rest = total - free - reserved
    if rest <= BARE_CONTEXT_MAX_BYTES or (rest <= LIBRARIES_MAX_BYTES and rest < total // 4):
        return None
    return fact("held_outside_pytorch", rest_bytes=rest, reserved_bytes=reserved, capacity_bytes=total)


def shared_card(oom: Observation) -> Finding | None:
    """Several processes on one card, as when every rank of a job lands on the same one."""
    sharing = [use for use in neighbours(oom) if (use.nbytes or 0) > ROUNDING_BYTES]
    if len(sharing) < 2 or oom.place is None:
        return None
    return fact("shared_card", count=len(sharing) + 1, place=oom.place)


def fragmentation(oom: Observation) -> Finding | None:
    """PyTorch had cached enough to serve the request, but not in one piece."""
    unallocated = cached_bytes(oom)
    if unallocated is None or oom.requested_bytes is None or unallocated < oom.requested_bytes or _driver_had_room(oom):
        return None
    rule = "fragmentation" if _is_much(unallocated, oom) else "crumbs"
    return fact(rule, unallocated_bytes=unallocated, requested_bytes=oom.requested_bytes)


def _is_much(unallocated: int, oom: Observation) -> bool:
    """A tenth of what PyTorch holds: below that every running job has some cache in pieces."""
    return unallocated * 10 >= (oom.reserved_bytes or 0)


def large_cache(oom: Observation) -> Finding | None:
    """Much cached, yet even all of it together with the free memory is less than the request."""
    unallocated, room = cached_bytes(oom), room_bytes(oom)
    if unallocated is None or room is None or oom.requested_bytes is None or oom.reserved_bytes is None:
        return None
    if room >= oom.requested_bytes or unallocated < GiB or not _is_much(unallocated, oom):
        return None
    return fact("large_cache", unallocated_bytes=unallocated, room_bytes=room, requested_bytes=oom.requested_bytes)


def hint(oom: Observation) -> Finding | None:
    """Whether less fragmentation, which the message advises, could have served this request at all."""
    room = room_bytes(oom)
    named = next((mark.removeprefix("hint ") for mark in oom.marks if mark.startswith("hint ")), None)
    if named is None or named == "high_watermark" or room is None or oom.requested_bytes is None:
        return None
    if oom.requested_bytes > room:
        return fact("hint_cannot_help", hint=named, room_bytes=room, requested_bytes=oom.requested_bytes)
    if _driver_had_room(oom):
        return fact("hint_beside_the_point", hint=named, free_bytes=oom.free_bytes or 0)
    rule = "hint_may_help" if _is_much(cached_bytes(oom) or 0, oom) else "hint_delays"
    left = room - oom.requested_bytes
    return fact(rule, hint=named, room_bytes=room, requested_bytes=oom.requested_bytes, left_bytes=left)


def watermark_hint(oom: Observation) -> Finding | None:
    return fact("watermark_hint") if "hint high_watermark" in oom.marks else None


def free_yet_refused(oom: Observation) -> Finding | None:
    """The driver had enough, so capacity is not what was missing."""
    if not _driver_had_room(oom):
        return None
    return fact("free_yet_refused", free_bytes=oom.free_bytes or 0, requested_bytes=oom.requested_bytes or 0)


def _driver_had_room(oom: Observation) -> bool:
    if oom.free_bytes is None or oom.requested_bytes is None or _is_capped_out(oom) or oom.place == "mps":
        return False
    return oom.free_bytes >= oom.requested_bytes + DRIVER_MARGIN_BYTES


def _is_capped_out(oom: Observation) -> bool:
    reserved, requested = oom.reserved_bytes, oom.requested_bytes
    if oom.allowed_bytes is None or reserved is None or requested is None:
        return False
    return reserved + requested > oom.allowed_bytes - ROUNDING_BYTES


def free_above_capacity(oom: Observation) -> Finding | None:
    """Integrated GPUs report the host's memory as free."""
    if oom.free_bytes is None or oom.capacity_bytes is None or oom.free_bytes <= oom.capacity_bytes:
        return None
    return fact("free_above_capacity", free_bytes=oom.free_bytes, capacity_bytes=oom.capacity_bytes)


def spilled(oom: Observation) -> Finding | None:
    """More allocated than the card has: the Windows driver moved the rest to host memory."""
    held = oom.reserved_bytes if oom.reserved_bytes is not None else oom.allocated_bytes
    if held is None or oom.capacity_bytes is None or held <= oom.capacity_bytes or oom.place == "mps":
        return None
    return fact("spilled", held_bytes=held, capacity_bytes=oom.capacity_bytes)


def last_straw(oom: Observation) -> Finding | None:
    """The message prints the segment, not the tensor: 2 MiB and 20 MiB only say that something small came last."""
    segments = {SMALL_SEGMENT_BYTES: MiB, DEFAULT_LARGE_SEGMENT_BYTES: 10 * MiB}
    is_torch = oom.kind.startswith(("torch_cuda_oom_v", "torch_hip", "torch_npu"))
    if not is_torch or oom.requested_bytes not in segments:
        return None
    return fact("last_straw", requested_bytes=oom.requested_bytes, tensor_bytes=segments[oom.requested_bytes])


def lower_bound(oom: Observation) -> Finding | None:
    """What was allocated when it failed is not what the job needs: it would have gone on growing."""
    if oom.allocated_bytes is None or oom.requested_bytes is None or oom.allocated_bytes == 0:
        return None
    if oom.capacity_bytes is not None and oom.requested_bytes > oom.capacity_bytes:
        return None
    allocated, requested = oom.allocated_bytes, oom.requested_bytes
    return fact(
        "lower_bound", at_least_bytes=allocated + requested, allocated_bytes=allocated, requested_bytes=requested
    )


def private_pools(oom: Observation) -> Finding | None:
    size = oom.figure("allocated in private pools")
    return fact("private_pools", pools_bytes=int(size)) if size else None


def absurd_request(oom: Observation) -> Finding | None:
    """PyTorch refuses requests above 1 EB before asking the driver: a size that was never meant."""
    return fact("absurd_request") if "absurd request" in oom.marks else None


def block_limit(oom: Observation) -> Finding | None:
    if "block limit" not in oom.marks or oom.requested_bytes is None:
        return None
    return fact("block_limit", requested_bytes=oom.requested_bytes)


def mps_limit(oom: Observation) -> Finding | None:
    others = oom.figure("other allocations")
    if oom.kind != "torch_mps_oom" or others is None or oom.allowed_bytes is None or oom.allocated_bytes is None:
        return None
    return fact(
        "mps_limit", allocated_bytes=oom.allocated_bytes, others_bytes=int(others), allowed_bytes=oom.allowed_bytes
    )


def outside_async_pool(oom: Observation) -> Finding | None:
    """cudaMallocAsync prints no reserved figure: what is neither allocated nor free has three possible owners."""
    known = (oom.capacity_bytes, oom.free_bytes, oom.allocated_bytes)
    if oom.kind != "torch_cudamallocasync_oom" or None in known:
        return None
    total, free, allocated = (size or 0 for size in known)
    if total - free - allocated <= BARE_CONTEXT_MAX_BYTES:
        return None
    return fact("outside_async_pool", rest_bytes=total - free - allocated, allocated_bytes=allocated)


def truncated(oom: Observation) -> Finding | None:
    return fact("truncated") if "truncated" in oom.marks and oom.allocated_bytes is None else None


DEVICE_RULES = (
    request_larger_than_card, request_larger_than_any_card, absurd_request, one_large_tensor, as_much_again, capped,
    spilled, block_limit, container, this_process, large_outside, other_processes, unlisted_processes,
    held_outside_pytorch, shared_card, fragmentation, large_cache, free_yet_refused, free_above_capacity, hint,
    watermark_hint, mps_limit, outside_async_pool, last_straw, private_pools, truncated, lower_bound,
)  # fmt: skip
