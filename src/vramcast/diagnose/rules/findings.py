"""Facts that follow from the numbers of one failure: whose memory it was, and whether the printed hint can help.

In: an Observation of a device that ran out of memory. Out: Findings. Each rule is a small function. None of them
knows about models or jobs, and none guesses: where the text leaves out a number, the rules that need it return None.
"""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.allocator.constants import DEFAULT_LARGE_SEGMENT_BYTES, SMALL_SEGMENT_BYTES
from vramcast.diagnose.observation import Observation, cached_bytes
from vramcast.diagnose.rules.processes import (
    BARE_CONTEXT_MAX_BYTES,
    LIBRARIES_MAX_BYTES,
    ROUNDING_BYTES,
    is_among_listed,
    neighbour_bytes,
    neighbours,
    own_process,
    process_bytes,
)
from vramcast.units import GiB, MiB

# MI355X as CUDA-level tools report it (pytorch/pytorch#175431); the largest single device in the catalog.
LARGEST_CARD_BYTES = 288 * GiB
# The driver rounds and keeps some memory back, so a few MiB "free" beyond the request prove nothing.
DRIVER_MARGIN_BYTES = 256 * MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A fact by name, with the numbers it rests on. `report` turns it into words."""

    rule: str
    values: tuple[tuple[str, int | float | str], ...] = ()
    observation: int | None = None  # index of the observation in the reading; None: the whole log


def fact(rule: str, **values: int | float | str) -> Finding:
    return Finding(rule=rule, values=tuple(values.items()))


def limit_bytes(oom: Observation) -> int | None:
    """What this process may hold: the cap if one was printed, otherwise the capacity of the card."""
    limits = [size for size in (oom.allowed_bytes, oom.capacity_bytes) if size is not None]
    return min(limits, default=None)


def room_bytes(oom: Observation) -> int | None:
    """The largest request that could be served if all cached and all free memory were one contiguous piece."""
    unallocated = cached_bytes(oom)
    if oom.free_bytes is None or unallocated is None:
        return None
    free = oom.free_bytes
    if oom.allowed_bytes is not None and oom.reserved_bytes is not None:
        free = min(free, max(0, oom.allowed_bytes - oom.reserved_bytes))
    return free + unallocated


def request_larger_than_card(oom: Observation) -> Finding | None:
    limit = limit_bytes(oom)
    if oom.requested_bytes is None or limit is None or not _is_one_tensor(oom):
        return None
    if oom.requested_bytes <= limit:
        return None
    return fact("request_larger_than_card", requested_bytes=oom.requested_bytes, limit_bytes=limit)


def request_larger_than_any_card(oom: Observation) -> Finding | None:
    """The message was cut off before the card's size, but no card is this large."""
    if oom.requested_bytes is None or limit_bytes(oom) is not None or not _is_one_tensor(oom):
        return None
    if oom.requested_bytes <= LARGEST_CARD_BYTES:
        return None
    return fact(
        "request_larger_than_any_card",
        requested_bytes=oom.requested_bytes,
        limit_bytes=LARGEST_CARD_BYTES,
    )


def _is_one_tensor(oom: Observation) -> bool:
    """XLA for TPU prints the need of the whole program, vLLM the share it wants; all others print one request."""
    return oom.kind not in ("jax_tpu_oom", "vllm_startup")


def one_large_tensor(oom: Observation) -> Finding | None:
    """A single request for an eighth of the card or more: logits, attention scores, a gathered output."""
    limit = limit_bytes(oom)
    if oom.requested_bytes is None or limit is None or not _is_one_tensor(oom):
        return None
    is_large = oom.requested_bytes * 8 >= limit
    is_possible = oom.requested_bytes <= limit
    if not (is_large and is_possible):
        return None
    return fact(
        "one_large_tensor",
        requested_bytes=oom.requested_bytes,
        elements=f"{oom.requested_bytes // 4:,}",
    )


