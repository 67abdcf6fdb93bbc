"""One entry of host memory with the defaults of this folder, and the words of its formula.

In: what an entry says. Out: an Entry at the place host unless told otherwise. Knows nothing about jobs.
"""

from __future__ import annotations

from vramcast.ledger import (
    BACKWARD,
    FORWARD,
    HOST,
    LOAD,
    LOSS,
    NEXT_BACKWARD,
    NEXT_FORWARD,
    NEXT_LOSS,
    NEXT_STEP,
    SAVE,
    STEP,
    Category,
    Entry,
    Level,
    Origin,
)

TRAINING = (FORWARD, LOSS, BACKWARD, STEP, NEXT_FORWARD, NEXT_LOSS, NEXT_BACKWARD, NEXT_STEP)
ALWAYS = (LOAD, *TRAINING, SAVE)


def host_entry(
    category: Category,
    component: str,
    nbytes: int,
    formula: str,
    *,
    place: str = HOST,
    phases: tuple[str, ...] = ALWAYS,
    origin: Origin = Origin.FORMULA,
    source: str = "",
    level: Level = Level.ALLOCATED,
    range_bytes: tuple[int, int] | None = None,
) -> Entry:
    return Entry(
        category=category,
        component=component,
        place=place,
        phases=phases,
        nbytes=nbytes,
        origin=origin,
        formula=formula,
        source=source,
        level=level,
        range_bytes=range_bytes,
    )


def format_count(count: int, what: str) -> str:
    """`1 rank`, `2 copies`."""
    plural = {"copy": "copies", "process": "processes"}.get(what, f"{what}s")
    return f"{count} {what if count == 1 else plural}"


def pinned_block_bytes(nbytes: int) -> int:
    """torch's pinned allocator rounds a request up to the next power of two (CachingHostAllocator.h, 2.13)."""
    return 0 if nbytes == 0 else 1 << (nbytes - 1).bit_length()
