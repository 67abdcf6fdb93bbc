"""Work done ahead in other processes: a search that will probably ask for an estimate need not wait for it.

What comes out is what one process would have made, in the same order; a guess that nobody asks for is dropped. Forks
only where that is safe: on Linux, from a process with a single thread that has not loaded torch.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from math import inf
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import Generic, Protocol, TypeVar

from vramcast.deadline import OutOfTime, left_s

Made = TypeVar("Made")


class Asked(Protocol[Made]):
    def __call__(self, number: int, make: Callable[[], Made]) -> Made: ...


def processes() -> int:
    if sys.platform != "linux" or threading.active_count() > 1 or "torch" in sys.modules:
        return 1
    return len(os.sched_getaffinity(0))


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
            wait_for(self._receiver)
            made: Made = self._receiver.recv()
        except EOFError:
            made = self.make()
        finally:
            self.drop()
        return made

    def drop(self) -> None:
        self._process.kill()
        self._process.join()
        self._receiver.close()


def wait_for(receiver: Connection) -> None:
    """Until there is something to receive, or time runs out."""
    left = left_s()
    if not receiver.poll(None if left == inf else max(left, 0)):
        raise OutOfTime


def _send(make: Callable[[], object], sender: Connection) -> None:
    try:
        sender.send(make())
    except BaseException:
        os._exit(1)  # in silence


def started(make: Callable[[], Made]) -> Here[Made]:
    """At once, if there is a second core for it."""
    return Ahead(make) if processes() > 1 else Here(make)


class Foreseen(Generic[Made]):
    """Answers to questions, by number, that will probably be asked: another process makes them one after the other.
    What it has not begun with when it is asked for is made here."""

    def __init__(self) -> None:
        self._made: dict[int, Made] = {}
        self._under_way: int | None = None
        self._process: ForkProcess | None = None

    def __enter__(self) -> Foreseen[Made]:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._receiver.close()
        self._process = self._under_way = None

    def begin(self, work: Callable[[Asked[Made]], None]) -> None:
        """If there is a second core: the other process leaves what it was at and does this work, which calls what it
        is given for each question, with its number and how to answer it."""
        if processes() > 1:
            self._end()
            context = get_context("fork")
            self._receiver, sender = context.Pipe(duplex=False)
            self._process = context.Process(target=_answer, args=(work, self._made, sender), daemon=True)
            self._process.start()
            sender.close()

    @property
    def is_at_work(self) -> bool:
        return self._process is not None

    def has(self, number: int) -> bool:
        """Once the other process has begun with it, its answer is waited for."""
        while self._process is not None and number not in self._made and self._has_news(number):
            try:
                self._under_way, *made = self._receiver.recv()
            except EOFError:
                self._end()
                break
            if made and self._under_way is not None:
                self._made[self._under_way], self._under_way = made[0], None
        return number in self._made

    def result(self, number: int, make: Callable[[], Made]) -> Made:
        return self._made.pop(number) if self.has(number) else make()

    def _has_news(self, number: int) -> bool:
        if self._under_way == number:
            wait_for(self._receiver)
        return self._receiver.poll()


def _answer(work: Callable[[Asked[Made]], None], known: dict[int, Made], sender: Connection) -> None:
    def asked(number: int, make: Callable[[], Made]) -> Made:
        if number in known:
            return known[number]
        sender.send((number,))
        made = make()
        sender.send((number, made))
        return made

    try:
        work(asked)
    except BaseException:
        os._exit(1)  # in silence
