"""Argument checks that every module shares, and the two array types of the library.

Each check returns its argument in one fixed type, or raises InvalidInput with a message that states
what came, what is allowed and, where it is not obvious, what to do.
"""

import math
import numbers
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.errors import InvalidInput, NotFinite

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def check_int(name: str, value: Any, low: int, high: int | None = None) -> int:
    """An integer in [low, high]; booleans and floats are refused."""
    top = "" if high is None else f" and at most {high}"
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Integral):
        raise InvalidInput(
            f"{name} must be a whole number of at least {low}{top}; got {_shown(value)}"
        )
    number = int(value)
    if number < low or (high is not None and number > high):
        raise InvalidInput(f"{name} must be at least {low}{top}; got {number}")
    return number


def _shown(value: Any) -> str:
    """The value for an error message; bytes may be secret, and arrays are long."""
    hidden = isinstance(value, bytes | bytearray | memoryview | np.ndarray)
    return type(value).__name__ if hidden else repr(value)


def check_float(name: str, value: Any) -> float:
    """A real number that is not NaN; booleans and strings are refused."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        raise InvalidInput(f"{name} must be a number; got {_shown(value)}")
    try:
        number = float(value)
    except OverflowError:
        raise InvalidInput(f"{name} is too large for a floating-point number") from None
    if math.isnan(number):
        raise InvalidInput(f"{name} must be a number; got NaN")
    return number


def check_positive(name: str, value: Any, *, infinite: bool = False) -> float:
    """A number above 0, finite unless `infinite`."""
    number = check_float(name, value)
    if number <= 0 or (math.isinf(number) and not infinite):
        allowed = "above 0 (math.inf is allowed)" if infinite else "above 0 and finite"
        raise InvalidInput(f"{name} must be {allowed}; got {value!r}")
    return number


def check_nonnegative(name: str, value: Any, *, infinite: bool = False) -> float:
    """A number of at least 0, finite unless `infinite`."""
    number = check_float(name, value)
    if number < 0 or (math.isinf(number) and not infinite):
        allowed = "at least 0 (math.inf is allowed)" if infinite else "at least 0 and finite"
        raise InvalidInput(f"{name} must be {allowed}; got {value!r}")
    return number


def check_scale(name: str, value: Any) -> float:
    """A positive number whose square neither overflows nor underflows."""
    number = check_positive(name, value)
    if not 1e-100 <= number <= 1e100:
        raise InvalidInput(f"{name} must be from 1e-100 to 1e100; got {value!r}: change the unit")
    return number


def check_delta(value: Any, *, zero: bool = True) -> float:
    """Delta in [0, 1), or in (0, 1) if `zero` is false."""
    number = check_float("delta", value)
    if not 0 <= number < 1 or (number == 0 and not zero):
        allowed = "[0, 1)" if zero else "(0, 1)"
        raise InvalidInput(f"delta must lie in {allowed}, for example 1e-5; got {value!r}")
    return number


def check_choice(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """One of the strings in `allowed`."""
    if not isinstance(value, str) or value not in allowed:
        raise InvalidInput(f"{name} must be one of {', '.join(allowed)}; got {value!r}")
    return value


def check_finite(name: str, value: Any) -> Floats:
    """`value` as a float64 array with at least one entry, every entry finite."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise InvalidInput(f"{name} is ragged; give an array of numbers") from None
    if array.dtype.kind not in "iuf":
        raise InvalidInput(f"{name} holds {array.dtype}; give an array of real numbers")
    if array.size == 0:
        raise InvalidInput(f"{name} is empty (shape {array.shape}); give at least one entry")
    floats = np.asarray(array, dtype=np.float64)
    if not np.isfinite(floats).all():
        raise NotFinite(f"{name} holds NaN or infinity; every entry must be finite")
    return floats


def check_finite_rows(name: str, value: Any, width: int) -> Floats:
    """`value` as a finite float64 array of shape (rows, width)."""
    rows = check_finite(name, value)
    if rows.ndim != 2 or rows.shape[1] != width:
        raise InvalidInput(f"{name} has shape {rows.shape}; the shape must be (rows, {width})")
    return rows


def check_updates(name: str, value: Any, dim: int, *, many: bool) -> NDArray[np.floating]:
    """Finite float32 or float64 of shape (dim,) or (users, dim), as a C-contiguous matrix."""
    wanted = f"(users, {dim})" if many else f"({dim},)"
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        # For tensors that track gradients or hold bfloat16 the message of torch states the remedy.
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
        place = f"row {row} holds" if many else "it holds"
        raise NotFinite(
            f"{name} must be finite; {place} NaN or infinity: "
            f"{'drop that user or ' if many else ''}fix the training before encoding"
        )
    return matrix
