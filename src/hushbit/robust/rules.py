"""Whose ballots no honest user would have sent; each rule reads scores or bits alone.

coin      An honest bit is the vote times a random sign of the user's word: a fair coin, whatever
          the data. |ones - n/2| > sqrt(n ln(2 K / rate) / 2) has a chance of rate = 1e-6 among
          K honest users (Hoeffding).
reach     |s| > reach + z cannot be honest, z² = 2 V ln(2 K D / rate): |E s| <= reach = clip/sigma.
minds     The best cut in two explains 3/4 of the variance of a uniform spread, 0.64 of a Gaussian
          one, up to 0.87 of a peak with a flat tail. A cut that explains more of what is not
          noise, between groups more than GAP noises apart, the smaller one above a natural group's
          share, divides users of two minds: the smaller group goes, unless another direction shows
          that it is no group itself (its variance there is above ONE_MIND times the rest's).
distance  d² = sum over directions of (s - median)², in units of its own median over users. Of
          honest users with Gaussian scores a share FAR lies beyond the limit (chi-square); only
          if more than TOLERATED of all users do, which tails do not, are they removed. Users who
          differ among each other but not in length, such as those of one class each, are alike.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from hushbit.ballot import Ballots
from hushbit.checks import real, whole
from hushbit.cpa import CPA
from hushbit.errors import InvalidInput
from hushbit.mechanism import Mechanism
from hushbit.robust.bits import count_ones
from hushbit.rotation import Rotated
from hushbit.subset import Subset

COIN_RATE = 1e-6  # those who send constant bits are far beyond any limit
GAP, ONE_MIND = 5.0, 2.0
FAR, TOLERATED = 1e-3, 0.02
# A ballot also sways the others' weights a little: on pure noise scores have a variance of 1.6 to
# 2.1 (K from 100 to 3000, dim from 2000 to 26 000), not of 1.
SCORE_VARIANCE = 2.25
MEDIAN_DEVIATION = 0.6745
Vector = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Rule:
    """What the filter promises; nothing in it depends on the data.

    rate        chance that any honest user at all is removed in a round by the reach rule
    share       largest natural group of honest users who are all of one mind
    explained   share of the variance that a cut of honest users in two never explains
    directions  most directions that are looked at at once
    looks       most times that ballots are looked at in a round
    """

    rate: float = 0.01
    share: float = 0.15
    explained: float = 0.87
    directions: int = 12
    looks: int = 6

    def __post_init__(self) -> None:
        for name in ("rate", "share", "explained"):
            if not 0 < real(name, getattr(self, name)) < 1:
                raise InvalidInput(f"{name} must lie in (0, 1); got {getattr(self, name)!r}")
        whole("directions", self.directions, 1, 64)
        whole("looks", self.looks, 1, 100)

    def slack(self, users: int) -> float:
        """z: how far an honest score may leave its mean, but for a chance of rate in a round."""
        chances = 2 * users * self.directions * self.looks / self.rate
        return math.sqrt(2 * SCORE_VARIANCE * math.log(chances))


def loaded_coins(mechanism: Mechanism, ballots: Ballots, rate: float = COIN_RATE) -> Flags:
    """Who sent bits that are no fair coins; nobody where a mechanism has no words."""
    inner = mechanism.inner if isinstance(mechanism, Rotated) else mechanism
    if not isinstance(inner, CPA | Subset):
        return np.zeros(len(ballots), dtype=np.bool_)
    bits = inner.report if isinstance(inner, Subset) else inner.blocks * len(inner.stages)
    ones = np.empty(len(ballots), dtype=np.int64)
    count_ones(np.ascontiguousarray(ballots.payload), ones)
    limit = math.sqrt(bits * math.log(2 * len(ballots) / rate) / 2)
    return np.asarray(np.abs(ones - bits / 2) > limit)


def beyond_reach(scores: Vector, accepted: Flags, reach: float, rule: Rule) -> Flags:
    """Who scores higher on any direction than an honest user can."""
    return np.asarray(accepted & (np.abs(scores) > reach + rule.slack(len(scores))).any(axis=1))


def of_other_mind(scores: Vector, accepted: Flags, rule: Rule) -> Flags:
    """The smaller of two groups along one direction; nobody where there is one group."""
    inside = scores[accepted]
    cut = split(inside)
    low, high = inside[inside <= cut], inside[inside > cut]
    smaller = min(low.size, high.size) / inside.size
    apart = float(high.mean() - low.mean()) if smaller else 0.0
    between = smaller * (1 - smaller) * apart**2
    two = apart > GAP and between > rule.explained * (float(inside.var()) - 1)
    if smaller <= rule.share or not two:
        return np.zeros_like(accepted)
    return np.asarray(accepted & ((scores <= cut) == (low.size < high.size)))


def other_minds(scores: Vector, accepted: Flags, rule: Rule) -> Flags:
    """The smaller groups of all directions, each only if it is of one mind itself."""
    out = np.zeros_like(accepted)
    for column in scores.T:
        group = of_other_mind(column, accepted, rule)
        rest = accepted & ~group
        # Two natural groups may share a side of one direction; another one tells them apart.
        if group.any() and (scores[group].var(axis=0) < ONE_MIND * scores[rest].var(axis=0)).all():
            out |= group
    return out


def far_off(scores: Vector, accepted: Flags) -> Flags:
    """Who is far from the others on all directions together; nobody if few are."""
    away = scores - np.median(scores[accepted], axis=0)
    variance = (np.median(np.abs(away[accepted]), axis=0) / MEDIAN_DEVIATION) ** 2
    variance = np.maximum(variance, 1.0)
    # Directions of unequal spread count for less than their number (Satterthwaite).
    freedom = float(variance.sum() ** 2 / (variance**2).sum())
    distance = (away**2).sum(axis=1)
    typical = max(float(np.median(distance[accepted])), chi_square(scores.shape[1], 0.5))
    limit = typical * chi_square(freedom, FAR) / chi_square(freedom, 0.5)
    out = accepted & (distance > limit)
    return out if out.sum() > TOLERATED * accepted.sum() else np.zeros_like(accepted)


def chi_square(freedom: float, tail: float) -> float:
    """Upper quantile of the chi-square distribution (Wilson and Hilferty).

    >>> round(chi_square(5, 1e-3), 1)  # exactly: 20.5
    20.8
    """
    part = 2 / (9 * freedom)
    return float(freedom * (1 - part + NormalDist().inv_cdf(1 - tail) * math.sqrt(part)) ** 3)


def split(values: Vector) -> float:
    """Where a line of numbers falls into two groups of least inner variance (Otsu).

    >>> split(np.array([0.0, 0.1, 0.2, 5.0, 5.1]))
    2.6
    """
    line = np.sort(values)
    count = np.arange(1, line.size)
    total = np.cumsum(line)
    low = total[:-1] / count
    high = (total[-1] - total[:-1]) / (line.size - count)
    between = count * (line.size - count) * (high - low) ** 2
    best = int(np.argmax(between))
    return float((line[best] + line[best + 1]) / 2)
