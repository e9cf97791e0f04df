"""A test whether more users score far on one side of the others than chance allows.

Visit users by the distance of their scores from the centre, the furthest first. Let lead = (users
visited on one side) - (on the other side). If scores are symmetric about the centre, every user is
on either side with probability 1/2, and Ville's inequality with a normal mixture gives

    P( |lead| > sqrt((n + 1) (2 ln(1 / rate) + ln(n + 1)))  for any number n of users ) <= rate.

`natural` honest users may be anywhere. All of them may be on one side and be visited first; then
the others visited are n - natural, and the lead must exceed the bound for these by `natural`.
"""

import math

import numpy as np

from hushbit.checks import Floats
from hushbit.kernels import Flags, njit

BINS = 512  # of distances; the lead is compared after each bin, so time is linear in the users
GAP = 1.5  # users at the median of a group that stands apart, for each at its edge


@njit
def asymmetric_group(
    scores: Floats, tested: Flags, trusted: Flags, natural: float, log_rate: float
) -> Flags:
    """The tested users to mark; the centre is the median of trusted users.

    `natural` is a number of users, `log_rate` is 2 ln(1 / rate). Where the lead exceeds its bound,
    the users visited on that side up to the largest excess are a group. Marked are users closer to
    the median of the group than to the centre, unless `natural` / 2 of the trusted users on the
    other side are further out: of symmetric honest users at most that many are marked.
    """
    found = np.zeros_like(tested)
    if not (trusted.any() and tested.any()):
        return found
    deviation = scores - upper_median(scores, trusted)
    kept = 1 - natural / (2 * np.count_nonzero(tested))
    for side, distance in enumerate(leading_distances(deviation[tested], natural, log_rate)):
        if distance < np.inf:
            away = (2 * side - 1) * deviation
            group = np.median(away[tested & (away >= distance)])
            found |= tested & (away > max(group / 2, np.quantile(-away[trusted], kept)))
    return found


def is_apart(scores: Floats, group: Flags, users: Flags) -> bool:
    """Whether there are clearly fewer users at the edge of a group than at its median.

    The edge is midway to the nearest other user; in a tail there are more users there than further
    out. Users are counted within 1, the standard deviation of the noise.
    """
    if not 0 < np.count_nonzero(group) < np.count_nonzero(users):
        return False
    inside, outside = scores[group], scores[users & ~group]
    if np.median(inside) < np.median(outside):
        inside, outside = -inside, -outside
    edge, everyone = (inside.min() + outside.max()) / 2, np.concatenate([inside, outside])
    at_edge, at_median = (np.sum(np.abs(everyone - x) < 1) for x in (edge, np.median(inside)))
    return bool(at_edge <= at_median / GAP)


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
def leading_distances(deviation: Floats, natural: float, log_rate: float) -> Floats:
    """The distances at which the lead of either side exceeds its bound by most, or infinity."""
    furthest = np.abs(deviation).max()
    counts, found = np.zeros((2, BINS), np.int64), np.full(2, np.inf)
    for value in deviation:
        if value != 0:
            place = min(int(abs(value) * (BINS / furthest)), BINS - 1)
            counts[int(value > 0), place] += 1
    for side in range(2):
        lead, visited, most = 0, 0, 0.0
        for place in range(BINS - 1, -1, -1):
            lead += counts[side, place] - counts[1 - side, place]
            visited += counts[side, place] + counts[1 - side, place]
            if lead - natural > most:  # the bound is not negative: most rounds end here
                more = max(visited - natural, 0.0) + 1
                excess = lead - natural - math.sqrt(more * (log_rate + math.log(more)))
                if excess > most:
                    most, found[side] = excess, place * furthest / BINS
    return found
