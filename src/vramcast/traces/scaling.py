"""Traces of one script at a few sizes → what it takes at any other: every allocation is a polynomial in the knobs.

The order of allocations does not depend on batch or length, only their sizes do: linear in the batch, linear or
quadratic in the length. So the sizes at a few points determine them everywhere, exactly, in integers:

    allocation 812, 2 × 512: 4194304 bytes,  4 × 512: 8388608,  2 × 256: 2097152,  4 × 256: 4194304   →  4096·batch·seq

Predicted sizes are played through the allocator model, so reserved memory and the verdict follow too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import product, zip_longest
from math import lcm, prod
from operator import mul

from vramcast.errors import TraceError
from vramcast.traces.record import CardStream, Label, Trace
from vramcast.traces.replay import Replayed, alive_at, replay

Point = tuple[int, ...]  # a value for each knob
Coefficients = dict[tuple[int, ...], Fraction]  # by the powers of the knobs


class Differs(TraceError):
    """The script allocates otherwise at one size than at another."""


class Aligned:
    """One trace's stream, with the memory that kernels take inside told apart: some take it only from a size on.

    What is freed after the last allocation is left out: the script left it behind, and Python collects it
    when it likes, before the trace is written or after it.
    """

    def __init__(self, stream: CardStream) -> None:
        self.stream = stream
        inside = {n for n, label in enumerate(stream.labels) if not label.op}
        self.is_inside = [number in inside for number in stream.label]
        rank: dict[int, int] = {}
        order: list[int] = []  # events of the script's own allocations, by their number among these
        groups: dict[int, list[int]] = {}  # by position in `order`
        last = max((at for at, event in enumerate(stream.events) if event >= 0), default=-1)
        for event in stream.events[: last + 1]:
            index = event if event >= 0 else ~event
            if not self.is_inside[index]:
                number = rank.setdefault(index, len(rank))
                order.append(number if event >= 0 else ~number)
            elif event >= 0:
                groups.setdefault(len(order), []).append(index)
        self.order, self.rank, self.groups = tuple(order), rank, groups
        self.own = list(rank)
        self.position = {i: at for at, group in groups.items() for i in group}

    def counterpart(self, of: Aligned, index: int) -> int | None:
        """The allocation that is `index` in another trace; None where a kernel did not take it."""
        if not of.is_inside[index]:
            return self.own[of.rank[index]]
        at = of.position[index]
        mine, theirs = self.groups.get(at, []), of.groups[at]
        return mine[theirs.index(index)] if len(mine) == len(theirs) else None


@dataclass(frozen=True)
class Scaled:
    """Traces at every combination of a few values of each knob. `values`: those of each knob."""

    knobs: tuple[str, ...]
    values: tuple[tuple[int, ...], ...]
    traces: Mapping[Point, Trace]
    place: str

    def check(self) -> None:
        """Raise Differs if the traces are not of the same order of allocations."""
        for point in self._points[1:]:
            first = self._points[0]
            check_alike(
                self._aligned[first], self._aligned[point], self.named(first), self.named(point)
            )

    def named(self, point: Point) -> str:
        return ", ".join(f"{knob} {value}" for knob, value in zip(self.knobs, point, strict=True))

    def predict_sizes(self, point: Point) -> list[int]:
        """Of every allocation of `base`, at any point: Lagrange's polynomials through the traced ones."""
        weights = self._weights(point)
        common = lcm(*(weight.denominator for weight in weights))
        scaled = [int(weight * common) for weight in weights]
        half = common // 2
        return [
            self._of_kernel(index, point)
            if sizes is None
            else max(0, (sum(map(mul, scaled, sizes)) + half) // common)
            for index, sizes in enumerate(self._sizes)
        ]

    def replay(self, point: Point, capacity_bytes: int | None = None) -> Replayed:
        trace = self.traces[self._points[0]]
        return replay(
            self.base,
            self.predict_sizes(point),
            capacity_bytes=capacity_bytes,
            context_bytes=trace.context_bytes,
            conf=trace.allocator,
        )

    def fits(self, point: Point) -> bool:
        return not self.replay(point, self.traces[self._points[0]].capacity_bytes).ran_out

    def largest_that_fits(self, point: Point, knob: int, step: int, most: int) -> int | None:
        """The largest value of one knob, in steps, the others as in `point`."""

        def at(count: int) -> Point:
            return (*point[:knob], count * step, *point[knob + 1 :])

        if not self.fits(at(1)):
            return None
        low, high = 1, max(1, most // step)
        while low < high:
            middle = min(2 * low, (low + high + 1) // 2)  # large sizes are rarely asked for
            if self.fits(at(middle)):
                low = middle
            else:
                high = middle - 1
        return low * step

    def terms(self, point: Point) -> list[tuple[str, Coefficients]]:
        """What is alive at the peak of `point`, by category: the coefficient of each monomial, largest first."""
        sums: dict[str, list[int]] = {}
        for index in alive_at(self.base, self.replay(point).peak_event):
            sizes = self._sizes[index]
            if sizes is None:
                continue
            category = self.base.labels[self.base.label[index]].category
            totals = sums.setdefault(category, [0] * len(sizes))
            for column, size in enumerate(sizes):
                totals[column] += size
        found = [
            (category, _coefficients(self.values, dict(zip(self._points, totals, strict=True))))
            for category, totals in sums.items()
        ]
        return sorted(found, key=lambda item: -_value(item[1], point))

    def count_exact(self, point: Point, traced: CardStream) -> tuple[int, int]:
        """How many allocations of a point that was traced for checking are predicted to the byte, and of how many."""
        checked = Aligned(traced)
        check_alike(self._richest, checked, self.named(self._points[0]), self.named(point))
        predicted = self.predict_sizes(point)
        exact = 0
        for index, nbytes in enumerate(predicted):
            other = checked.counterpart(self._richest, index)
            exact += other is not None and traced.requested_bytes[other] == nbytes
        return exact, len(predicted)

    @property
    def base(self) -> CardStream:
        """The stream that predictions follow: that of the trace with the most memory inside kernels."""
        return self._richest.stream

    @cached_property
    def _points(self) -> tuple[Point, ...]:
        return tuple(product(*self.values))

    @cached_property
    def _aligned(self) -> dict[Point, Aligned]:
        return {point: Aligned(self.traces[point].cards[self.place]) for point in self._points}

    @cached_property
    def _richest_point(self) -> Point:
        return max(self._points, key=lambda p: (len(self._aligned[p].position), prod(p)))

    @property
    def _richest(self) -> Aligned:
        return self._aligned[self._richest_point]

    @cached_property
    def _sizes(self) -> list[tuple[int, ...] | None]:
        """Of every allocation of `base`, its bytes at all points; None where some kernel did not take it."""
        rows: list[tuple[int, ...] | None] = []
        aligned = [self._aligned[point] for point in self._points]
        for index in range(len(self.base.requested_bytes)):
            found = [other.counterpart(self._richest, index) for other in aligned]
            if None in found:
                rows.append(None)
            else:
                rows.append(
                    tuple(
                        other.stream.requested_bytes[at]
                        for other, at in zip(aligned, found, strict=True)
                        if at is not None
                    )
                )
        return rows

    def _weights(self, point: Point) -> list[Fraction]:
        factors = [_lagrange(values, at) for values, at in zip(self.values, point, strict=True)]
        return [
            prod(
                (factor[index] for factor, index in zip(factors, indices, strict=True)),
                start=Fraction(1),
            )
            for indices in product(*(range(len(values)) for values in self.values))
        ]

    def _of_kernel(self, index: int, point: Point) -> int:
        """Memory that not every size has: in proportion to the size of the batch that has it."""
        return self.base.requested_bytes[index] * prod(point) // prod(self._richest_point)


def check_alike(one: Aligned, other: Aligned, name: str, other_name: str) -> None:
    if one.order == other.order:
        return
    where = ""
    for mine, theirs in zip_longest(one.order, other.order):
        if mine != theirs:
            where = _where(one, mine) or _where(other, theirs)
            break
    raise Differs(
        f"the script does not allocate in the same order at {name} and at {other_name}"
        f"{f' (first at {where})' if where else ''}: it has no polynomial. Trace the sizes you need one by one."
    )


def _where(aligned: Aligned, event: int | None) -> str:
    if event is None:
        return ""
    stream = aligned.stream
    label: Label = stream.labels[stream.label[aligned.own[event if event >= 0 else ~event]]]
    return f"{label.source or label.op} in {label.phase}"


def _lagrange(values: Sequence[int], at: int) -> list[Fraction]:
    """The weight of each traced value at another one."""
    return [
        prod(
            (Fraction(at - other, value - other) for other in values if other != value),
            start=Fraction(1),
        )
        for value in values
    ]


def _coefficients(
    values: tuple[tuple[int, ...], ...], totals: Mapping[Point, int]
) -> dict[tuple[int, ...], Fraction]:
    """Of every monomial batch^i · seq^j, from the totals at the traced points."""
    bases = [[_basis(column, value) for value in column] for column in values]
    found: dict[tuple[int, ...], Fraction] = {}
    for powers in product(*(range(len(column)) for column in values)):
        found[powers] = sum(
            (
                total
                * prod(
                    (
                        bases[knob][values[knob].index(value)][power]
                        for knob, (value, power) in enumerate(zip(point, powers, strict=True))
                    ),
                    start=Fraction(1),
                )
                for point, total in totals.items()
            ),
            start=Fraction(0),
        )
    return found


def _basis(values: Sequence[int], value: int) -> list[Fraction]:
    """The coefficients of the polynomial that is 1 at `value` and 0 at the others."""
    coefficients = [Fraction(1)]
    for other in values:
        if other == value:
            continue
        shifted = [Fraction(0), *coefficients]
        for power, coefficient in enumerate(coefficients):
            shifted[power] -= other * coefficient
        coefficients = [part / (value - other) for part in shifted]
    return coefficients


def _value(coefficients: Mapping[tuple[int, ...], Fraction], point: Point) -> Fraction:
    return sum(
        (
            coefficient * prod(value**power for value, power in zip(point, powers, strict=True))
            for powers, coefficient in coefficients.items()
        ),
        start=Fraction(0),
    )
