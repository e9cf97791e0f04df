"""The fast Walsh–Hadamard transform of the columns of a matrix, in cache."""

import numpy as np
from numpy.typing import NDArray

from hushbit.kernels.jit import njit

COLUMNS = 16  # columns turned together: one cache line of float32


def reference_transform(matrix: NDArray[np.floating]) -> NDArray[np.floating]:
    """H @ matrix / sqrt(rows) for a power of two of rows: the definition of the kernel."""
    rows = matrix.shape[0]
    out = matrix.copy()
    step = 1
    while step < rows:
        pairs = out.reshape(rows // (2 * step), 2, step, -1)
        low, high = pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]
        out = np.stack([low, high], axis=1).reshape(rows, -1)
        step *= 2
    return np.asarray(out * out.dtype.type(1 / np.sqrt(rows)))


@njit
def transform(flat: NDArray[np.floating], rows: int, columns: int) -> None:
    """The same in place, on a row-major matrix given as a flat array."""
    tile = np.empty(rows * min(columns, COLUMNS), flat.dtype)
    scale = flat.dtype.type(1 / np.sqrt(rows))
    for first in range(0, columns, COLUMNS):
        width = min(COLUMNS, columns - first)
        for r in range(rows):
            for c in range(width):
                tile[r * width + c] = flat[r * columns + first + c]
        step = width
        while step < rows * width:
            for start in range(0, rows * width, 2 * step):
                low = tile[start : start + step]
                high = tile[start + step : start + 2 * step]
                for i in range(step):
                    a = low[i]
                    b = high[i]
                    low[i] = a + b
                    high[i] = a - b
            step *= 2
        for r in range(rows):
            for c in range(width):
                flat[r * columns + first + c] = tile[r * width + c] * scale
