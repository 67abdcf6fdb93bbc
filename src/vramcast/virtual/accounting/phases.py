"""Which phase of training the script is in, found from what it calls: modules, backward, optimizers.

    load ─ first forward with gradients ─▶ forward ─ module returns ─▶ loss ─▶ backward ─▶ step ─▶ next forward …

A forward without gradients of a model that trains is `eval`; of one that never trains (a frozen reference) it
belongs to the forward phase. What happens between backward and the end of `optimizer.step()` is the step.
"""

from __future__ import annotations

from collections.abc import Callable

from vramcast.ledger import (
    BACKWARD,
    EVAL,
    FORWARD,
    LOAD,
    LOSS,
    NEXT_BACKWARD,
    NEXT_FORWARD,
    NEXT_LOSS,
    NEXT_STEP,
    STEP,
)

_LATER = {FORWARD: NEXT_FORWARD, LOSS: NEXT_LOSS, BACKWARD: NEXT_BACKWARD, STEP: NEXT_STEP}


class Phases:
    def __init__(self, closed: Callable[[str], None]) -> None:
        self._closed = closed  # called with the name of a phase that ends
        self._steps: dict[int, int] = {}
        self._depth = 0
        self.current = LOAD

    @property
    def steps(self) -> int:
        """Steps of the optimizer that stepped most: a script may own several."""
        return max(self._steps.values(), default=0)

    def enter(self, phase: str) -> None:
        name = _LATER.get(phase, phase) if self.steps else phase
        if name != self.current:
            self._closed(self.current)
            self.current = name

    def forward_begins(self, *, with_gradients: bool, trainable: bool) -> None:
        if self._in(BACKWARD) and self._depth:
            return  # checkpointing runs the forward again inside backward
        if with_gradients:
            self.enter(FORWARD)
        elif trainable:
            self.enter(EVAL)
        elif self.current == EVAL:
            self.enter(FORWARD)

    def forward_ends(self) -> None:
        if self._in(FORWARD):
            self.enter(LOSS)

    def backward_begins(self) -> None:
        self.enter(BACKWARD)
        self._depth += 1

    def backward_ends(self) -> None:
        self._depth -= 1
        if not self._depth:
            self.enter(STEP)

    def step_begins(self) -> None:
        self.enter(STEP)

    def step_ends(self, optimizer: object) -> None:
        self._closed(self.current)
        self._steps[id(optimizer)] = self._steps.get(id(optimizer), 0) + 1
        self.current = NEXT_FORWARD

    def _in(self, phase: str) -> bool:
        return self.current in (phase, _LATER[phase])
