"""Medians of scores, and a test whether scores are unimodal or fall into two groups.

The modality test slides windows of 4, 8 and 16 sigma (sigma = 1 is the noise of a score) along the
scores. If scores are unimodal, a window has at least the expected count of one of any two windows
on either side of it. For that window, with n users in the middle and m at the side, Hoeffding's
inequality gives

    P( m - n > z · sqrt(n + m) ) <= exp(-z² / 2).

With z² = 2 ln(3 · bins² / rate) the probability that any pair of windows shows such a gap is at
most `rate`. A gap of this size to both sides is a split: the scores are bimodal. The split point is
the middle of the sparse window.
"""

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import Floats, Ints
from hushbit.kernels import njit

Flags = NDArray[np.bool_]

WIDTHS = 3
MIN_WIDTH = 4  # doubled for each further width; a group of equal updates lies within one window
MAX_BINS = 4096
MEDIAN_BINS = 256
NO_SPLIT = np.inf


@njit
def upper_median(values: Floats, mask: Flags) -> float:
    """The median of the masked values; of an even number, the larger of the two middle values.

    Values are sorted into bins first, and only the bin that holds the median is partitioned. This
    takes a quarter of the time of a partition of all values, because branches on a comparison with
    the pivot cannot be predicted.
    """
    users, low, high = 0, np.inf, -np.inf
    for i in range(values.size):
        users += mask[i]
        low = min(low, values[i] if mask[i] else np.inf)
        high = max(high, values[i] if mask[i] else -np.inf)
    scale = (MEDIAN_BINS - 1) / (high - low) if 0 < high - low < np.inf else 0.0
    bins, counts = np.empty(values.size, np.int64), np.zeros(MEDIAN_BINS + 1, np.int64)
    for i in range(values.size):
        place = (values[i] - low) * scale
        in_range = 0 <= place < MEDIAN_BINS  # False for NaN
        bins[i] = (int(place) if in_range else 0) if mask[i] else MEDIAN_BINS
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
def split_at_median(scores: Floats, mask: Flags) -> tuple[Flags, Flags]:
    """The masked users whose scores lie above their median, and the other masked users."""
    median = upper_median(scores, mask)
    above, below = np.empty(scores.size, np.bool_), np.empty(scores.size, np.bool_)
    for user in range(scores.size):
        above[user] = mask[user] & (scores[user] > median)
        below[user] = mask[user] & (scores[user] <= median)
    return above, below


@njit
def median_and_quantile(values: Floats, mask: Flags, quantile: float) -> tuple[float, float]:
    """The upper median of the masked values, and their quantile."""
    inside = values[mask]
    half, place = inside.size // 2, int(quantile * (inside.size - 1))
    inside = np.partition(inside, half)
    return inside[half], np.partition(inside, place)[place]


@njit
def split_point(
    values: Floats, mask: Flags, natural_size: int, rate: float, max_mode: float
) -> float:
    """The deepest split that cuts off a minority of more than `natural_size` masked users.

    Returns infinity (`NO_SPLIT`) where there is none. The window below the split must be centred at
    `max_mode` or lower. If `max_mode` is finite, the minority must lie below the split; if it is
    infinite, the minority may lie on either side.
    """
    users, low, high = 0, np.inf, -np.inf
    for i in range(values.size):
        if mask[i]:
            users += 1
            low, high = min(low, values[i]), max(high, values[i])
    if 2 * natural_size >= users or high - low < 3 * MIN_WIDTH:
        return NO_SPLIT
    step = max(1.0, (high - low) / MAX_BINS)
    bins = int((high - low) / step) + 1
    counts_below = np.zeros(bins + 1, np.int64)
    for i in range(values.size):
        if mask[i]:
            counts_below[int((values[i] - low) / step) + 1] += 1
    for b in range(bins):
        counts_below[b + 1] += counts_below[b]
    return float(deepest_split(counts_below, users, low, step, natural_size, rate, max_mode))


@njit
def split_point_of_all(
    values: Floats,
    low: float,
    high: float,
    sign: float,
    natural_size: int,
    rate: float,
    max_mode: float,
) -> float:
    """`split_point` of sign · values for all users; low and high are their known extremes."""
    if 2 * natural_size >= values.size or high - low < 3 * MIN_WIDTH:
        return NO_SPLIT
    step = max(1.0, (high - low) / MAX_BINS)
    counts_below = np.zeros(int((high - low) / step) + 2, np.int64)
    if step == 1.0:
        for i in range(values.size):
            counts_below[int(sign * values[i] - low) + 1] += 1
    else:
        for i in range(values.size):
            counts_below[int((sign * values[i] - low) / step) + 1] += 1
    for b in range(counts_below.size - 1):
        counts_below[b + 1] += counts_below[b]
    return float(deepest_split(counts_below, values.size, low, step, natural_size, rate, max_mode))


@njit
def deepest_split(
    counts_below: Ints,
    users: int,
    low: float,
    step: float,
    natural_size: int,
    rate: float,
    max_mode: float,
) -> float:
    """The result of `split_point`, from the number of users below each bin."""
    bins = counts_below.size - 1
    deepest, split = np.sqrt(2 * np.log(WIDTHS * bins * bins / rate)), NO_SPLIT
    width = MIN_WIDTH
    for _ in range(WIDTHS):
        windows = bins - width + 1
        after = np.zeros(windows + width, np.int64)  # after[b] = largest window count from b on
        for b in range(windows - 1, -1, -1):
            after[b] = max(after[b + 1], counts_below[b + width] - counts_below[b])
        before = 0
        for b in range(width, windows - width):
            if low + step * (b - width / 2) <= max_mode:
                before = max(before, counts_below[b] - counts_below[b - width])
            inside = counts_below[b + width] - counts_below[b]
            middle = b + width // 2
            minority = counts_below[middle]
            if max_mode == np.inf:
                minority = min(minority, users - minority)
            if minority <= natural_size or 2 * minority > users:
                continue
            smaller = min(before, after[b + width])
            depth = (smaller - inside) / np.sqrt(max(smaller + inside, 1))
            if depth > deepest:
                deepest, split = depth, low + step * middle
        width *= 2
    return split
