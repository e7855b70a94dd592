"""Numbers as the engine reads them: quickly, and not always to the nearest double.

It keeps the digits that fit into 64 bits, turns them into a double, and multiplies or divides by a power of ten, each
step with a rounding of its own. So about one in eight doubles of 16 or 17 digits comes out in a neighbouring double.
"""

from __future__ import annotations

import math
import re

_MAX = (1 << 64) - 1
_NUMBER = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([-+]?[0-9]+))?")

# Beyond these no number of 64 bits is anything but zero or out of range.
_HUGE_EXPONENT = 1_000_000


def integer(text: str) -> int | float:
    """An integer; a double if it is a minus zero or too long for 64 bits. Raises ValueError beyond doubles."""
    if text == "-0":
        return -0.0
    number = int(text) if len(text) <= 20 else None
    if number is not None and -(1 << 63) <= number <= _MAX:
        return number
    return double(text)


def double(text: str) -> float:
    """A number with a fraction or an exponent, or a long integer. Raises ValueError beyond doubles."""
    if len(text) <= 16 and text.isascii() and "e" not in text and "E" not in text:
        return float(text)  # few enough digits for one rounding only
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:20]!r} is no number")
    sign, whole, fraction, exponent = match.groups(default="")
    digits = (whole + fraction).lstrip("0") or "0"
    kept = digits[:20] if int(digits[:20]) <= _MAX else digits[:19]
    power = len(digits) - len(kept) - len(fraction)
    if exponent:
        power += max(-_HUGE_EXPONENT, min(_HUGE_EXPONENT, int(exponent[:20])))
    value = _scaled(float(int(kept)), power)
    if math.isinf(value):
        raise ValueError(f"{text[:20]} is out of range")
    return -value if sign else value


def _scaled(value: float, power: int) -> float:
    """`value` times ten to that power, in as few steps as doubles allow."""
    if value == 0.0:
        return value
    while power < -308:
        value /= 1e308
        power += 308
        if value == 0.0:
            return value
    if power > 308:
        return math.inf
    return value * float(f"1e{power}") if power >= 0 else value / float(f"1e{-power}")