def half_the_card(oom: Observation) -> Finding | None:
    """A single request for half of the card or more decides alone, whatever else is there."""
    limit, requested = limit_bytes(oom), oom.requested_bytes
    if limit is None or requested is None or not _is_one_tensor(oom):
        return None
    if not requested <= limit <= 2 * requested:
        return None
    return fact("half_the_card", requested_bytes=requested, limit_bytes=limit)


def as_much_again(oom: Observation) -> Finding | None:
    """One request as large as everything this process already holds: a second copy of it."""
    requested = oom.requested_bytes
    if requested is None or requested < GiB or not _equals_what_is_held(requested, oom):
        return None
    return fact("as_much_again", requested_bytes=requested)


def _equals_what_is_held(requested_bytes: int, oom: Observation) -> bool:
    if oom.allocated_bytes is not None:
        return abs(requested_bytes - oom.allocated_bytes) <= oom.allocated_bytes // 50
    process = process_bytes(oom)
    if process is None:
        return False
    context_bytes = process - requested_bytes
    return 0 <= context_bytes <= BARE_CONTEXT_MAX_BYTES


# A flat copy is large, and next to it little but its like is allocated before the first forward pass.
FLAT_COPY_MIN_BYTES, MOST_STATES, MOST_REST = 2 * GiB, 2, 0.03


