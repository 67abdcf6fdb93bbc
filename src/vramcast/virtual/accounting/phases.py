"""Which phase of training the script is in, found from what it calls: modules, backward, optimizers.

    load ─ first forward with gradients ─▶ forward ─ module returns ─▶ loss ─▶ backward ─▶ step ─▶ next forward …

In come the moments at which these calls begin and end. Out go `current`, the number of optimizer steps, and a call of
`on_phase_end` with the name of each phase that ends. Does not know memory: the meters do.

A loop of two steps with an evaluation after the first:

    model.cuda()                  load
    loss = model(x).sum()         forward while the model runs, loss afterwards
    loss.backward()               backward, then step until optimizer.step() returns: clipping of gradients is in it
    optimizer.step()              next forward from here on; steps = 1
    with no_grad(): model(x)      eval
    loss = model(x).sum()         next forward, next loss
    …                             next backward, next step; later steps have the same four names

A forward without gradients of a model that never trains, such as a frozen reference, is part of the forward phase.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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

_AFTER_FIRST_STEP = {
    FORWARD: NEXT_FORWARD,
    LOSS: NEXT_LOSS,
    BACKWARD: NEXT_BACKWARD,
    STEP: NEXT_STEP,
}


class Phases:
    def __init__(self, on_phase_end: Callable[[str], None]) -> None:
        self._on_phase_end = on_phase_end
        self._steps_of: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
        self._running_backwards = 0
        self.current = LOAD
        self.steps = 0  # of the optimizer that stepped most: a script may own several
        self.awaits_step = False  # a backward is done, and no optimizer has stepped since
        self._wrote_weights = False  # the script itself, while a step was awaited
        self.after_own_step: Callable[[], None] = lambda: None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What is called until this ends is no part of the loop."""
        before = vars(self).copy()
        self._on_phase_end = lambda phase: None
        self.after_own_step = lambda: None
        try:
            yield
        finally:
            vars(self).update(before)

    def enter(self, phase: str) -> None:
        name = _AFTER_FIRST_STEP.get(phase, phase) if self.steps else phase
        if name != self.current:
            self._on_phase_end(self.current)
            self.current = name

    def begin_forward(self, *, with_gradients: bool, trainable: bool) -> None:
        if self._is_in(BACKWARD) and self._running_backwards:
            return  # checkpointing runs the forward again inside backward
        self._end_own_step()
        if with_gradients:
            self.enter(FORWARD)
        elif trainable:
            self.enter(EVAL)
        elif self.current == EVAL:
            self.enter(FORWARD)

    def end_forward(self) -> None:
        if self._is_in(FORWARD):
            self.enter(LOSS)

    def begin_backward(self) -> None:
        if not self._running_backwards:
            self._end_own_step()
        self.enter(BACKWARD)
        self._running_backwards += 1

    def end_backward(self) -> None:
        self._running_backwards -= 1
        if not self._running_backwards:
            self.enter(STEP)
            self.awaits_step = True

    def note_written_weight(self) -> None:
        """The script wrote into a weight itself: `p.data.add_(p.grad, alpha=-lr)` is a step without an optimizer."""
        self._wrote_weights = True

    def _end_own_step(self) -> None:
        if self._wrote_weights:
            self.end_step(self)
            self.after_own_step()

    def begin_step(self) -> None:
        self.enter(STEP)

    def end_step(self, optimizer: object) -> None:
        self._on_phase_end(self.current)
        self._steps_of[optimizer] = self._steps_of.get(optimizer, 0) + 1
        self.steps = max(self.steps, self._steps_of[optimizer])
        self.awaits_step = self._wrote_weights = False
        self.current = NEXT_FORWARD

    def _is_in(self, phase: str) -> bool:
        return self.current in (phase, _AFTER_FIRST_STEP[phase])
