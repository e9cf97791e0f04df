"""One hump or two: whether scores of many users fall into groups with a valley between them.

Windows of 4, 8 and 16 noises slide over the line. Where honest scores have one hump, a window has
no fewer users, on average, than one of any two windows on either side of it; the chance that it
shows z · sqrt(n + m) fewer than both, n and m their counts, is at most exp(-z²/2) (Hoeffding),
and z is such that all pairs of windows together have a chance of `rate`.
"""

import numpy as np
from numpy.typing import NDArray

from hushbit.kernels.jit import njit

WIDTHS = 3
NARROWEST = 4  # windows of a few noises: a group of one mind lies within one
MOST_BINS = 4096
NOWHERE = np.inf


@njit
def middle_of(values: NDArray[np.float64], present: NDArray[np.bool_]) -> float:
    """The median of the present, the upper one of two."""
    inside = values[present]
    half = inside.size // 2
    return float(np.partition(inside, half)[half])


@njit
def quantiles(
    values: NDArray[np.float64], present: NDArray[np.bool_], upper: float
) -> tuple[float, float]:
    """The median of the present, and their quantile `upper`."""
    inside = values[present]
    half, place = inside.size // 2, int(upper * (inside.size - 1))
    inside = np.partition(inside, half)
    return inside[half], np.partition(inside, place)[place]


@njit
def valley(
    values: NDArray[np.float64], present: NDArray[np.bool_], least: int, rate: float, top: float
) -> float:
    """Where the deepest valley cuts off a minority of more than `least` users; else infinity.

    A minority below counts only if its hump lies at `top` or lower. A finite `top` looks for a
    minority below alone.
    """
    users, low, high = 0, np.inf, -np.inf
    for i in range(values.size):
        if present[i]:
            users += 1
            low, high = min(low, values[i]), max(high, values[i])
    if 2 * least >= users or high - low < 3 * NARROWEST:
        return NOWHERE
    step = max(1.0, (high - low) / MOST_BINS)
    bins = int((high - low) / step) + 1
    until = np.zeros(bins + 1, np.int64)  # until[b] = users below bin b
    for i in range(values.size):
        if present[i]:
            until[int((values[i] - low) / step) + 1] += 1
    for b in range(bins):
        until[b + 1] += until[b]
    deepest, cut = np.sqrt(2 * np.log(WIDTHS * bins * bins / rate)), NOWHERE
    width = NARROWEST
    for _ in range(WIDTHS):
        windows = bins - width + 1
        after = np.zeros(windows + width, np.int64)  # after[b] = fullest window from b on
        for b in range(windows - 1, -1, -1):
            after[b] = max(after[b + 1], until[b + width] - until[b])
        before = 0
        for b in range(width, windows - width):
            if low + step * (b - width / 2) <= top:
                before = max(before, until[b] - until[b - width])
            inside = until[b + width] - until[b]
            middle = b + width // 2
            fewer = until[middle] if top < np.inf else min(until[middle], users - until[middle])
            if fewer <= least or 2 * fewer > users:
                continue
            lesser = min(before, after[b + width])
            depth = (lesser - inside) / np.sqrt(max(lesser + inside, 1))
            if depth > deepest:
                deepest, cut = depth, low + step * middle
        width *= 2
    return cut
