"""What every bill has in common: the phases of a job, its entries cut to them, and what the allocator adds.

lines (states, step, companions, …)  ┐
replay (what torch reserves)         ├──▶ entries, cut to the phases that the job has ──▶ Ledger
overheads (context, workspaces)      ┘
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from vramcast.engine.recording.record import DEVICE
from vramcast.engine.replay.run import Replayed
from vramcast.engine.stream.gate_loops import TWO_PASSES
from vramcast.job import Job
from vramcast.ledger import EDIT, EVAL, GATING, PHASES, RESUME, ROLLOUT, Category, Entry, Level, Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class TooLarge:
    """The job cannot fit; `asked_bytes` is a lower bound of its peak on the fullest device, allocator apart."""

    asked_bytes: int


def job_phases(job: Job) -> tuple[str, ...]:
    has = {
        EVAL: job.evaluate, ROLLOUT: job.rollout_tokens is not None, RESUME: job.resume != "none",
        EDIT: bool(job.edit), GATING: job.loop in TWO_PASSES,
    }  # fmt: skip
    return tuple(phase for phase in PHASES if has.get(phase, True))


def cut_to_phases(entries: tuple[Entry, ...], phases: tuple[str, ...]) -> tuple[Entry, ...]:
    """Entries cut to the phases that this job has."""
    cut = (replace(entry, phases=tuple(phase for phase in entry.phases if phase in phases)) for entry in entries)
    return tuple(entry for entry in cut if entry.phases and entry.nbytes)


def allocator_slack(replayed: Replayed, place: str = DEVICE) -> list[Entry]:
    """What the allocator adds: rounding inside blocks, and cached blocks that fit nothing."""
    rounding = replayed.peak_allocated_bytes - replayed.peak_requested_bytes
    cached = replayed.peak_reserved_bytes - replayed.peak_allocated_bytes
    common = {"category": Category.SLACK, "place": place, "phases": PHASES, "origin": Origin.SIMULATED}
    source = "the job's births and deaths replayed through the caching allocator"
    return [
        Entry(component="rounding inside blocks", nbytes=max(rounding, 0), source=source, **common),  # type: ignore[arg-type]
        Entry(
            component="reserved but unallocated", nbytes=max(cached, 0), source=source, level=Level.RESERVED,
            **common,  # type: ignore[arg-type]
        ),
    ]  # fmt: skip
