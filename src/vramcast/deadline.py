"""Work that is of no use after some moment ends itself there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf
from time import perf_counter

_until: ContextVar[float] = ContextVar("until", default=inf)


class OutOfTime(Exception):
    """The moment has passed. What was under way is not made."""


@contextmanager
def until(moment: float) -> Iterator[None]:
    """What is done inside ends at this moment of `perf_counter`, if it asks `check_time`."""
    token = _until.set(moment)
    try:
        yield
    finally:
        _until.reset(token)


def left_s() -> float:
    return _until.get() - perf_counter()


def check_time() -> None:
    """For places where nothing is left half done."""
    if left_s() < 0:
        raise OutOfTime
