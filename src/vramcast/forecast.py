"""What a question about memory is answered with: a Ledger, the job and card it is about, and what was assumed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from vramcast.catalog.gpus import Gpu
from vramcast.catalog.residuals import Spread, spread_of
from vramcast.job import Job
from vramcast.ledger import Ledger, Level, Moment, Origin, Word
from vramcast.units import GiB


class Answer(Word):
    """Whether a job fits on a card. TIGHT: the peak does, and the upper end of its range does not."""

    FITS = "fits"
    TIGHT = "tight"
    DOES_NOT_FIT = "does not fit"


def answer_of(highest: int, range_bytes: tuple[int, int] | None, capacity: int) -> Answer:
    """The peak and its range against a card."""
    if highest > capacity:
        return Answer.DOES_NOT_FIT
    upper = highest if range_bytes is None else range_bytes[1]
    return Answer.FITS if upper <= capacity else Answer.TIGHT


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSummary:
    name: str
    params_total: int
    params_trainable: int
    family: str | None = None
    num_layers: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPeak:
    """The peak of ranks that hold alike, where a job has many."""

    name: str
    ranks: int
    allocated_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Does it fit? None where the card or a level is unknown.

    >>> import vramcast
    >>> vramcast.estimate("qwen2.5-7b", gpu="rtx4090").verdict().fits
    False
    """

    answer: Answer | None
    peak: Moment
    allocated_bytes: int | None
    reserved_bytes: int | None
    process_bytes: int | None
    capacity_bytes: int | None
    headroom_bytes: int | None
    range_bytes: tuple[int, int] | None
    safe_bytes: int | None  # what 98 of 100 such jobs stay below; None: nothing tells
    spread: Spread | None = None  # of the measured jobs that range and safe limit come from
    num_not_understood: int = 0  # settings of the job's files that matter and are not counted

    @property
    def fits(self) -> bool | None:
        """A tight job fits: its peak is below the card's capacity."""
        return None if self.answer is None else self.answer is not Answer.DOES_NOT_FIT

    @property
    def highest_bytes(self) -> int:
        """The peak at the highest level that is modelled: process, else reserved, else allocated."""
        levels = (self.process_bytes, self.reserved_bytes, self.allocated_bytes)
        return next((level for level in levels if level is not None), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """What one more token of length adds to what is kept for backward, for the whole batch."""

    linear_bytes: int  # per token
    quadratic_bytes: float  # per token²
    crossover_seq: (
        int | None
    )  # the length from which the quadratic part is the larger one; None: there is none
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a serving engine makes of a card: its cache, how much that holds, and what it prints at start-up."""

    engine: str
    version: str
    starts: bool
    refusal: str  # in the engine's words, where it does not start
    budget_bytes: int  # what the engine may fill
    needed_bytes: int  # with a cache for one request of the greatest length
    kv_bytes: int
    kv_range_bytes: tuple[int, int]
    kv_tokens: int
    kv_tokens_range: tuple[int, int]
    kv_token_bytes: int  # of one token more, on one card
    max_model_len: int
    concurrency: float  # requests of that length at once
    longest: int  # the greatest length of which one request fits
    weights_bytes: int
    lines: tuple[str, ...] = ()  # as the engine prints them


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Forecast:
    """An answer: the bill, line by line, and what was assumed; `estimate` makes it.

    >>> import vramcast
    >>> forecast = vramcast.estimate("gpt2", gpu="rtx4090")
    >>> forecast.verdict().fits, forecast.ledger.peak("cuda:0").place
    (True, 'cuda:0')
    """

    model: ModelSummary | None
    job: Job | None
    gpu: Gpu | None
    ledger: Ledger
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    ranks: tuple[RankPeak, ...] = ()  # of a job on many GPUs; the ledger is that of the fullest
    nodes: int = 1  # host lines are for one node
    notes: tuple[str, ...] = ()  # comparisons that the job invites: padding, loops
    scaling: Scaling | None = None
    # Settings of the job's files that matter and are not counted.
    not_understood: tuple[str, ...] = ()
    served: Served | None = None  # where a serving engine was asked for

    def __repr__(self) -> str:
        verdict = self.verdict()
        name = "a trace" if self.model is None else self.model.name
        lines = [f"Forecast({name}{f' on {self.gpu.name}' if self.gpu else ''}:"]
        lines.append(f"  {verdict.answer or 'needs'}, peak {_gib(verdict.highest_bytes)}")
        if verdict.capacity_bytes is not None:
            lines[-1] += f" of {_gib(verdict.capacity_bytes)}"
        if verdict.range_bytes is not None:
            low, high = map(_gib, verdict.range_bytes)
            lines[-1] += f", range {low} to {high}"
        lines.append(f"  {len(self.ledger.entries)} lines in ledger; to_dict() has everything)")
        return "\n".join(lines)

    @property
    def is_traced(self) -> bool:
        """Did the virtual GPU run the job, since no formula describes its model?"""
        return any(entry.origin == Origin.TRACED for entry in self.ledger.entries)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as `--json` prints it (docs/schema.json)."""
        found: dict[str, Any] = import_module("vramcast.report.as_json").forecast_json(self)
        return found

    def _repr_html_(self) -> str:
        """What a notebook shows. Reports are above records, so they are looked up by name when they are asked for."""
        return str(import_module("vramcast.report.html").render_notebook(self))

    def verdict(self, place: str | None = None) -> Verdict:
        """The fullest device against the card's capacity as CUDA reports it; an engine that refuses to start against
        the share of the card that it may fill."""
        if self.served is not None:
            return self._served_verdict(self.served)
        places = (place,) if place else self.ledger.devices()
        peak = max(
            (self.ledger.peak(device) for device in places), key=lambda moment: moment.process_bytes
        )
        known = self._known_levels(peak)
        capacity = self.gpu.capacity_bytes() if self.gpu else None
        highest = next(
            (value for value in reversed(known) if value is not None), peak.allocated_bytes
        )
        spread = self._spread()
        found = _range(self.ledger, peak, highest, spread)
        return Verdict(
            answer=self._answer(highest, found, capacity),
            peak=peak,
            allocated_bytes=known[0],
            reserved_bytes=known[1],
            process_bytes=known[2],
            capacity_bytes=capacity,
            headroom_bytes=None if capacity is None else capacity - highest,
            range_bytes=found,
            safe_bytes=self._safe(peak, highest, spread, found),
            spread=spread,
            num_not_understood=len(self.not_understood),
        )

    def _served_verdict(self, served: Served) -> Verdict:
        peak = self.ledger.peak(self.ledger.devices()[0])
        capacity = self.gpu.capacity_bytes() if self.gpu else None
        highest = peak.process_bytes
        found = _range(self.ledger, peak, highest, None)
        answer = None if capacity is None else answer_of(highest, found, capacity)
        if served.starts and answer is Answer.FITS and not all(served.kv_range_bytes):
            answer = Answer.TIGHT
        if not served.starts:
            answer, capacity, highest = (
                Answer.DOES_NOT_FIT,
                served.budget_bytes,
                served.needed_bytes,
            )
            found = None
        return Verdict(
            answer=answer,
            peak=peak,
            allocated_bytes=peak.allocated_bytes,
            reserved_bytes=peak.reserved_bytes,
            process_bytes=highest,
            capacity_bytes=capacity,
            headroom_bytes=None if capacity is None else capacity - highest,
            range_bytes=found,
            safe_bytes=None,
        )

    def _known_levels(self, peak: Moment) -> list[int | None]:
        """Allocated, reserved and process bytes; None for the levels that are not modelled."""
        complete = list(Level).index(self.ledger.top_level)
        levels = [peak.allocated_bytes, peak.reserved_bytes, peak.process_bytes]
        return [value if index <= complete else None for index, value in enumerate(levels)]

    def _answer(
        self, highest: int, range_bytes: tuple[int, int] | None, capacity: int | None
    ) -> Answer | None:
        """None where there is no card, or what is not modelled decides."""
        if capacity is None:
            return None
        if highest <= capacity and self.ledger.top_level != list(Level)[-1]:
            return None
        return answer_of(highest, range_bytes, capacity)

    def _spread(self) -> Spread | None:
        """Of comparable jobs that were measured. A bare count of parameters is compared with none."""
        if self.job is None or self.job.model is None or self.ledger.top_level == Level.ALLOCATED:
            return None
        return spread_of(self.job)

    def _safe(
        self, peak: Moment, highest: int, spread: Spread | None, found: tuple[int, int] | None
    ) -> int | None:
        if spread is not None:
            _, above = _open_room(self.ledger, peak)
            return highest + _together(above, (spread.safe - 1) * peak.reserved_bytes)
        is_traced = self.job is None and self.ledger.top_level != Level.ALLOCATED
        return (found[1] if found else highest) if is_traced else None


def _range(
    ledger: Ledger, peak: Moment, highest: int, spread: Spread | None
) -> tuple[int, int] | None:
    """What torch reserves, where comparable jobs were measured, and what is assumed beside it (context, communication):
    two independent errors, so their squares add up."""
    below, above = _open_room(ledger, peak, also_inside=spread is None)
    if spread is None:
        return (highest - below, highest + above) if below or above else None
    inside = peak.reserved_bytes
    low = _together(below, (1 - spread.low) * inside)
    return (highest - low, highest + _together(above, (spread.high - 1) * inside))


def _gib(nbytes: int) -> str:
    return f"{nbytes / GiB:,.2f} GiB"


def _together(one: float, other: float) -> int:
    return round(math.hypot(one, other))


def _open_room(ledger: Ledger, peak: Moment, *, also_inside: bool = False) -> tuple[int, int]:
    """How far below and above its figure is what is assumed outside of torch's allocator; `also_inside`: and in it."""
    found = [
        (entry.nbytes, entry.range_bytes)
        for entry in ledger.alive(peak.phase, peak.place)
        if entry.range_bytes and (also_inside or entry.level == Level.PROCESS)
    ]
    below = sum(nbytes - low for nbytes, (low, _) in found)
    return below, sum(high - nbytes for nbytes, (_, high) in found)