def flat_copy(oom: Observation) -> Finding | None:
    """One request R of 4 bytes per parameter, where 16-bit weights (R/2) and a whole number of such copies are there:
    DeepSpeed and Megatron make the master weights and each optimizer state in one piece."""
    requested, allocated = oom.requested_bytes, oom.allocated_bytes
    if requested is None or allocated is None or requested < FLAT_COPY_MIN_BYTES:
        return None
    copies = (allocated - requested // 2) // requested
    rest = allocated - requested // 2 - copies * requested
    if not 0 <= copies <= MOST_STATES or rest > allocated * MOST_REST:
        return None
    billions = f"{requested / 4e9:.2f}"
    return fact("flat_copy", requested_bytes=requested, billions=billions, copies=int(copies))


def capped(oom: Observation) -> Finding | None:
    """The process has a cap below the capacity of the card."""
    if oom.allowed_bytes is None or oom.capacity_bytes is None:
        return None
    if oom.allowed_bytes >= oom.capacity_bytes:
        return None
    return fact("capped", allowed_bytes=oom.allowed_bytes, capacity_bytes=oom.capacity_bytes)


def container(oom: Observation) -> Finding | None:
    """This process appears under a process id of the host: it runs in a container."""
    own = own_process(oom)
    if own is None or own.nbytes is None or own.pid is None:
        return None
    if oom.reserved_bytes is None:
        return fact("listed_is_this_process", pid=own.pid, process_bytes=own.nbytes)
    return fact(
        "container", pid=own.pid, process_bytes=own.nbytes, reserved_bytes=oom.reserved_bytes
    )


def this_process_is_listed(oom: Observation) -> Finding | None:
    """The listed processes hold all that is in use, so one of them is this one."""
    if not is_among_listed(oom):
        return None
    return fact("this_process_is_listed", count=len(oom.other_processes or ()))


def this_process(oom: Observation) -> Finding | None:
    """How the memory of this process divides into allocated, cached and outside PyTorch."""
    process, allocated, unallocated = process_bytes(oom), oom.allocated_bytes, cached_bytes(oom)
    if oom.place == "mps":
        return None
    if process is None or allocated is None or unallocated is None:
        return None
    outside = max(0, process - allocated - unallocated)
    return fact(
        "this_process",
        process_bytes=process,
        allocated_bytes=allocated,
        unallocated_bytes=unallocated,
        outside_bytes=outside,
    )


def large_outside(oom: Observation) -> Finding | None:
    """More outside PyTorch's allocator than context and communication buffers explain."""
    if oom.place == "mps":
        return None
    process = process_bytes(oom)
    if process is None or oom.reserved_bytes is None:
        return None
    outside = process - oom.reserved_bytes
    if outside <= LIBRARIES_MAX_BYTES:
        return None
    return fact("large_outside", outside_bytes=outside)


def other_processes(oom: Observation) -> Finding | None:
    """Processes that the message lists and that are not this one. They decide if their memory would have sufficed."""
    others = neighbour_bytes(oom)
    if others <= ROUNDING_BYTES:
        return None
    pids = ", ".join(str(use.pid) for use in neighbours(oom)[:8])
    free, requested = oom.free_bytes, oom.requested_bytes
    if free is None or requested is None or requested > free + others:
        return fact("other_processes", others_bytes=others, pids=pids)
    return fact("other_processes_decide", others_bytes=others, pids=pids, requested_bytes=requested)


def unlisted_processes(oom: Observation) -> Finding | None:
    """Used memory that neither this process nor a listed one accounts for."""
    if oom.place == "mps":
        return None
    process = process_bytes(oom)
    if process is None or oom.capacity_bytes is None or oom.free_bytes is None:
        return None
    used = oom.capacity_bytes - oom.free_bytes
    unlisted = used - process - neighbour_bytes(oom)
    if unlisted <= BARE_CONTEXT_MAX_BYTES:
        return None
    return fact("unlisted_processes", unlisted_bytes=unlisted, process_bytes=process)


def held_outside_pytorch(oom: Observation) -> Finding | None:
    """Old messages list no processes, but capacity, free and reserved memory leave a remainder."""
    total, free, reserved = oom.capacity_bytes, oom.free_bytes, oom.reserved_bytes
    if total is None or free is None or reserved is None:
        return None
    lists_processes = process_bytes(oom) is not None or bool(oom.other_processes)
    if lists_processes or not _has_own_memory(oom):
        return None
    rest = total - free - reserved
    is_explained_by_libraries = rest <= LIBRARIES_MAX_BYTES and rest < total // 4
    if rest <= BARE_CONTEXT_MAX_BYTES or is_explained_by_libraries:
        return None
    return fact(
        "held_outside_pytorch", rest_bytes=rest, reserved_bytes=reserved, capacity_bytes=total
    )


def small_card_shared(oom: Observation) -> Finding | None:
    """A quarter of a card is outside PyTorch, and no more than a context, a desktop and small programs explain."""
    total, free, reserved = oom.capacity_bytes, oom.free_bytes, oom.reserved_bytes
    if total is None or free is None or reserved is None or not _has_own_memory(oom):
        return None
    if process_bytes(oom) is not None:  # then it is known whose it is
        return None
    rest = total - free - reserved
    if rest * 4 < total or rest > BARE_CONTEXT_MAX_BYTES:
        return None
    return fact("small_card_shared", rest_bytes=rest, capacity_bytes=total)


def _has_own_memory(oom: Observation) -> bool:
    """Integrated devices share the memory of the host: what is not free there may belong to anybody."""
    return (oom.place or "").startswith(("cuda", "npu", "mlu", "musa"))


def shared_card(oom: Observation) -> Finding | None:
    """Several processes on one card, as when every rank of a job uses the same one."""
    sharing = [use for use in neighbours(oom) if (use.nbytes or 0) > ROUNDING_BYTES]
    if len(sharing) < 2 or oom.place is None:
        return None
    return fact("shared_card", count=len(sharing) + 1, place=oom.place)


def fragmentation(oom: Observation) -> Finding | None:
    """PyTorch had cached enough to serve the request, but not in one piece."""
    unallocated, requested = cached_bytes(oom), oom.requested_bytes
    if unallocated is None or requested is None or _driver_had_room(oom):
        return None
    if unallocated < requested:
        return None
    rule = "fragmentation" if _is_large_share(unallocated, oom) else "crumbs"
    if rule == "fragmentation" and is_before_settings(oom):
        rule = "fragmentation_of_old" if unallocated * 4 >= (oom.reserved_bytes or 0) else "crumbs"
    return fact(rule, unallocated_bytes=unallocated, requested_bytes=requested)


def is_before_settings(oom: Observation) -> bool:
    """Torch before 1.10: nothing could be set against pieces, the message advises nothing, and a larger cache was
    usual."""
    if not oom.kind.endswith("legacy_cached"):
        return False
    return not any(mark.startswith("hint ") for mark in oom.marks)


def _is_large_share(unallocated_bytes: int, oom: Observation) -> bool:
    """A tenth of what PyTorch reserved: every running job has a smaller cache in pieces."""
    return unallocated_bytes * 10 >= (oom.reserved_bytes or 0)


def large_cache(oom: Observation) -> Finding | None:
    """A large cache, but even all of it together with the free memory is less than the request."""
    unallocated, room = cached_bytes(oom), room_bytes(oom)
    if unallocated is None or room is None:
        return None
    if oom.requested_bytes is None or oom.reserved_bytes is None:
        return None
    is_large = unallocated >= GiB and _is_large_share(unallocated, oom)
    if not is_large or room >= oom.requested_bytes:
        return None
    return fact(
        "large_cache",
        unallocated_bytes=unallocated,
        room_bytes=room,
        requested_bytes=oom.requested_bytes,
    )


def hint(oom: Observation) -> Finding | None:
    """Could less fragmentation, which the message advises, have served this request at all?"""
    named, room, requested = _printed_hint(oom), room_bytes(oom), oom.requested_bytes
    if named is None or room is None or requested is None:
        return None
    if requested > room:
        return fact("hint_cannot_help", hint=named, room_bytes=room, requested_bytes=requested)
    if _driver_had_room(oom):
        return fact("hint_beside_the_point", hint=named, free_bytes=oom.free_bytes or 0)
    rule = "hint_may_help" if _is_large_share(cached_bytes(oom) or 0, oom) else "hint_delays"
    return fact(
        rule,
        hint=named,
        room_bytes=room,
        requested_bytes=requested,
        left_bytes=room - requested,
    )


def _printed_hint(oom: Observation) -> str | None:
    """The setting that the message advises against fragmentation."""
    hints = [mark.removeprefix("hint ") for mark in oom.marks if mark.startswith("hint ")]
    named = next(iter(hints), None)
    return None if named == "high_watermark" else named


def watermark_hint(oom: Observation) -> Finding | None:
    return fact("watermark_hint") if "hint high_watermark" in oom.marks else None


def free_yet_refused(oom: Observation) -> Finding | None:
    """The driver had enough free memory, so capacity was not what was missing."""
    if not _driver_had_room(oom):
        return None
    return fact(
        "free_yet_refused", free_bytes=oom.free_bytes or 0, requested_bytes=oom.requested_bytes or 0
    )


def _driver_had_room(oom: Observation) -> bool:
    if oom.place == "mps" or _reached_its_cap(oom):
        return False
    if oom.free_bytes is None or oom.requested_bytes is None:
        return False
    return oom.free_bytes >= oom.requested_bytes + DRIVER_MARGIN_BYTES


def _reached_its_cap(oom: Observation) -> bool:
    reserved, requested = oom.reserved_bytes, oom.requested_bytes
    if oom.allowed_bytes is None or reserved is None or requested is None:
        return False
    return reserved + requested > oom.allowed_bytes - ROUNDING_BYTES


def free_above_capacity(oom: Observation) -> Finding | None:
    """Integrated GPUs report the host's memory as free."""
    if oom.free_bytes is None or oom.capacity_bytes is None:
        return None
    if oom.free_bytes <= oom.capacity_bytes:
        return None
    return fact("free_above_capacity", free_bytes=oom.free_bytes, capacity_bytes=oom.capacity_bytes)


def spilled(oom: Observation) -> Finding | None:
    """More allocated than the card has: the Windows driver moved the excess to host memory."""
    held = oom.reserved_bytes if oom.reserved_bytes is not None else oom.allocated_bytes
    if held is None or oom.capacity_bytes is None or oom.place == "mps":
        return None
    if held <= oom.capacity_bytes:
        return None
    return fact("spilled", held_bytes=held, capacity_bytes=oom.capacity_bytes)


def last_straw(oom: Observation) -> Finding | None:
    """PyTorch prints the size of the segment, not of the tensor: 2 MiB and 20 MiB mean some small tensor."""
    largest_tensor_bytes = {SMALL_SEGMENT_BYTES: MiB, DEFAULT_LARGE_SEGMENT_BYTES: 10 * MiB}
    is_torch = oom.kind.startswith(("torch_cuda_oom_v", "torch_hip", "torch_npu"))
    if not is_torch or oom.requested_bytes not in largest_tensor_bytes:
        return None
    return fact(
        "last_straw",
        requested_bytes=oom.requested_bytes,
        tensor_bytes=largest_tensor_bytes[oom.requested_bytes],
    )


def lower_bound(oom: Observation) -> Finding | None:
    """The job needs at least what was allocated plus the request; nobody knows how much would have followed."""
    allocated, requested = oom.allocated_bytes, oom.requested_bytes
    if allocated is None or requested is None or allocated == 0:
        return None
    if oom.capacity_bytes is not None and requested > oom.capacity_bytes:
        return None
    return fact(
        "lower_bound",
        at_least_bytes=allocated + requested,
        allocated_bytes=allocated,
        requested_bytes=requested,
    )


def private_pools(oom: Observation) -> Finding | None:
    size = oom.figure("allocated in private pools")
    return fact("private_pools", pools_bytes=int(size)) if size else None


def absurd_request(oom: Observation) -> Finding | None:
    """PyTorch refuses requests above 1 EB without asking the driver: such a size is a mistake in the code."""
    return fact("absurd_request") if "absurd request" in oom.marks else None


def block_limit(oom: Observation) -> Finding | None:
    if "block limit" not in oom.marks or oom.requested_bytes is None:
        return None
    return fact("block_limit", requested_bytes=oom.requested_bytes)


def mps_limit(oom: Observation) -> Finding | None:
    if oom.kind != "torch_mps_oom":
        return None
    others = oom.figure("other allocations")
    if others is None or oom.allowed_bytes is None or oom.allocated_bytes is None:
        return None
    return fact(
        "mps_limit",
        allocated_bytes=oom.allocated_bytes,
        others_bytes=int(others),
        allowed_bytes=oom.allowed_bytes,
    )


def outside_async_pool(oom: Observation) -> Finding | None:
    """cudaMallocAsync prints no reserved figure: what is neither allocated nor free has three possible owners."""
    total, free, allocated = oom.capacity_bytes, oom.free_bytes, oom.allocated_bytes
    if oom.kind != "torch_cudamallocasync_oom":
        return None
    if total is None or free is None or allocated is None:
        return None
    rest = total - free - allocated
    if rest <= BARE_CONTEXT_MAX_BYTES:
        return None
    return fact("outside_async_pool", rest_bytes=rest, allocated_bytes=allocated)


def truncated(oom: Observation) -> Finding | None:
    """The message was cut off before the figures that matter most, or was never pasted."""
    if oom.kind == "gpu_told":
        return fact("gpu_told")
    is_cut = "truncated" in oom.marks and oom.allocated_bytes is None
    return fact("truncated") if is_cut else None


# In the order in which a report prints them.
DEVICE_RULES = (
    request_larger_than_card,
    request_larger_than_any_card,
    absurd_request,
    one_large_tensor,
    half_the_card,
    as_much_again,
    flat_copy,
    capped,
    spilled,
    block_limit,
    container,
    this_process_is_listed,
    this_process,
    large_outside,
    other_processes,
    unlisted_processes,
    held_outside_pytorch,
    small_card_shared,
    shared_card,
    fragmentation,
    large_cache,
    free_yet_refused,
    free_above_capacity,
    hint,
    watermark_hint,
    mps_limit,
    outside_async_pool,
    last_straw,
    private_pools,
    truncated,
    lower_bound,
)
