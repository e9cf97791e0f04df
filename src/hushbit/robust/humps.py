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
MIDDLE_BINS = 256
NOWHERE = np.inf


@njit
def middle_of(values: NDArray[np.float64], present: NDArray[np.bool_]) -> float:
    """The median of the present, the upper one of two.

    Values are counted in bins first: sorting apart the few in the bin of the median takes a
    quarter of the time, as it is which way a comparison goes that a processor cannot guess.
    """
    users, low, high = 0, np.inf, -np.inf
    for i in range(values.size):
        users += present[i]
        low = min(low, values[i] if present[i] else np.inf)
        high = max(high, values[i] if present[i] else -np.inf)
    scale = (MIDDLE_BINS - 1) / (high - low) if 0 < high - low < np.inf else 0.0
    bins, counts = np.empty(values.size, np.int64), np.zeros(MIDDLE_BINS + 1, np.int64)
    for i in range(values.size):
        place = (values[i] - low) * scale
        known = 0 <= place < MIDDLE_BINS  # not so for what is no number
        bins[i] = (int(place) if known else 0) if present[i] else MIDDLE_BINS
        counts[bins[i]] += 1
    rank, middle = users // 2, 0
    while rank >= counts[middle]:
        rank -= counts[middle]
        middle += 1
    inside, count = np.empty(values.size), 0
    for i in range(values.size):
        inside[count] = values[i]
        count += bins[i] == middle
    return float(np.partition(inside[:count], rank)[rank])


@njit
def still_in(coins: NDArray[np.bool_], gone: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Who is marked by neither; if that leaves less than half, who is not by `coins`; else all."""
    loaded, out = 0, 0
    for user in range(coins.size):
        loaded += coins[user]
        out += coins[user] | gone[user]
    by_gone, by_coins = 2 * out <= coins.size, 2 * loaded <= coins.size
    stay = np.empty(coins.size, np.bool_)
    for user in range(coins.size):
        stay[user] = not (by_coins & coins[user] | by_gone & gone[user])
    return stay


@njit
def halved(
    scores: NDArray[np.float64], present: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """The present above the median of their scores, and the others of them."""
    middle = middle_of(scores, present)
    above, below = np.empty(scores.size, np.bool_), np.empty(scores.size, np.bool_)
    for user in range(scores.size):
        above[user] = present[user] & (scores[user] > middle)
        below[user] = present[user] & (scores[user] <= middle)
    return above, below


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
    return float(deepest_valley(until, users, low, step, least, rate, top))


@njit
def valley_of_all(
    values: NDArray[np.float64], low: float, high: float, sign: float, least: int, rate: float,
    top: float,
) -> float:  # fmt: skip
    """`valley` of sign · values, all present, whose least and largest value are known."""
    if 2 * least >= values.size or high - low < 3 * NARROWEST:
        return NOWHERE
    step = max(1.0, (high - low) / MOST_BINS)
    until = np.zeros(int((high - low) / step) + 2, np.int64)
    if step == 1.0:
        for i in range(values.size):
            until[int(sign * values[i] - low) + 1] += 1
    else:
        for i in range(values.size):
            until[int((sign * values[i] - low) / step) + 1] += 1
    for b in range(until.size - 1):
        until[b + 1] += until[b]
    return float(deepest_valley(until, values.size, low, step, least, rate, top))


@njit
def deepest_valley(
    until: NDArray[np.int64], users: int, low: float, step: float, least: int, rate: float,
    top: float,
) -> float:  # fmt: skip
    """What `valley` says, from the numbers of users below each bin."""
    bins = until.size - 1
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
