"""The two scalar points around each value, and their weights."""

import numpy as np
from numpy.typing import NDArray

from hushbit.kernels.jit import njit

Floats = NDArray[np.float64]


def reference_line_corners(
    x: Floats, places: Floats, slack: float
) -> tuple[NDArray[np.int64], Floats, NDArray[np.bool_]]:
    """Left neighbour, share of the right one, and which values lie outside: the definition."""
    outside = (x < places[0] - slack) | (x > places[-1] + slack)
    left = np.clip(np.searchsorted(places, x, side="right") - 1, 0, len(places) - 2)
    inside = np.clip(x, places[left], places[left + 1])
    return left, (inside - places[left]) / (places[left + 1] - places[left]), outside


@njit
def line_corners(
    x: Floats, places: Floats, ladder: NDArray[np.int64], slack: float,
    index: NDArray[np.int32], weight: Floats,
) -> int:  # fmt: skip
    """Fill `index` and `weight` (values, 2) for ascending equidistant places; count overload."""
    last = places.size - 2
    pitch = (places[-1] - places[0]) / (places.size - 1)
    overloaded = 0
    for i in range(x.size):
        value = min(max(x[i], places[0]), places[-1])
        left = min(max(np.int64((value - places[0]) / pitch), 0), last)
        # The division may be off by one unit in the last place, and so by one point.
        while left < last and value >= places[left + 1]:
            left += 1
        while left > 0 and value < places[left]:
            left -= 1
        share = (value - places[left]) / (places[left + 1] - places[left])
        index[i, 0] = ladder[left]
        index[i, 1] = ladder[left + 1]
        if x[i] < places[0] - slack or x[i] > places[-1] + slack:
            overloaded += 1
            index[i, 0] = index[i, 1] = ladder[0] if x[i] < 0 else ladder[last + 1]
            share = 0.0
        weight[i, 0] = 1.0 - share
        weight[i, 1] = share
    return overloaded
