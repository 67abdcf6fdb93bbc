"""Whose memory it is: this process, the other ones that the message lists, or nobody known.

In: an Observation of a device that ran out of memory. Out: bytes and processes. No process counts as another one if the
numbers of the message show that it is this one. Does not know any rule.

torch prints `this process` where it finds its own id in the driver's list, and `Process N` for all others. In a
container the list has the ids of the host, so this process appears as `Process N`, or with 0 bytes.
"""

from __future__ import annotations

from vramcast.diagnose.observation import Observation, ProcessUse
from vramcast.units import GiB, MiB

# Printed figures have two decimals: smaller differences are rounding.
ROUNDING_BYTES = 32 * MiB
# The largest part outside PyTorch seen in a training process: 1.86 GiB (H20, 8 GPUs, huggingface/trl#2776).
LIBRARIES_MAX_BYTES = 2 * GiB
# A CUDA context alone, on the cards people published: 105 MiB (RTX 4060, catalog) to 871 MiB.
BARE_CONTEXT_MIN_BYTES = 105 * MiB
BARE_CONTEXT_MAX_BYTES = 1 * GiB
# What no process accounts for on a card that one holds alone: up to 0.13 GiB (A100 40 GB).
UNACCOUNTED_MAX_BYTES = 256 * MiB


def process_bytes(oom: Observation) -> int | None:
    """What this process holds, as the driver counts it; None if unknown."""
    own = own_process(oom)
    if own is not None:
        return own.nbytes
    return None if _is_impossible(oom) else oom.process_bytes


def own_process(oom: Observation) -> ProcessUse | None:
    """The listed process that is really this one; None if it is not listed, or not to be told from the others."""
    if oom.process_bytes is not None:
        return None
    held = _held_by_pytorch(oom)
    return _only_one_possible(oom) if held is None else _closest_to_held(held, oom)


def _only_one_possible(oom: Observation) -> ProcessUse | None:
    """The only listed process, where there is no room for this one outside the list."""
    listed = _listed(oom)
    return listed[0] if len(listed) == 1 and _leaves_no_room(oom) else None


def _closest_to_held(held_bytes: int, oom: Observation) -> ProcessUse | None:
    """The smallest listed process that can hold so much, best with little more than that."""
    large_enough = [use for use in _listed(oom) if (use.nbytes or 0) >= held_bytes - ROUNDING_BYTES]
    just_larger = [use for use in large_enough if _holds_only_pytorch_and_libraries(use, oom)]
    if not just_larger and _has_room_for(held_bytes, oom):
        return None
    return min(just_larger or large_enough, key=lambda use: use.nbytes or 0, default=None)


def is_among_listed(oom: Observation) -> bool:
    """Is this process one of several listed ones, without a figure that tells which?"""
    if oom.process_bytes is not None or _held_by_pytorch(oom) is not None:
        return False
    return len(_listed(oom)) > 1 and _leaves_no_room(oom)


def _may_be_this_one(oom: Observation) -> bool:
    """Is the message cut off before it says what this process holds, and can the only listed one be this one?"""
    if oom.process_bytes is not None or _held_by_pytorch(oom) is not None:
        return False
    unlisted = _unlisted_bytes(oom)
    return len(_listed(oom)) == 1 and unlisted is not None and unlisted < UNACCOUNTED_MAX_BYTES


def neighbours(oom: Observation) -> tuple[ProcessUse, ...]:
    """The listed processes that are surely not this one."""
    if is_among_listed(oom) or _may_be_this_one(oom):
        return ()
    own = own_process(oom)
    return tuple(use for use in oom.other_processes or () if use is not own)


def holds_all_in_use(oom: Observation) -> bool:
    """Do the numbers leave no room for another process?"""
    own = process_bytes(oom)
    if own is None or oom.capacity_bytes is None or oom.free_bytes is None:
        return False
    return oom.capacity_bytes - oom.free_bytes - own < BARE_CONTEXT_MIN_BYTES


def leaves_room_for_others(oom: Observation) -> bool:
    """May another process hold a considerable part of what is in use? Yes where the text does not say what this one
    holds."""
    if holds_all_in_use(oom):
        return False
    held, unlisted = _held_by_pytorch(oom), _unlisted_bytes(oom)
    if held is None or unlisted is None or neighbours(oom):
        return True
    listed = own_process(oom)
    rest = unlisted if listed is not None else unlisted - held
    return rest > BARE_CONTEXT_MAX_BYTES


def neighbour_bytes(oom: Observation) -> int:
    return sum(use.nbytes or 0 for use in neighbours(oom))


def _listed(oom: Observation) -> list[ProcessUse]:
    return [use for use in oom.other_processes or () if use.nbytes is not None]


def _held_by_pytorch(oom: Observation) -> int | None:
    """What this process holds at least."""
    return oom.reserved_bytes if oom.reserved_bytes is not None else oom.allocated_bytes


def _is_impossible(oom: Observation) -> bool:
    """A process holds at least what PyTorch reserved, and never nothing. In some containers 0 bytes are printed."""
    if oom.process_bytes is None or oom.place == "mps":
        return False
    least = max(_held_by_pytorch(oom) or 0, BARE_CONTEXT_MIN_BYTES)
    return oom.process_bytes < least - ROUNDING_BYTES


def _holds_only_pytorch_and_libraries(use: ProcessUse, oom: Observation) -> bool:
    if use.nbytes is None or oom.reserved_bytes is None:
        return False
    return use.nbytes <= oom.reserved_bytes + LIBRARIES_MAX_BYTES


def _unlisted_bytes(oom: Observation) -> int | None:
    """What is in use apart from the listed processes."""
    if oom.capacity_bytes is None or oom.free_bytes is None:
        return None
    listed = sum(use.nbytes or 0 for use in _listed(oom))
    return oom.capacity_bytes - oom.free_bytes - listed


def _leaves_no_room(oom: Observation) -> bool:
    """Do the listed processes hold so much that not even the context of one more is left?"""
    return _unlisted_bytes(oom) is not None and not _has_room_for(0, oom)


def _has_room_for(held_bytes: int, oom: Observation) -> bool:
    """Is enough in use, apart from the listed processes, for one that holds this much and a CUDA context?"""
    unlisted = _unlisted_bytes(oom)
    if unlisted is None:
        return False
    return unlisted >= held_bytes + BARE_CONTEXT_MIN_BYTES - ROUNDING_BYTES
