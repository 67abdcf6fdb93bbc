"""Every combination of moves in one table: its peak, its step time, its class. One axis per kind of change.

A regime (what changes the recorded tensors) is recorded once for all micro-batches and lengths and folded once per way
of running it; optimizers are added on top, so a combination costs a few additions in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy
from numpy.typing import NDArray

from vramcast.catalog.gpus import Gpu
from vramcast.engine import MOMENTS, ByPhase, Recording, kv_cache, needs_input_grads, sizes_of
from vramcast.errors import InputError
from vramcast.job import Job
from vramcast.ledger import NEXT_BACKWARD, NEXT_FORWARD, NEXT_STEP
from vramcast.models.read.config import Config
from vramcast.models.record.dims import Number
from vramcast.models.record.program import Sizes
from vramcast.plan.cost import StepCost, Work, pass_seconds, update_seconds, work_of
from vramcast.plan.moves import Kind, Move, available
from vramcast.plan.ranking import (
    KINDS,
    MUCH_SLOWER,
    SLOWDOWN_PRICE,
    Applied,
    Limits,
    Moves,
    kind_of,
    move_effort,
)
from vramcast.setup import resolve

Bytes = NDArray[numpy.int64]
Floats = NDArray[numpy.float64]
Index = tuple[int, ...]

IMPOSSIBLE = numpy.iinfo(numpy.int64).max  # the peak of a combination that does not exist
EVER = [
    MOMENTS.index(phase) for phase in (NEXT_FORWARD, NEXT_BACKWARD, NEXT_STEP)
]  # what every step has
LAST_AXES = (
    "optimizer",
    "optimizer-impl",
    "alloc-conf",
    "batch",
    "seq",
)  # cheap to combine; the others make regimes
SETTING = LAST_AXES.index("alloc-conf") - len(LAST_AXES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A combination of moves with its price, not yet estimated."""

    cell: int  # of the table
    moves: Moves
    allocated_bytes: int
    slowdown: tuple[
        float, float
    ]  # time per token against the job as given, at both ends of the assumptions

    @property
    def kind(self) -> Kind:
        return kind_of(self.moves)


@dataclass(slots=True)
class _Made:
    """What combinations have in common."""

    recordings: dict[Hashable, Recording] = field(default_factory=dict)
    weights: dict[Hashable, int] = field(default_factory=dict)
    work: dict[int, Work] = field(default_factory=dict)
    grids: dict[Hashable, Bytes] = field(default_factory=dict)
    fixed: dict[Hashable, Bytes] = field(default_factory=dict)
    seconds: dict[Hashable, tuple[Floats, Floats]] = field(default_factory=dict)
    updates: dict[Hashable, tuple[float, float]] = field(default_factory=dict)


