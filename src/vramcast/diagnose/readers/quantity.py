"""Printed numbers as bytes: `12.73 GiB`, `375.40 MB`, `0 bytes`, `63.80G`, `35896320000 bytes`.

In: the digits and the unit as printed, and whether this printer writes GB where it divides by 2^30.
Out: integer bytes, or None for a value no memory can have. Does not know which words stand beside the number.
"""

from __future__ import annotations

import re
from decimal import Decimal

# PyTorch's cudaMallocAsync backend prints 17179869184.00 GiB (2^64 bytes) where no limit was set.
NONSENSE_ABOVE_BYTES = 2**60

NUMBER = r"-?\d[\d,]{0,24}(?:\.\d{0,12})?"  # NumPy prints `728. TiB`
UNIT = r"(?:bytes?|GigaBytes|[KMGTP]i?B|B|[KMGT])"
# Text from which all blanks were taken runs the unit into the next word, so no word boundary and no lone letters.
SQUEEZED_QUANTITY = rf"({NUMBER})(bytes?|[KMGTP]i?B)"

_DECIMAL_COMMA = re.compile(r"-?\d+,\d{1,2}")
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_SPELLED = {"byte": "b", "bytes": "b", "gigabytes": "gb"}


def scale(unit: str, *, binary: bool) -> int:
    """Bytes per printed unit. GiB is always 2^30; GB and G are 2^30 only where the printer means it."""
    name = _SPELLED.get(unit.lower(), unit.lower())
    power = _POWER[name[0] if name[0] in _POWER else ""]
    return int((1024 if binary or "i" in name else 1000) ** power)


def decimal(number: str) -> Decimal:
    """`1,234.5` has commas between thousands; `1900,00` is what C prints where a comma divides decimals."""
    return Decimal(
        number.replace(",", ".") if _DECIMAL_COMMA.fullmatch(number) else number.replace(",", "")
    )


def to_bytes(number: str, unit: str, *, binary: bool = False) -> int | None:
    nbytes = int((decimal(number) * scale(unit, binary=binary)).to_integral_value())
    return None if abs(nbytes) > NONSENSE_ABOVE_BYTES else nbytes


def printed_range(number: str, unit: str, *, binary: bool = False) -> tuple[int, int]:
    """Every byte count that prints as this text, given that the printer rounds to nearest."""
    digits = decimal(number)
    exponent = digits.as_tuple().exponent
    half = Decimal(5).scaleb(int(exponent) - 1) if isinstance(exponent, int) else Decimal(0)
    per_unit = scale(unit, binary=binary)
    if per_unit == 1:
        half = Decimal(0)
    low, high = (digits - half) * per_unit, (digits + half) * per_unit
    return max(0, int(low.to_integral_value())), int(high.to_integral_value())


def is_gb_word(unit: str) -> bool:
    """A unit that names a power of ten, whatever the printer meant."""
    return bool(re.fullmatch(r"[kmgtp]b?|gigabytes", unit.lower()))
