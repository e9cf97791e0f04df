"""Array types and checks that the geometry modules share."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.errors import InvalidInput

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def finite_floats(name: str, value: Any) -> Floats:
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
        raise InvalidInput(f"{name} holds NaN or infinity; every entry must be finite")
    return floats


def finite_rows(name: str, value: Any, width: int) -> Floats:
    """`value` as a finite float64 array of shape (rows, width)."""
    rows = finite_floats(name, value)
    if rows.ndim != 2 or rows.shape[1] != width:
        raise InvalidInput(f"{name} has shape {rows.shape}; the shape must be (rows, {width})")
    return rows
