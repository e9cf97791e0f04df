"""Small argument checks that say what came, what is allowed and what to do."""

import math
import numbers
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.errors import InvalidInput


def whole(name: str, value: Any, low: int, high: int | None = None) -> int:
    """An integer in [low, high]; booleans and floats are refused."""
    top = "" if high is None else f" and at most {high}"
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Integral):
        raise InvalidInput(f"{name} must be a whole number of at least {low}{top}; got {value!r}")
    number = int(value)
    if number < low or (high is not None and number > high):
        raise InvalidInput(f"{name} must be at least {low}{top}; got {number}")
    return number


def real(name: str, value: Any) -> float:
    """A real number that is not NaN; booleans and strings are refused."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        raise InvalidInput(f"{name} must be a number; got {value!r}")
    try:
        number = float(value)
    except OverflowError:
        raise InvalidInput(f"{name} is too large for a floating-point number") from None
    if math.isnan(number):
        raise InvalidInput(f"{name} must be a number; got NaN")
    return number


def positive(name: str, value: Any, *, infinite: bool = False) -> float:
    """A number above zero, finite unless `infinite`."""
    number = real(name, value)
    if number <= 0 or (math.isinf(number) and not infinite):
        allowed = "above 0 (math.inf is allowed)" if infinite else "above 0 and finite"
        raise InvalidInput(f"{name} must be {allowed}; got {value!r}")
    return number


def length(name: str, value: Any) -> float:
    """A positive number whose square neither overflows nor vanishes."""
    number = positive(name, value)
    if not 1e-100 <= number <= 1e100:
        raise InvalidInput(f"{name} must be from 1e-100 to 1e100; got {value!r}: change the unit")
    return number


def choice(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """One of a few words."""
    if not isinstance(value, str) or value not in allowed:
        raise InvalidInput(f"{name} must be one of {', '.join(allowed)}; got {value!r}")
    return value


def vectors(name: str, value: Any, dim: int, *, many: bool) -> NDArray[np.floating]:
    """Finite float32 or float64 of shape (dim,) or (users, dim), as a C-contiguous matrix."""
    wanted = f"(users, {dim})" if many else f"({dim},)"
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        # Tensors that track gradients or hold bfloat16 end here; their own message says what to do.
        raise InvalidInput(f"{name} must be an array of shape {wanted}; got {error}") from None
    if np.ma.is_masked(value):
        raise InvalidInput(f"{name} must not be masked: fill the masked entries first")
    if array.dtype.kind not in "fiu":
        raise InvalidInput(f"{name} must hold real numbers; got dtype {array.dtype}")
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float64)
    if array.ndim != (2 if many else 1) or array.shape[-1] != dim:
        raise InvalidInput(f"{name} must have shape {wanted}; got {array.shape}")
    matrix = np.ascontiguousarray(array.reshape(-1, dim))
    if not np.isfinite(matrix).all():
        row = int(np.argmin(np.isfinite(matrix).all(axis=1)))
        raise InvalidInput(
            f"{name} must be finite; row {row} holds NaN or infinity: "
            "drop that user or mend its training before encoding"
        )
    return matrix
