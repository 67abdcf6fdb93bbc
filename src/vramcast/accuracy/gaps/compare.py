"""Two sides of one phase → differences, tensor by tensor. They add up to what the formulas are off in that phase.

Tensors meet by their bytes, first within the same part of the model, then anywhere. What is left over on the traced
side is missing from the formulas, what is left over on theirs is extra; a leftover that has half or twice the bytes of
one in the same part is the same tensor in another dtype, one of nearly the same bytes the same with other rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from vramcast.accuracy.gaps.tensors import Side, Tensor

MISSING, EXTRA, DTYPE, SIZE = "missing", "extra", "dtype", "size"
TOTAL, MOMENT = "total", "moment"
FACTORS = (2, 4)  # between fp32 and 16 bit, fp32 and 8 bit
NEARLY = 0.04  # tensors of one part that differ by less are the same with a token more or less


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """`nbytes`: formula − trace."""

    kind: str
    group: str
    part: str
    name: str  # without numbers of layers
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


def compare(traced: Side, formula: Side, higher_bytes: int = 0) -> list[Difference]:
    """`higher_bytes`: what the formulas' own peak of the phase has beyond the moment that is compared."""
    found = [*_totals(traced, formula), *_tensors(traced, formula)]
    if higher_bytes:
        found.append(
            _difference(MOMENT, higher_bytes, "pass", "the formulas' peak is another moment")
        )
    return sorted(found, key=lambda each: (-abs(each.nbytes), each.name))


def _difference(kind: str, nbytes: int, group: str, name: str) -> Difference:
    return Difference(kind=kind, group=group, part="", name=name, dtype="", shape=(), nbytes=nbytes)


def _totals(traced: Side, formula: Side) -> Iterable[Difference]:
    sides = (_sums(formula), _sums(traced))
    for group in dict.fromkeys((*sides[0], *sides[1])):
        gap = sides[0].get(group, 0) - sides[1].get(group, 0)
        if gap:
            yield _difference(TOTAL, gap, group, group)


def _sums(side: Side) -> dict[str, int]:
    sums: dict[str, int] = defaultdict(int)
    for tensor in side.tensors:
        if tensor.group != "pass":
            sums[tensor.group] += tensor.total
    return sums


def _tensors(traced: Side, formula: Side) -> list[Difference]:
    mine = _single(traced)
    theirs = _single(formula)
    for by_part in (True, False):
        mine, theirs = _without_pairs(mine, theirs, by_part=by_part)
    nearly, mine, theirs = _paired(SIZE, mine, theirs, _is_nearly)
    other, mine, theirs = _paired(DTYPE, mine, theirs, _is_other_dtype)
    counted: Counter[Difference] = Counter(
        [
            *nearly,
            *other,
            *(_left(MISSING, tensor, -tensor.nbytes) for tensor in mine),
            *(_left(EXTRA, tensor, tensor.nbytes) for tensor in theirs),
        ]
    )
    return [replace(each, nbytes=each.nbytes * count) for each, count in counted.items()]


def _single(side: Side) -> list[Tensor]:
    """Largest first, one by one."""
    each = [tensor for tensor in side.tensors if tensor.group == "pass" and tensor.nbytes]
    alone = [replace(tensor, count=1) for tensor in each for _ in range(tensor.count)]
    return sorted(alone, key=lambda tensor: (-tensor.nbytes, tensor.name))


def _without_pairs(
    mine: list[Tensor], theirs: list[Tensor], *, by_part: bool
) -> tuple[list[Tensor], list[Tensor]]:
    free: dict[tuple[int, str], list[Tensor]] = defaultdict(list)
    for tensor in theirs:
        free[tensor.nbytes, tensor.part if by_part else ""].append(tensor)
    left = []
    for tensor in mine:
        same = free[tensor.nbytes, tensor.part if by_part else ""]
        if same:
            same.pop()
        else:
            left.append(tensor)
    return left, [tensor for tensors in free.values() for tensor in tensors]


def _paired(
    kind: str, mine: list[Tensor], theirs: list[Tensor], fits: Callable[[int, int], bool]
) -> tuple[list[Difference], list[Tensor], list[Tensor]]:
    """Each traced tensor with the first of the same part that fits it; and what is left of both sides."""
    pairs, left, free = [], [], list(theirs)
    for tensor in mine:
        other = next(
            (t for t in free if t.part == tensor.part and fits(tensor.nbytes, t.nbytes)), None
        )
        if other is None:
            left.append(tensor)
            continue
        free.remove(other)
        named = replace(tensor, name=f"{tensor.name} | {other.name}")
        pairs.append(_left(kind, named, other.nbytes - tensor.nbytes))
    return pairs, left, free


def _is_nearly(one: int, other: int) -> bool:
    return abs(one - other) <= NEARLY * one


def _is_other_dtype(one: int, other: int) -> bool:
    return any(one == factor * other or other == factor * one for factor in FACTORS)


def _left(kind: str, tensor: Tensor, nbytes: int) -> Difference:
    return Difference(
        kind=kind,
        group=tensor.group,
        part=tensor.part,
        name=tensor.name,
        dtype=tensor.dtype,
        shape=tensor.shape,
        nbytes=nbytes,
    )
