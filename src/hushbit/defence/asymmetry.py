"""A test whether more users score far on one side of the others than chance allows.

Take the distance of each score from the centre, the median of trusted users, and visit users from
the furthest to the nearest. Let lead = (users visited on one side) - (on the other side). If honest
scores are symmetric about the centre, every user visited is on either side with probability 1/2.
Then exp(s · lead - s² n / 2) is a supermartingale in the number n of users visited, for any s, and
so is its mean over s from the standard normal distribution. Ville's inequality gives

    P( |lead| > sqrt((n + 1) (2 ln(1 / rate) + ln(n + 1)))  for any n ) <= rate.

Honest users need not be symmetric: `natural` users may be anywhere. All of them may be on one side
and be visited first; then the others visited are n - natural, and the lead must exceed the bound
for these by `natural`. Few users never exceed it, so no least number of users is needed.

If the lead exceeds the bound, the users visited on that side up to the largest excess are a group.
All users are marked who are closer to the median of the group than to the centre. Honest users may
overlap with it: nobody is marked who is closer to the centre than `natural` / 2 of the trusted
users on the other side are, so that of symmetric honest users at most that many are marked.

Distances are sorted into BINS classes, and the lead is compared after each class, so the time is
linear in the number of users.
"""

import math

import numpy as np

from hushbit.checks import Floats
from hushbit.kernels import Flags, njit

BINS = 512


@njit
def asymmetric_group(
    scores: Floats, tested: Flags, trusted: Flags, natural: float, log_rate: float
) -> Flags:
    """The tested users to mark.

    `natural` is a number of users, `log_rate` is 2 ln(1 / rate).
    """
    found = np.zeros_like(tested)
    if not (trusted.any() and tested.any()):
        return found
    deviation = scores - upper_median(scores, trusted)
    low, high = leading_distances(deviation, tested, natural, log_rate)
    if low == high == np.inf:
        return found
    kept = 1 - natural / (2 * np.count_nonzero(tested))
    for away, distance in ((-deviation, low), (deviation, high)):
        if distance < np.inf:
            group = np.median(away[tested & (away >= distance)])
            found |= tested & (away > max(group / 2, np.quantile(-away[trusted], kept)))
    return found


@njit
def upper_median(values: Floats, mask: Flags) -> float:
    """The median of the masked values; of an even number, the larger of the two middle values."""
    inside = values[mask]
    return float(np.partition(inside, inside.size // 2)[inside.size // 2])


@njit
def split_at_median(scores: Floats, mask: Flags) -> tuple[Flags, Flags]:
    """The masked users whose scores lie above their median, and the other masked users."""
    if not mask.any():
        return mask, mask
    above = mask & (scores > upper_median(scores, mask))
    return above, mask & ~above


@njit
def leading_distances(
    deviation: Floats, tested: Flags, natural: float, log_rate: float
) -> tuple[float, float]:
    """The distances below and above at which the lead exceeds its bound by most.

    `log_rate` is 2 ln(1 / rate). A distance is infinite where the lead of that side never exceeds
    the bound. The definition is `reference_distances`.
    """
    furthest = 0.0
    for user in range(tested.size):
        if tested[user]:
            furthest = max(furthest, abs(deviation[user]))
    counts = np.zeros((2, BINS), np.int64)
    if furthest > 0:
        for user in range(tested.size):
            if tested[user] and deviation[user] != 0:
                place = min(int(abs(deviation[user]) * (BINS / furthest)), BINS - 1)
                counts[int(deviation[user] > 0), place] += 1
    distances = np.full(2, np.inf)
    for side in range(2):
        lead, visited, most = 0, 0, 0.0
        for place in range(BINS - 1, -1, -1):
            lead += counts[side, place] - counts[1 - side, place]
            visited += counts[side, place] + counts[1 - side, place]
            if lead - natural > most:  # the bound is not negative: most rounds end here
                more = max(visited - natural, 0.0) + 1
                excess = lead - natural - math.sqrt(more * (log_rate + math.log(more)))
                if excess > most:
                    most, distances[side] = excess, place * furthest / BINS
    return distances[0], distances[1]


def reference_distances(
    deviation: Floats, tested: Flags, natural: float, log_rate: float
) -> tuple[float, float]:
    """`leading_distances` in NumPy."""
    distance = np.abs(deviation[tested])
    edges = np.arange(BINS) * (distance.max(initial=0.0) / BINS)
    below = (distance[deviation[tested] < 0] >= edges[:, None]).sum(axis=1)
    above = (distance[deviation[tested] > 0] >= edges[:, None]).sum(axis=1)
    more = np.maximum(below + above - natural, 0) + 1
    bound = natural + np.sqrt(more * (log_rate + np.log(more)))
    found = []
    for lead in (below - above, above - below):
        last = BINS - 1 - int(np.argmax((lead - bound)[::-1]))
        found.append(float(edges[last]) if lead[last] > bound[last] else np.inf)
    return found[0], found[1]
