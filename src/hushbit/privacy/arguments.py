"""Checks of arguments that only privacy functions have."""

import math

from hushbit.checks import real
from hushbit.errors import InvalidInput

MOST_BITS = 10**10
"""The most bits that exact composition accepts; its window then holds two million terms."""


def not_negative(name: str, value: object, *, infinite: bool = False) -> float:
    """A number of at least 0, finite unless `infinite`."""
    number = real(name, value)
    if number < 0 or (math.isinf(number) and not infinite):
        allowed = "at least 0 (math.inf is allowed)" if infinite else "at least 0 and finite"
        raise InvalidInput(f"{name} must be {allowed}; got {value!r}")
    return number


def failure_probability(value: object, *, zero: bool = True) -> float:
    """Delta in [0, 1), or in (0, 1) where zero has no meaning."""
    number = real("delta", value)
    if not 0 <= number < 1 or (number == 0 and not zero):
        allowed = "[0, 1)" if zero else "(0, 1)"
        raise InvalidInput(f"delta must lie in {allowed}, for example 1e-5; got {value!r}")
    return number
