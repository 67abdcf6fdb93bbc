"""Number-like dimensions: a family that is written once gives bytes, bytes for a grid of jobs, and formulas as text.

`Dim` is an int that remembers its name, so that a size computed with it also prints as a formula:

    b, s, h = Dim(2, "b"), Dim(256, "s"), Dim(3072, "h")
    b * s * h * 2             3,145,728, whose `text` is "b·s·h·2" and whose `symbols` are {"b": 2, "s": 256, "h": 3072}
    (s + 1) * h               789,504, "(s+1)·h"

A NumPy array may stand wherever a batch or a length stands (`numpy.array([1, 2, 4]) * s` is three sizes at once); names
end there. The functions here work on both.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Number = Any  # int, Dim or a NumPy integer array


class Dim(int):
    """An int with a name: `Dim(3072, "h")`. Sums and products of Dims carry their text and their symbols along."""

    text: str
    symbols: dict[str, int]

    def __new__(cls, value: int, text: str, symbols: dict[str, int] | None = None) -> Dim:
        self = super().__new__(cls, value)
        self.text = text
        self.symbols = {text: int(value)} if symbols is None else symbols
        return self

    def __mul__(self, other: Any) -> Any:
        return _combine(self, other, int(self) * other, "·")

    def __rmul__(self, other: Any) -> Any:
        return _combine(other, self, other * int(self), "·")

    def __add__(self, other: Any) -> Any:
        return _combine(self, other, int(self) + other, "+")

    def __radd__(self, other: Any) -> Any:
        if type(other) is int and other == 0:
            return self  # sum() starts from 0
        return _combine(other, self, other + int(self), "+")

    def __sub__(self, other: Any) -> Any:
        return _combine(self, other, int(self) - other, "-")

    def __floordiv__(self, other: Any) -> Any:
        return _combine(self, other, int(self) // other, "/")


def _combine(left: Any, right: Any, value: Any, sign: str) -> Any:
    if not isinstance(value, int):
        return value  # a NumPy array: names end here
    if sign == "·" and _is_plain_one(right):
        return left
    if sign == "·" and _is_plain_one(left):
        return right
    in_product = sign != "+"
    text = f"{_text(left, in_product)}{sign}{_text(right, in_product)}"
    return Dim(value, text, {**symbols_of(left), **symbols_of(right)})


def unnamed(number: Number) -> Number:
    """The same number without its text, which would grow with every sum."""
    return int(number) if isinstance(number, Dim) else number


def symbols_of(number: Any) -> dict[str, int]:
    return number.symbols if isinstance(number, Dim) else {}


def _text(term: Any, in_product: bool) -> str:
    text = text_of(term)
    return f"({text})" if in_product and _is_sum(text) else text


def _is_sum(text: str) -> bool:
    """Does the text have a sum, difference or quotient outside of brackets?"""
    depth = 0
    for sign in text:
        depth += (sign == "(") - (sign == ")")
        if depth == 0 and sign in "+-/":
            return True
    return False


def text_of(number: Any) -> str:
    if isinstance(number, Dim):
        return number.text
    return str(number) if isinstance(number, int) else "…"  # a grid has no single text


def product_text(dims: Iterable[Any], *factors: int) -> str:
    """`2·256·3072·4` with names where there are names: `b·s·h·4`."""
    texts = [_text(dim, True) for dim in (*dims, *factors) if not _is_plain_one(dim)]
    return "·".join(texts) or "1"


def _is_plain_one(number: Any) -> bool:
    """1 without a name: left out of products."""
    return type(number) is int and number == 1


def maximum(a: Number, b: Number) -> Number:
    if isinstance(a, int | float) and isinstance(b, int | float):
        return a if a >= b else b
    import numpy

    return numpy.maximum(a, b)


def minimum(a: Number, b: Number) -> Number:
    if isinstance(a, int) and isinstance(b, int):
        return a if a <= b else b
    import numpy

    return numpy.minimum(a, b)


def choose(which: Any, first: Number, second: Number) -> Number:
    """Element by element of two grids: the first where `which` is true, else the second."""
    import numpy

    return numpy.where(which, first, second)


def ceil_to(number: Number, multiple: int) -> Number:
    if isinstance(number, int) and int(number) % multiple == 0:
        return number
    return -(-number // multiple) * multiple


def power_of_two_from(number: Number) -> Number:
    """The smallest power of two that is not below it."""
    if isinstance(number, int):
        return 1 << max(int(number) - 1, 0).bit_length()
    import numpy

    return 2 ** numpy.ceil(numpy.log2(number)).astype(numpy.int64)