class Table:
    """Peaks and times of every combination of the moves that apply to a job."""

    def __init__(
        self,
        job: Job,
        config: Config,
        gpu: Gpu | None,
        limits: Limits,
        most_bytes: int | None = None,
        known: Table | None = None,
    ) -> None:
        """With `most_bytes`, combinations whose weights alone take more are left out, single changes excepted. `known`
        is another table of the same job, whose recordings serve this one too."""
        self.job, self.config, self.gpu, self.most_bytes = job, config, gpu, most_bytes
        self._made: _Made = _Made() if known is None else known._made
        self._applied = Applied(job)
        self.sizes = sizes_of(resolve(job).data, config)
        own = Recording(resolve(job), config, gpu, self.sizes)
        axes: dict[str, list[Move | None]] = {}
        for move in available(job, limits.keep, own.program.params(), second_gpu=limits.second_gpu):
            axes.setdefault(move.axis, [None]).append(move)
        _drop_dominated(axes)
        first = [name for name in axes if name not in LAST_AXES]
        self.regimes = [axes[name] for name in first]
        self.last = [axes.get(name, [None]) for name in LAST_AXES]
        self.axes = [*self.regimes, *self.last]
        self.shape = tuple(len(axis) for axis in self.axes)
        self.divisors = [job.batch // _after(move, job).batch for move in self.last[3]]
        self.grid = self._grid()
        self.base = self._base_cost()
        self.slowdown: tuple[Floats, Floats] = (numpy.zeros(self.shape), numpy.zeros(self.shape))
        self._bytes: Bytes = numpy.full(
            self.shape, IMPOSSIBLE, numpy.int64
        )  # at least so many; the peak once priced
        self._unpriced: dict[int, tuple[Index, Recording, Job]] = {}  # by the number of the grid
        self._bounded: set[int] = set()  # of those, grids that hold what `_lightest` takes
        self._fill()
        if limits.max_slowdown is not None:
            self._bytes[numpy.maximum(*self.slowdown) > limits.max_slowdown] = IMPOSSIBLE

    def _grid(self) -> Sizes:
        batches = numpy.array([_after(move, self.job).batch for move in self.last[3]])
        seqs = numpy.array(
            [
                int(sizes_of(resolve(_after(move, self.job)).data, self.config).seq)
                for move in self.last[4]
            ]
        )
        b, s = numpy.meshgrid(batches, seqs, indexing="ij")
        target = s if self.job.target_seq is None else self.job.target_seq
        images, tokens = self.sizes.images, self.sizes.image_tokens
        return Sizes(batch=b, seq=s, target_seq=target, images=int(images), image_tokens=tokens)

    def _base_cost(self) -> StepCost:
        recording = self._recording(self.job)
        fast, slow = self._pass_seconds(recording, self.job)
        return StepCost(
            pass_s=(float(fast[0, 0]), float(slow[0, 0])),
            passes=self.job.accumulate,
            update_s=update_seconds(recording.params, resolve(self.job), self.gpu),
            tokens=int(self.tokens[0, 0]),
        )

    @property
    def tokens(self) -> Bytes:
        """Of one micro-batch: what the model reads, and what an encoder-decoder writes."""
        counted: Bytes = self.grid.batch * self.grid.seq
        return counted

    # ---- filling

    def _fill(self) -> None:
        for index in numpy.ndindex(*self.shape[: len(self.regimes)]):
            job = self._applied(self._chosen(self.regimes, index))
            if job is None:
                continue
            if sum(map(bool, index)) > 1 and self._hopeless(job):
                continue
            recording = self._recording(job)
            seconds = self._pass_seconds(recording, job)
            for at in numpy.ndindex(*self.shape[len(self.regimes) : -3]):
                changed = self._applied(
                    self._chosen([*self.regimes, *self.last[:2]], (*index, *at))
                )
                if changed is not None:
                    self._fill_grid((*index, *at), recording, changed, seconds)

    def _hopeless(self, job: Job) -> bool:
        key = _stored(job)
        if key not in self._made.weights:
            self._made.weights[key] = self._recording(job).params.nbytes
        return self.most_bytes is not None and self._made.weights[key] > self.most_bytes

    def _fill_grid(
        self, at: Index, recording: Recording, job: Job, seconds: tuple[Floats, Floats]
    ) -> None:
        """All micro-batches and lengths of one regime with one optimizer: their times, and what takes no fold."""
        update, passes = (
            self._update(recording, job),
            job.accumulate * numpy.array(self.divisors)[:, None],
        )
        for end, per_token in enumerate(self.base.seconds_per_token):
            took = (seconds[end] * passes + update[end]) / (self.tokens * passes)
            self.slowdown[end][at] = took / per_token  # whatever the allocator's setting
        for row, several in enumerate((passes[:, 0] > 1).tolist()):
            if not (several and resolve(job).optimizer.implementation == "in-backward"):
                where: tuple[int | slice, ...] = (*at, slice(None), row)
                self._bytes[where] = int(self._persistent(recording, job, several)[EVER].max())
        self._unpriced[int(numpy.ravel_multi_index((*at, 0, 0, 0), self.shape)) // self._cells] = (
            at,
            recording,
            job,
        )

    @property
    def _cells(self) -> int:
        """Of a grid: one regime with one optimizer."""
        return prod(self.shape[-3:])

    def _price(self, cells: NDArray[numpy.int64]) -> Bytes:
        """The peaks of these cells. What is folded for one of them is there for its whole grid."""
        for number in self._numbers_unpriced(cells):
            self._price_grid(*self._unpriced.pop(number))
        return self._bytes.ravel()[cells]

    def _price_up_to(self, cells: NDArray[numpy.int64], most_bytes: int) -> Bytes:
        """The peaks of those cells that take at most so many bytes; more than that for the others."""
        nbytes = self._bytes.ravel()
        while self._approach(cells[nbytes[cells] <= most_bytes]):
            pass
        return nbytes[cells]

    def _approach(self, cells: NDArray[numpy.int64]) -> bool:
        """From what lies there to what `_lightest` takes, and from that to the peak. False: they are priced already."""
        numbers = self._numbers_unpriced(cells)
        for number in numbers:
            at, recording, job = self._unpriced[number]
            lightest = job if number in self._bounded else _lightest(job)
            self._price_grid(at, recording, lightest)
            if lightest is job:
                del self._unpriced[number]
            else:
                self._bounded.add(number)
        return bool(numbers)

    def _numbers_unpriced(self, cells: NDArray[numpy.int64]) -> set[int]:
        numbers: list[int] = (cells // self._cells).tolist()
        return self._unpriced.keys() & numbers

    def _price_grid(self, at: Index, recording: Recording, job: Job) -> None:
        peaks: dict[bool, Bytes] = {}
        for row, divisor in enumerate(self.divisors):
            accumulates = job.accumulate * divisor > 1
            where: tuple[int | slice, ...] = (*at, slice(None), row)
            possible = self._bytes[where] != IMPOSSIBLE
            if possible.any():
                if accumulates not in peaks:
                    peaks[accumulates] = self._peaks(
                        recording, job, accumulates, alone=sum(map(bool, at)) <= 1
                    )
                self._bytes[where] = numpy.where(possible, peaks[accumulates][row], IMPOSSIBLE)

    @property
    def allocated(self) -> Bytes:
        """Every peak."""
        self._price(numpy.arange(self._bytes.size))
        return self._bytes

    def _peaks(self, recording: Recording, job: Job, accumulates: bool, *, alone: bool) -> Bytes:
        """The largest sum over the moments, at every point of the grid. Where what lies there is too much by itself,
        that much, except for a change `alone`, which is shown with what it frees."""
        persistent = self._persistent(recording, job, accumulates)
        least = int(persistent[EVER].max())
        if self.most_bytes is not None and least > self.most_bytes and not alone:
            return numpy.full(self.grid.batch.shape, least, numpy.int64)
        peaks: Bytes = (self._moving(recording, job, accumulates) + persistent[:, None, None]).max(
            axis=0
        )
        return peaks

    def _moving(self, recording: Recording, job: Job, accumulates: bool) -> Bytes:
        """What depends on batch and length, moment by moment; far below zero where the job has no such moment."""
        key = (
            id(recording),
            job.checkpointing,
            job.keep_outputs,
            job.reference,
            accumulates,
            resolve(job).optimizer.implementation == "in-backward",
            (job.optimizer, resolve(job).optimizer.implementation)
            if job.resume != "none"
            else None,
        )
        if key not in self._made.grids:
            passes = recording.passes(resolve(_accumulating(job) if accumulates else job))
            others = self._others(recording, job, accumulates)
            grids = [_on_grid(passes, others, phase, self.grid.batch.shape) for phase in MOMENTS]
            self._made.grids[key] = numpy.stack(grids)
        return self._made.grids[key]

    def _others(self, recording: Recording, job: Job, accumulates: bool) -> ByPhase:
        """A Trainer holds all micro-batches of a step, so that every row of the grid has inputs of its own."""
        if not accumulates:
            return recording.others(resolve(job))
        rows = [
            recording.others(resolve(replace(job, accumulate=job.accumulate * divisor)))
            for divisor in self.divisors
        ]
        return {
            phase: self._joined([row.get(phase, 0) for row in rows])
            for phase in rows[0].keys() & set(MOMENTS)
        }

    def _joined(self, rows: list[Number]) -> Bytes:
        """One grid, whose rows are those of several."""
        grids = [numpy.broadcast_to(_counted(row), self.grid.batch.shape) for row in rows]
        return numpy.stack([grid[number] for number, grid in enumerate(grids)])

    def _persistent(self, recording: Recording, job: Job, accumulates: bool) -> Bytes:
        """Does not depend on how the passes run: one array for all regimes that store the same dtypes."""
        key = (
            *_stored(job),
            job.optimizer,
            resolve(job).optimizer.implementation,
            job.zero_grad,
            accumulates,
        )
        if key not in self._made.fixed:
            persistent = recording.persistent(resolve(_accumulating(job) if accumulates else job))
            self._made.fixed[key] = _counted([persistent[phase] for phase in MOMENTS])
        return self._made.fixed[key]

    def _recording(self, job: Job) -> Recording:
        inputs = needs_input_grads(resolve(job), self.config)
        key = (
            *_stored(job),
            job.attention,
            resolve(job).kernels.loss,
            kv_cache(resolve(job), self.config),
            inputs,
        )
        if key not in self._made.recordings:
            self._made.recordings[key] = Recording(resolve(job), self.config, self.gpu, self.grid)
        return self._made.recordings[key]

    def _pass_seconds(self, recording: Recording, job: Job) -> tuple[Floats, Floats]:
        key = (id(recording), job.checkpointing, job.reference)
        if key not in self._made.seconds:
            shape = self.grid.batch.shape
            if id(recording) not in self._made.work:
                self._made.work[id(recording)] = work_of(recording.program)
            fast, slow = pass_seconds(
                recording.program, self._made.work[id(recording)], resolve(job), self.gpu
            )
            self._made.seconds[key] = (
                numpy.broadcast_to(fast, shape),
                numpy.broadcast_to(slow, shape),
            )
        return self._made.seconds[key]

    def _update(self, recording: Recording, job: Job) -> tuple[float, float]:
        key = (*_stored(job), job.optimizer, resolve(job).optimizer.implementation)
        if key not in self._made.updates:
            self._made.updates[key] = update_seconds(recording.params, resolve(job), self.gpu)
        return self._made.updates[key]

    # ---- reading

    @property
    def num_candidates(self) -> int:
        return int((self._bytes != IMPOSSIBLE).sum())

    def _index(self, flat: int) -> Index:
        return tuple(int(i) for i in numpy.unravel_index(flat, self.shape))

    def _moves_at(self, flat: int) -> Moves:
        return self._chosen(self.axes, self._index(flat))

    def at(self, flat: int) -> Candidate:
        where = self._index(flat)
        return Candidate(
            cell=flat,
            moves=self._chosen(self.axes, where),
            allocated_bytes=int(self._price(numpy.array([flat]))[0]),
            slowdown=(float(self.slowdown[0][where]), float(self.slowdown[1][where])),
        )

    def ranked(
        self, most_bytes: int, skip: Callable[[Moves], bool] = lambda moves: False
    ) -> Iterator[Candidate]:
        """Combinations of at most so many bytes: free before slower before a changed training, then by effort. What is
        much slower comes with what changes the training (see `rank_of`). Priced as they are asked for."""
        found = numpy.flatnonzero(self._bytes <= most_bytes)
        rank, effort = self.rank.ravel()[found], self.effort.ravel()[found]
        order = numpy.lexsort((effort, rank))
        ends = numpy.flatnonzero(numpy.diff(rank[order]) | (numpy.diff(effort[order]) != 0)) + 1
        for alike in numpy.split(found[order], ends):
            asked = numpy.array(
                [cell for cell in alike.tolist() if not skip(self._moves_at(cell))], numpy.int64
            )
            peaks = self._price_up_to(asked, most_bytes)
            for position in numpy.argsort(peaks, kind="stable"):
                if peaks[position] <= most_bytes:
                    yield self.at(int(asked[position]))

    @property
    def kind(self) -> NDArray[numpy.int64]:
        """The worst class of a combination's moves."""
        worst = numpy.zeros(self.shape, numpy.int64)
        for number, axis in enumerate(self.axes):
            worst = numpy.maximum(
                worst, self._along(number, [KINDS.index(m.kind) if m else 0 for m in axis])
            )
        return worst

    @property
    def rank(self) -> NDArray[numpy.int64]:
        slower, changes = KINDS.index(Kind.SLOWER), KINDS.index(Kind.CHANGES)
        much = (self.kind == slower) & (numpy.maximum(*self.slowdown) > MUCH_SLOWER)
        return numpy.where(much, changes, self.kind)

    @property
    def effort(self) -> Floats:
        total = SLOWDOWN_PRICE * (numpy.maximum(*self.slowdown) - 1)
        for number, axis in enumerate(self.axes):
            total = total + self._along(number, [move_effort(m) if m else 0.0 for m in axis])
        return numpy.round(total, 3)

    def _along(self, number: int, values: list[Any]) -> NDArray[Any]:
        shape = [1] * len(self.shape)
        shape[number] = len(values)
        return numpy.array(values).reshape(shape)

    def _chosen(self, axes: list[list[Move | None]], index: Index) -> Moves:
        picked = (axis[i] for axis, i in zip(axes, index, strict=True))
        return tuple(move for move in picked if move is not None)

    def singles(self) -> list[Candidate]:
        """Each move alone."""
        found = []
        for number, axis in enumerate(self.axes):
            for position in range(1, len(axis)):
                index = [0] * len(self.shape)
                index[number] = position
                if self._bytes[tuple(index)] != IMPOSSIBLE:
                    found.append(self.at(int(numpy.ravel_multi_index(index, self.shape))))
        return found

    def smallest(self) -> Candidate:
        """Of several the one of least effort, with the allocator set to cache least."""
        found = self._least(numpy.arange(self._bytes.size), IMPOSSIBLE)
        return self.caching_least(
            self.at(int(found[self.effort.ravel()[found].argmin()]) if found.size else 0)
        )

    def caching_least(self, candidate: Candidate) -> Candidate:
        """The same with the allocator's last setting."""
        index = list(self._index(candidate.cell))
        index[SETTING] = self.shape[SETTING] - 1
        return self.at(int(numpy.ravel_multi_index(index, self.shape)))

    def front(self, most_bytes: int) -> list[Candidate]:
        """Of the combinations that fit and change the training least: those that no other beats in memory and time."""
        lenient = self.kind.ravel() <= KINDS.index(Kind.SLOWER)
        gentle = self._front(numpy.flatnonzero(lenient), most_bytes)
        return gentle or self._front(numpy.flatnonzero(~lenient), most_bytes)

    def _front(self, cells: NDArray[numpy.int64], most_bytes: int) -> list[Candidate]:
        """From the fastest to the slowest, each smaller than all before."""
        slow, effort = (
            numpy.round(numpy.maximum(*self.slowdown).ravel()[cells], 2),
            self.effort.ravel(),
        )
        order = numpy.argsort(slow, kind="stable")
        front, least = [], most_bytes + 1
        for alike in numpy.split(cells[order], numpy.flatnonzero(numpy.diff(slow[order])) + 1):
            smallest = self._least(alike, least)
            if smallest.size:
                front.append(self.at(int(smallest[effort[smallest].argmin()])))
                least = front[-1].allocated_bytes
        return front

    def _least(self, cells: NDArray[numpy.int64], below_bytes: int) -> NDArray[numpy.int64]:
        """The smallest of the cells below so many bytes; several, where they are alike. Best first: a grid is priced
        only where what lies there is less than any peak that is known."""
        nbytes = self._bytes.ravel()
        while (low := nbytes[cells].min(initial=IMPOSSIBLE)) < below_bytes:
            found: NDArray[numpy.int64] = cells[nbytes[cells] == low]
            if not self._approach(found):
                return found
        return cells[:0]


def _drop_dominated(axes: dict[str, list[Move | None]]) -> None:
    """A chunked loss never takes less than a fused one, at the same class and time: never the better choice."""
    names = [move.name for move in axes.get("loss", ()) if move]
    if "fused linear cross entropy" in names:
        axes["loss"] = [
            move for move in axes["loss"] if move is None or move.name != "chunked cross entropy"
        ]


def _stored(job: Job) -> tuple[Hashable, ...]:
    """What decides which parameters exist, in which dtype, and which are trained."""
    return (job.precision, job.adapter, job.lora_rank, job.quantize, job.freeze)


def _after(move: Move | None, job: Job) -> Job:
    return job if move is None else move.apply(job) or job


def _lightest(job: Job) -> Job:
    """Without what only ever adds: outputs that a variable holds, a reference."""
    if not resolve(job).loop.keeps_outputs and job.reference in ("none", "precomputed"):
        return job
    return job.changed(keep_outputs=False, reference="none")


def _accumulating(job: Job) -> Job:
    return job if job.accumulate > 1 else replace(job, accumulate=2)


def _on_grid(passes: ByPhase, others: ByPhase, phase: str, shape: tuple[int, ...]) -> Bytes:
    if phase not in passes:
        return numpy.full(shape, -(2**62), numpy.int64)
    return numpy.broadcast_to(_counted(passes[phase] + others.get(phase, 0)), shape)


def _counted(nbytes: Any) -> Bytes:
    try:
        return numpy.asarray(nbytes, numpy.int64)
    except OverflowError:
        raise InputError(
            "the job takes more bytes than 64 bits can count; look at its sizes and ranks"
        ) from None
