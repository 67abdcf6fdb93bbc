"""The grid: every job through formula and trace under every version that has its family."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.metadata import version as installed_version

from vramcast.accuracy.environments import environment
from vramcast.accuracy.gaps.compare import compare
from vramcast.accuracy.gaps.draw import GapJob
from vramcast.accuracy.gaps.families import FAMILIES
from vramcast.accuracy.gaps.formula_side import FormulaSide
from vramcast.accuracy.gaps.mechanisms import Cell, normal_version
from vramcast.accuracy.gaps.trace_side import (
    INSTALLED,
    Places,
    TraceSide,
    environment_name,
    trace,
    write_job,
)
from vramcast.errors import TraceError, VramcastError
from vramcast.job import Job, job_from


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A cell without figures, and which side refused it."""

    job: GapJob
    version: str
    side: str  # trace or formula
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    cells: tuple[Cell, ...]
    failures: tuple[Failure, ...]


def run_grid(
    jobs: Sequence[GapJob],
    versions: Sequence[str],
    places: Places,
    *,
    workers: int,
    reuse: bool,
    tell: Callable[[str], None],
) -> Grid:
    """`tell` hears of each cell that is done."""
    _make_environments(versions, places)
    wanted = [(job, version) for job in jobs for version in versions if has_family(job, version)]
    found: dict[tuple[int, str], Cell | Failure] = {}
    with ThreadPoolExecutor(workers) as pool:
        waiting = [
            pool.submit(run_cell, job, version, places, reuse=reuse) for job, version in wanted
        ]
        for finished in as_completed(waiting):
            done = finished.result()
            found[done.job.number, done.version] = done
            tell(f"{len(found)} of {len(wanted)}: {_progress(done)}")
    return _grid(found[job.number, version] for job, version in wanted)


def _grid(done: Iterable[Cell | Failure]) -> Grid:
    """Cells and failures apart, each in their order."""
    cells: list[Cell] = []
    failures: list[Failure] = []
    for each in done:
        if isinstance(each, Cell):
            cells.append(each)
        else:
            failures.append(each)
    return Grid(cells=tuple(cells), failures=tuple(failures))


def _make_environments(versions: Sequence[str], places: Places) -> None:
    """Before the jobs: two that need the same one must not both make it."""
    for version in versions:
        if version != INSTALLED:
            environment(environment_name(version), places.scripts, places.environments)


def _progress(done: Cell | Failure) -> str:
    name = f"job {done.job.number} {done.job.family} {done.job.framework}"
    said = f"{done.error:+.2%}" if isinstance(done, Cell) else f"{done.side}: {done.reason}"
    return f"{name}, transformers {done.version}: {said}"


def has_family(job: GapJob, version: str) -> bool:
    major, minor = said_version(version).split(".")
    return FAMILIES[job.family].since <= (int(major), int(minor))


def said_version(version: str) -> str:
    """What `--transformers-version` is told."""
    return normal_version(installed_version("transformers") if version == INSTALLED else version)


def run_cell(job: GapJob, version: str, places: Places, *, reuse: bool) -> Cell | Failure:
    try:
        traced = trace(job, version, places, reuse=reuse)
    except TraceError as error:
        return Failure(job=job, version=version, side="trace", reason=str(error))
    try:
        formula = FormulaSide(formula_job(job, version, places))
    except VramcastError as error:
        return Failure(job=job, version=version, side="formula", reason=str(error))
    return compare_sides(job, version, traced, formula)


def formula_job(job: GapJob, version: str, places: Places) -> Job:
    folder = write_job(job, places)
    words = {**job.words(), "model": str(folder), "transformers-version": said_version(version)}
    return job_from(words)


def compare_sides(job: GapJob, version: str, traced: TraceSide, formula: FormulaSide) -> Cell:
    """In the phase that decides: the formulas' fullest where they say too much, the traced one where too little."""
    both = {
        phase: (side.allocated_bytes, formula.peaks[phase])
        for phase, side in traced.phases.items()
        if phase in formula.peaks
    }
    traced_top = max(both, key=lambda phase: both[phase][0])
    formula_top = max(both, key=lambda phase: both[phase][1])
    too_much = both[formula_top][1] > both[traced_top][0]
    phase = formula_top if too_much else traced_top
    side, higher_bytes = formula.side(phase, traced.phases[phase])
    return Cell(
        job=job,
        version=version,
        phase=phase,
        traced_bytes=both[traced_top][0],
        formula_bytes=both[formula_top][1],
        phases=both,
        differences=tuple(compare(traced.phases[phase], side, higher_bytes)),
        versions=traced.versions,
    )
