"""Numba kernels, each beside the NumPy definition that it must equal bit for bit.

Nothing in this folder imports the rest of hushbit. Without Numba the kernels run as plain Python.
"""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    import numba

    HAVE_NUMBA = True
except ImportError:  # pragma: no cover - exercised by a test in a process without Numba
    HAVE_NUMBA = False
    warnings.warn(
        "Numba is not installed: hushbit works, but many times slower. "
        "Install it with: pip install numba",
        RuntimeWarning,
        stacklevel=2,
    )

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint32]
Words64 = NDArray[np.uint64]
Signs = NDArray[np.int8]
Halves = NDArray[np.int16]  # of coins
Indices = NDArray[np.int32]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Reals = NDArray[np.floating]  # float32 or float64
Flags = NDArray[np.bool_]


def njit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile with Numba and cache the machine code on disk; the identity without Numba."""
    if not HAVE_NUMBA:
        # Kernels rely on integers that wrap around; plain NumPy scalars would warn.
        return np.errstate(over="ignore")(function)
    compiled: Callable[..., Any] = numba.njit(cache=True, nogil=True)(function)
    return compiled
