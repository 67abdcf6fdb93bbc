"""A job's course through its phases: where each begins, how high it goes, and where a failure agrees with it.

In: a Job, priced by the formula engine, and Evidence. Out: the phase in which this job would have failed as observed,
or None. Figures are torch's "allocated"; the engine's own error is allowed for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from vramcast.catalog.gpus import find_gpu
from vramcast.diagnose.rules.evidence import BACKWARDS, STEPS, Evidence
from vramcast.engine.estimate import estimate
from vramcast.engine.recording.record import DEVICE
from vramcast.forecast import Forecast
from vramcast.job import Job
from vramcast.ledger import LOAD, LOSS, NEXT_LOSS, RESUME, STEP, Category, Entry, Level
from vramcast.models.read.model import read_model
from vramcast.units import MiB

# How far engine and reality may be apart where the library versions are known (see the accuracy page).
TOLERANCE, LEAST_TOLERANCE_BYTES = 0.02, 128 * MiB
MADE_BY_A_PASS = (Category.ACTIVATIONS, Category.LOGITS, Category.TEMPORARY, Category.COPIES, Category.CACHE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One phase: what is there when it begins, at least, and its largest moment."""

    phase: str
    start_bytes: int
    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    job: Job
    forecast: Forecast
    spans: tuple[Span, ...]

    @property
    def need_bytes(self) -> int:
        return max(span.peak_bytes for span in self.spans)

    @property
    def fullest(self) -> Span:
        return max(self.spans, key=lambda span: span.peak_bytes)

    @property
    def outside_bytes(self) -> int:
        """What the engine says the process takes outside PyTorch."""
        entries = self.forecast.ledger.alive(self.fullest.phase, DEVICE)
        return sum(entry.nbytes for entry in entries if entry.level == Level.PROCESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Where a job agrees with a failure, and what else it takes."""

    phase: str
    peak_bytes: int
    because: str = ""  # "": the job alone is too large; or "fragmentation", "another_process"
    or_in: tuple[str, ...] = ()  # later phases that agree as well, if this one was survived


def course_of(job: Job) -> Course:
    forecast = estimate(job)
    spans = tuple(_span(forecast, phase) for phase in forecast.ledger.phases(DEVICE))
    return Course(job=job, forecast=forecast, spans=spans)


def quick_need_bytes(job: Job) -> int | None:
    """The peak alone, ten times faster than a whole estimate; None for jobs that only a whole estimate knows."""
    if job.gpus > 1 or job.edit or job.longest_seq is not None or job.model is None or job.seq is None:
        return None
    import numpy  # only where a job is given

    from vramcast.engine.prices.sweep import peak_grid

    config = read_model(job.model).config
    if config is None:
        return None
    gpu = find_gpu(job.gpu) if job.gpu else None
    return int(peak_grid(job, config, gpu, numpy.array([[job.batch]]), numpy.array([[job.seq]]))[0, 0])


def can_reach(need_bytes: int, evidence: Evidence) -> bool:
    """Is this peak as high as what was seen, within the engine's own error?"""
    reached = (evidence.allocated_bytes or 0) + evidence.least_request_bytes
    return reached <= need_bytes + tolerance(need_bytes)


def tolerance(nbytes: int) -> int:
    return max(int(nbytes * TOLERANCE), LEAST_TOLERANCE_BYTES)


def _span(forecast: Forecast, phase: str) -> Span:
    alive = [entry for entry in forecast.ledger.alive(phase, DEVICE) if entry.level == Level.ALLOCATED]
    return Span(
        phase=phase, start_bytes=sum(entry.nbytes for entry in alive if _was_there(entry, phase)),
        peak_bytes=sum(entry.nbytes for entry in alive),
    )  # fmt: skip


def _was_there(entry: Entry, phase: str) -> bool:
    """Was this line of a phase's peak there when the phase began? Where it may not have been: no."""
    if phase in (LOAD, RESUME):
        return False
    if phase == STEP and entry.category is Category.OPTIMIZER:
        return False  # the first step makes the states one by one
    if phase in STEPS:
        return entry.category is not Category.TEMPORARY
    if phase in BACKWARDS:
        return entry.category not in (*MADE_BY_A_PASS, Category.GRADIENTS)
    if phase in (LOSS, NEXT_LOSS):
        return entry.category not in (Category.LOGITS, Category.TEMPORARY) and _lies(entry)
    return entry.category not in MADE_BY_A_PASS and _lies(entry)


def _lies(entry: Entry) -> bool:
    """A companion's weights lie there; what its forward makes does not."""
    return entry.category is not Category.COMPANION or LOAD in entry.phases


def agree(course: Course, evidence: Evidence) -> Agreement | None:
    """The first phase whose numbers are those observed, up to the one that cannot have been survived, and later ones
    like it. Without the card's size only the failing code can say which phase that was."""
    card = card_bytes(course, evidence)
    here = min((size for size in (card, evidence.here_bytes) if size is not None), default=None)
    if here is None and (evidence.phases is None or evidence.allocated_bytes is None):
        return None
    found: Agreement | None = None
    for span in course.spans:
        slack = tolerance(span.peak_bytes)
        if _is_here(span, evidence, slack) and _runs_out(span, evidence, here):
            if found is None:
                because = _because(span, card, here, slack)
                found = Agreement(phase=span.phase, peak_bytes=span.peak_bytes, because=because)
            else:
                found = replace(found, or_in=(*found.or_in, span.phase))
        if here is not None and span.peak_bytes > here + slack:
            break  # no later phase was reached
    return found


def _is_here(span: Span, evidence: Evidence, slack: int) -> bool:
    if evidence.phases is not None and span.phase not in evidence.phases:
        return False
    if evidence.allocated_bytes is None:
        return True
    reached = evidence.allocated_bytes + evidence.least_request_bytes
    return span.start_bytes - slack <= evidence.allocated_bytes and reached <= span.peak_bytes + slack


def _runs_out(span: Span, evidence: Evidence, here: int | None) -> bool:
    """With the observed share of cached pieces the phase does not fit."""
    return here is None or span.peak_bytes + evidence.unallocated_bytes + evidence.least_request_bytes // 2 > here


def card_bytes(course: Course, evidence: Evidence) -> int | None:
    """What PyTorch could have on this card if nobody else were there; what it had reserved, it could have."""
    gpu = course.forecast.gpu
    capacity = evidence.capacity_bytes or (gpu.total_bytes if gpu else None)
    if capacity is None:
        return None
    outside = evidence.outside_bytes if evidence.outside_bytes is not None else course.outside_bytes
    return max(capacity - outside, evidence.observation.reserved_bytes or 0)


def _because(span: Span, card: int | None, here: int | None, slack: int) -> str:
    if card is None or here is None or span.peak_bytes > card - slack:
        return ""
    return "another_process" if here < card - slack and span.peak_bytes > here - slack else "fragmentation"
