"""The parameters of a model in their order, and sums over them.

A 32-layer Llama has 291 tensors of 9 kinds (shape, kind, dtype …), so that a sum asks 9 tensors, not 291: a search adds
parameters up hundreds of times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cached_property

from vramcast.models.record.values import Param


class Params(tuple[Param, ...]):
    """Parameters in their order; a sum asks one of each kind and multiplies."""

    @cached_property
    def trained(self) -> Params:
        found = Params(param for param in self if param.trainable)
        return self if len(found) == len(self) else found

    @cached_property
    def kinds(self) -> list[tuple[Param, int]]:
        """The first of each kind, with how many there are."""
        keys = [
            (param.shape, param.kind, param.dtype.name, param.trainable, param.stored_bytes)
            for param in self
        ]
        first = dict(zip(reversed(keys), reversed(self), strict=True))
        return [(first[key], times) for key, times in Counter(keys).items()]

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
