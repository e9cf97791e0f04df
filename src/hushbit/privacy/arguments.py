"""Refuses arguments of the privacy functions that have no meaning, in one voice."""

import math
import numbers

from hushbit.errors import InvalidInput

MOST_BITS = 10**10
"""The most bits that exact composition accepts; its window then holds about two million terms."""


def _real(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InvalidInput(
            f"{name} is {value!r} of type {type(value).__name__}; give a real number."
        )
    try:
        return float(value)
    except OverflowError:
        raise InvalidInput(f"{name} is too large for a float; give a smaller number.") from None


def positive(name: str, value: object, *, infinite: bool = False) -> float:
    """Returns `value` as a float above 0; infinity only where `infinite` allows it."""
    number = _real(name, value)
    if not number > 0 or (math.isinf(number) and not infinite):
        allowed = "above 0, or math.inf" if infinite else "finite and above 0"
        raise InvalidInput(f"{name} is {value!r}; it must be {allowed}.")
    return number


def not_negative(name: str, value: object, *, infinite: bool = False) -> float:
    """Returns `value` as a float that is at least 0."""
    number = _real(name, value)
    if not number >= 0 or (math.isinf(number) and not infinite):
        raise InvalidInput(f"{name} is {value!r}; it must be a number of at least 0.")
    return number


def failure_probability(value: object, *, zero: bool = True) -> float:
    """Returns delta as a float in [0, 1), or in (0, 1) where zero has no meaning."""
    number = _real("delta", value)
    if not 0 <= number < 1 or (number == 0 and not zero):
        allowed = "[0, 1)" if zero else "(0, 1)"
        raise InvalidInput(f"delta is {value!r}; it must lie in {allowed}, for example 1e-5.")
    return number


def whole(name: str, value: object, *, least: int = 1, most: int | None = None) -> int:
    """Returns `value` as an int between `least` and `most`; floats and booleans are refused."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise InvalidInput(
            f"{name} is {value!r} of type {type(value).__name__}; give a whole number."
        )
    number = int(value)
    if number < least or (most is not None and number > most):
        limit = f"at least {least}" if most is None else f"between {least} and {most}"
        raise InvalidInput(f"{name} is {number}; it must be {limit}.")
    return number
