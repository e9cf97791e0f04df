"""The fast Walsh–Hadamard transform of the columns of a matrix, in cache.

Butterflies of step 1, 2, 4, … are computed two or three levels at a time. Every sum has the same
two terms as it has one level at a time, so the result is the same to the last bit.
"""

import numpy as np

from hushbit.kernels import Reals, njit

COLUMNS = 16  # columns copied together: one cache line of float32
ROW_CHUNK = 64  # rows copied before the next column: they stay in the first-level cache
CACHE_PADDING = 16  # entries between copied columns, so that they use different cache sets


def reference_transform(matrix: Reals) -> Reals:
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
def rotate_rows(
    vectors: Reals,
    signs: Reals,
    tail_signs: Reals,
    rows: int,
    columns: int,
    first: int,
    last: int,
    out: Reals,
) -> None:
    """Multiply vectors first … last-1 by `signs` and transform their first rows · columns entries.

    If there are `tail_signs`, the last `rows` entries are then multiplied by them and transformed.
    """
    even = rows * columns
    for user in range(first, last):
        row = out[user]
        for i in range(row.size):
            row[i] = vectors[user, i] * signs[i]
        transform(row[:even], rows, columns)
        if tail_signs.size:
            tail = row[row.size - rows :]
            for i in range(rows):
                tail[i] *= tail_signs[i]
            transform_column(tail)


@njit
def transform(flat: Reals, rows: int, columns: int) -> None:
    """The transform in place, on a row-major matrix that is given as a flat array."""
    if columns == 1:
        transform_column(flat)
        return
    matrix = flat.reshape(rows, columns)
    tile = np.empty((min(columns, COLUMNS), rows + CACHE_PADDING), flat.dtype)
    for first in range(0, columns, COLUMNS):
        width = min(COLUMNS, columns - first)
        for top in range(0, rows, ROW_CHUNK):
            for c in range(width):
                for r in range(top, min(top + ROW_CHUNK, rows)):
                    tile[c, r] = matrix[r, first + c]
        for c in range(width):
            transform_column(tile[c, :rows])
        for top in range(0, rows, ROW_CHUNK):
            for c in range(width):
                for r in range(top, min(top + ROW_CHUNK, rows)):
                    matrix[r, first + c] = tile[c, r]


@njit
def transform_column(x: Reals) -> None:
    """The transform of one column, in place."""
    scale = x.dtype.type(1 / np.sqrt(x.size))
    step = 1
    if x.size >= 8:
        eight_neighbours(x)
        step = 8
    while 4 * step <= x.size:
        two_levels(x, step)
        step *= 4
    if step < x.size:
        one_level(x, step)
    for i in range(x.size):
        x[i] *= scale


@njit
def eight_neighbours(x: Reals) -> None:
    """Butterflies of step 1, 2 and 4."""
    for first in range(0, x.size, 8):
        v = x[first : first + 8]
        a0, a1, a2, a3 = v[0] + v[1], v[0] - v[1], v[2] + v[3], v[2] - v[3]
        a4, a5, a6, a7 = v[4] + v[5], v[4] - v[5], v[6] + v[7], v[6] - v[7]
        b0, b1, b2, b3 = a0 + a2, a1 + a3, a0 - a2, a1 - a3
        b4, b5, b6, b7 = a4 + a6, a5 + a7, a4 - a6, a5 - a7
        v[0], v[1], v[2], v[3] = b0 + b4, b1 + b5, b2 + b6, b3 + b7
        v[4], v[5], v[6], v[7] = b0 - b4, b1 - b5, b2 - b6, b3 - b7


@njit
def two_levels(x: Reals, step: int) -> None:
    """Butterflies of `step`, then of 2 · step."""
    for first in range(0, x.size, 4 * step):
        p, q = x[first : first + step], x[first + step : first + 2 * step]
        r, s = x[first + 2 * step : first + 3 * step], x[first + 3 * step : first + 4 * step]
        for i in range(step):
            a, b, c, d = p[i] + q[i], p[i] - q[i], r[i] + s[i], r[i] - s[i]
            p[i], q[i], r[i], s[i] = a + c, b + d, a - c, b - d


@njit
def one_level(x: Reals, step: int) -> None:
    """Butterflies of one step."""
    for first in range(0, x.size, 2 * step):
        low, high = x[first : first + step], x[first + step : first + 2 * step]
        for i in range(step):
            a, b = low[i], high[i]
            low[i], high[i] = a + b, a - b
