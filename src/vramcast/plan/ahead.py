"""Work done ahead in other processes: a search that will probably ask for an estimate need not wait for it.

What comes out is what one process would have made, in the same order; a guess that nobody asks for is dropped. Forks
only where that is safe: on Linux, from a process with a single thread that has not loaded torch.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Generic, TypeVar

Task = TypeVar("Task", bound=Hashable)
Made = TypeVar("Made")


MOST = 4  # processes: of more guesses few are asked for


def processes() -> int:
    if sys.platform != "linux" or threading.active_count() > 1 or "torch" in sys.modules:
        return 1
    return min(len(os.sched_getaffinity(0)), MOST)


class Here(Generic[Made]):
    """Made when it is asked for."""

    def __init__(self, make: Callable[[], Made]) -> None:
        self.make = make

    def result(self) -> Made:
        return self.make()

    def drop(self) -> None:
        """Nobody will ask."""


class Ahead(Here[Made]):
    """Made in a process of its own from now on. What fails there is made here, where its error can be raised."""

    def __init__(self, make: Callable[[], Made]) -> None:
        super().__init__(make)
        context = get_context("fork")
        self._receiver, sender = context.Pipe(duplex=False)
        self._process = context.Process(target=_send, args=(make, sender), daemon=True)
        self._process.start()
        sender.close()

    def result(self) -> Made:
        try:
            made: Made = self._receiver.recv()
        except EOFError:
            made = self.make()
        self.drop()
        return made

    def drop(self) -> None:
        self._process.kill()
        self._process.join()
        self._receiver.close()


def _send(make: Callable[[], object], sender: Connection) -> None:
    try:
        sender.send(make())
    except BaseException:
        os._exit(1)  # in silence


def started(make: Callable[[], Made]) -> Here[Made]:
    """At once, if there is a second core for it."""
    return Ahead(make) if processes() > 1 else Here(make)


class Guesses(Generic[Task, Made]):
    """What will probably be asked for: as many at work, or done and waiting, as there are other cores."""

    def __init__(self, make: Callable[[Task], Made]) -> None:
        self._make, self._most = make, processes() - 1
        self._begun: dict[Task, Ahead[Made]] = {}

    def __enter__(self) -> Guesses[Task, Made]:
        return self

    def __exit__(self, *_: object) -> None:
        for guess in self._begun.values():
            guess.drop()

    def __iter__(self) -> Iterator[Task]:
        return iter(self._begun)

    @property
    def has_room(self) -> bool:
        return len(self._begun) < self._most

    def begin(self, task: Task) -> None:
        self._begun[task] = Ahead(partial(self._make, task))

    def result(self, task: Task) -> Made:
        guess = self._begun.pop(task, None)
        return self._make(task) if guess is None else guess.result()
