"""The parameters of a model in their order, and sums over them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cached_property

from vramcast.models.record.values import Param


class Params(tuple[Param, ...]):
    """Layers have parameters alike, and a search adds them up by the hundred: one is asked for all of its kind."""

    @cached_property
    def trained(self) -> Params:
        found = Params(param for param in self if param.trainable)
        return self if len(found) == len(self) else found

    @cached_property
    def kinds(self) -> list[tuple[Param, int]]:
        """One of each kind, with how many there are."""
        alike = [(param.shape, param.kind, param.dtype.name, param.trainable, param.stored_bytes) for param in self]
        first = dict(zip(reversed(alike), reversed(self), strict=True))
        return [(first[kind], times) for kind, times in Counter(alike).items()]

    @cached_property
    def sizes(self) -> list[int]:
        """Bytes of each."""
        return [param.nbytes for param in self]

    def total(self, of: Callable[[Param], int]) -> int:
        return sum(of(param) * times for param, times in self.kinds)

    @cached_property
    def numel(self) -> int:
        return self.total(lambda param: param.numel)

    @cached_property
    def nbytes(self) -> int:
        return self.total(lambda param: param.nbytes)
