"""The l2 clip of the rows of a matrix, one row at a time, so that a row stays in cache."""

import numpy as np

from hushbit.kernels import Reals, njit

LANES = 8  # partial sums, which the compiler keeps in vector registers


def reference_clip_row(row: Reals, largest: float) -> Reals:
    """The row, scaled down to the norm `largest` if it is longer: the definition of the kernel."""
    wide = row.astype(np.float64)
    norm = _reference_norm(wide)
    if np.isinf(norm):  # a square overflowed
        wide = wide / np.abs(wide).max()
        norm = _reference_norm(wide)
    elif norm <= largest:
        return row
    return np.asarray((wide * (largest / norm)).astype(row.dtype))


def _reference_norm(row: Reals) -> float:
    """The l2 norm; entry i belongs to partial sum i mod LANES."""
    padded = np.zeros(-(-row.size // LANES) * LANES)
    with np.errstate(over="ignore"):
        padded[: row.size] = row * row
        sums = padded.reshape(-1, LANES).cumsum(axis=0)[-1]
        a, b, c, d = sums[:4] + sums[4:]
        return float(np.sqrt((a + c) + (b + d)))


@njit
def clip_rows(rows: Reals, largest: float, first: int, last: int, out: Reals) -> int:
    """Write rows first … last-1, those longer than `largest` scaled down; returns their number.

    Factors are float64: a float32 factor for a huge row may leave it too long by rounding.
    """
    scaled = 0
    for user in range(first, last):
        row = out[user]
        row[:] = rows[user]
        norm = row_norm(row)
        if np.isinf(norm):
            row /= np.abs(row).max()
            norm = row_norm(row)
        elif norm <= largest:
            continue
        factor = largest / norm
        for i in range(row.size):
            row[i] = np.float64(row[i]) * factor
        scaled += 1
    return scaled


@njit
def row_norm(row: Reals) -> float:
    """The l2 norm, in float64; entry i belongs to partial sum i mod LANES."""
    sums = np.zeros(LANES)
    even = row.size - row.size % LANES
    for i in range(0, even, LANES):
        for lane in range(LANES):
            x = np.float64(row[i + lane])
            sums[lane] += x * x
    for i in range(even, row.size):
        x = np.float64(row[i])
        sums[i - even] += x * x
    half = sums[:4] + sums[4:]
    norm: float = np.sqrt((half[0] + half[2]) + (half[1] + half[3]))
    return norm
