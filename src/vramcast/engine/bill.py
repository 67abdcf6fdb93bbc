"""Entries → Forecast: the one place where a Ledger is assembled.

lines (states, step, companions, …)  ┐
replay (what torch reserves)         ├──▶ entries, cut to the phases that the job has ──▶ Ledger ──▶ Forecast
overheads (context, workspaces)      ┘
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from vramcast.catalog.gpus import Gpu
from vramcast.engine.lines.states import States
from vramcast.engine.recording.record import DEVICE
from vramcast.engine.replay.run import Replayed
from vramcast.engine.stream.gate_loops import TWO_PASSES
from vramcast.forecast import Forecast, ModelSummary, RankPeak, Served
from vramcast.job import Job
from vramcast.ledger import (
    CRITIC,
    DECODE,
    EDIT,
    EVAL,
    GATING,
    PHASES,
    PREFILL,
    PROFILE,
    RESUME,
    ROLLOUT,
    SCORE,
    SERVE,
    SYNC,
    Category,
    Entry,
    Ledger,
    Level,
    Origin,
)
from vramcast.models.record.program import Program
from vramcast.setup import Setup


@dataclass(frozen=True, slots=True, kw_only=True)
class TooLarge:
    """The job cannot fit. `asked_bytes` is a lower bound of its peak on the fullest device, without the allocator's
    rounding and cached blocks."""

    asked_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Remarks:
    """Sentences that are printed with a breakdown."""

    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Everything that a Forecast is assembled from."""

    job: Job
    gpu: Gpu | None
    model: ModelSummary
    entries: Iterable[Entry]
    phases: tuple[str, ...]
    remarks: Remarks
    knows_activations: bool = True
    ranks: tuple[RankPeak, ...] = ()
    nodes: int = 1
    served: Served | None = None

    def forecast(self) -> Forecast:
        ledger = Ledger(
            entries=cut_to_phases(self.entries, self.phases), top_level=self._top_level()
        )
        ledger.check()
        return Forecast(
            model=self.model,
            job=self.job,
            gpu=self.gpu,
            ledger=ledger,
            assumptions=self.remarks.assumptions,
            warnings=self.remarks.warnings,
            notes=self.remarks.notes,
            ranks=self.ranks,
            nodes=self.nodes,
            served=self.served,
        )

    def _top_level(self) -> Level:
        """The highest level that is known: the CUDA context needs a card, the allocator's share needs activations."""
        if not self.knows_activations:
            return Level.ALLOCATED
        return Level.PROCESS if self.gpu else Level.RESERVED


def job_phases(setup: Setup) -> tuple[str, ...]:
    """The phases that this job has."""
    has = {
        EVAL: setup.phases.evaluate,
        ROLLOUT: setup.phases.rollout_tokens is not None,
        RESUME: setup.phases.resume != "none",
        EDIT: bool(setup.editing.parameters),
        GATING: setup.loop.gate in TWO_PASSES,
        PREFILL: False,
        DECODE: False,
        SYNC: False,
        SCORE: False,
        CRITIC: False,
        PROFILE: False,
        SERVE: False,
    }
    return tuple(phase for phase in PHASES if has.get(phase, True))


def cut_to_phases(entries: Iterable[Entry], phases: tuple[str, ...]) -> tuple[Entry, ...]:
    """Entries restricted to these phases. Entries that are empty or alive in none of them are left out."""
    cut = (
        replace(entry, phases=tuple(phase for phase in entry.phases if phase in phases))
        for entry in entries
    )
    return tuple(entry for entry in cut if entry.phases and entry.nbytes)


def summarize_model(
    name: str, states: States, family: str | None = None, num_layers: int | None = None
) -> ModelSummary:
    return ModelSummary(
        name=name,
        params_total=states.params.total(
            lambda param: param.numel if param.kind != "buffer" else 0
        ),
        params_trainable=states.trained.numel,
        family=family,
        num_layers=num_layers,
    )


def count_layers(program: Program) -> int:
    return sum(placed.section.is_block for placed in program.sections)


def allocator_slack(replayed: Replayed, place: str = DEVICE) -> list[Entry]:
    """What the allocator adds: rounding inside blocks, and cached blocks that no request fits."""
    rounding = replayed.peak_allocated_bytes - replayed.peak_requested_bytes
    cached = replayed.peak_reserved_bytes - replayed.peak_allocated_bytes
    inside = Entry(
        category=Category.SLACK,
        component="rounding inside blocks",
        place=place,
        phases=PHASES,
        nbytes=max(rounding, 0),
        origin=Origin.SIMULATED,
        source="the job's allocations and frees replayed through the caching allocator",
    )
    unallocated = replace(
        inside,
        component="reserved but unallocated",
        nbytes=max(cached, 0),
        level=Level.RESERVED,
    )
    return [inside, unallocated]
