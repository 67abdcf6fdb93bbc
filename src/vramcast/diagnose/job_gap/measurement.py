"""The one measurement that tells the explanations apart.

In: Explanations. Out: the axis of a deviation, or PHASE, on which they differ most. Does not know how to measure it.
"""

from __future__ import annotations

from collections.abc import Sequence

from vramcast.diagnose.job_gap.deviations import axis_of
from vramcast.diagnose.job_gap.explanation import Explanation

PHASE = "phase"


def choose_measurement(explanations: Sequence[Explanation]) -> str | None:
    """None if the explanations differ in nothing that can be measured."""
    changed = [axis_of(name) for item in explanations for name in item.changes]
    weights = {axis: _differing_weight(explanations, axis) for axis in (*changed, PHASE)}
    best = max(weights, key=lambda axis: weights[axis])
    return best if weights[best] > 0 else None


def _differing_weight(explanations: Sequence[Explanation], axis: str) -> float:
    """The weight of all explanations outside the largest group that agrees on this axis."""
    groups: dict[tuple[str, ...], float] = {}
    for item in explanations:
        group = _position(item, axis)
        groups[group] = groups.get(group, 0.0) + item.weight
    return sum(groups.values()) - max(groups.values(), default=0.0)


def _position(item: Explanation, axis: str) -> tuple[str, ...]:
    if axis == PHASE:
        return (item.agreement.phase.removeprefix("next "),)
    return tuple(name for name in item.changes if axis_of(name) == axis)
