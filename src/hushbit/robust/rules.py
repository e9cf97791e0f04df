"""Whose ballots no honest user would have sent; each rule reads scores or bits alone.

coin      An honest bit is the vote times a random sign of the user's word: a fair coin, whatever
          the data. |ones - n/2| > sqrt(n ln(2 K / rate) / 2) has a chance of rate = 1e-6 among
          K honest users (Hoeffding).
reach     |s| > reach + z cannot be honest, z² = 2 V ln(2 K D / rate): |E s| <= reach = clip/sigma.
minds     The best cut in two explains 3/4 of the variance of a uniform spread, 0.64 of a Gaussian
          one, up to 0.87 of a peak with a flat tail. A cut that explains more of what is not
          noise, between groups more than GAP noises apart, the smaller one above a natural group's
          share, divides users of two minds: the smaller group goes, unless the rest differ among
          themselves by more than ONE_MIND of that variance, as users of many kinds do.
against   A user's scores summed over rounds, in units of their noise, leave the others' below: more
          than STEPS_BACK below zero (and below the median, should that be negative), where the
          noise of an honest user who is not set back by training comes with a chance of 0.13 %;
          and below median - z · spread, spread from the median up, where a share `tail` of users
          with Gaussian sums lies. Only if more than TOLERATED of all users do, do they go.
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

DIRECTIONS = 2  # the mean, and what users share besides
COIN_RATE = 1e-6  # those who send constant bits are far beyond any limit
GAP, ONE_MIND = 5.0, 0.5
STEPS_BACK, TOLERATED = 3.0, 0.03
UPPER = 0.9  # the spread is read off between the median and this quantile
# A ballot that sways the others' weights within a round scores with a variance of up to 2.1.
SCORE_VARIANCE = 2.25
Vector = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Rule:
    """What the filter promises; nothing in it depends on the data.

    rate       chance that any honest user at all is removed in a round by the reach rule
    share      largest natural group of honest users who are all of one mind
    explained  share of the variance that a cut of honest users in two never explains
    tail       share of honest users who may stand below the others over rounds, all told
    memory     what is left of a score a round later
    looks      most times that ballots are looked at in a round
    """

    rate: float = 0.01
    share: float = 0.15
    explained: float = 0.87
    tail: float = 0.01
    memory: float = 0.95
    looks: int = 3

    def __post_init__(self) -> None:
        for name in ("rate", "share", "explained", "tail", "memory"):
            if not 0 < real(name, getattr(self, name)) < 1:
                raise InvalidInput(f"{name} must lie in (0, 1); got {getattr(self, name)!r}")
        whole("looks", self.looks, 1, 100)

    def slack(self, users: int) -> float:
        """z: how far an honest score may leave its mean, but for a chance of rate in a round."""
        chances = 2 * users * DIRECTIONS * self.looks / self.rate
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
    """The smaller groups of all directions."""
    out = np.zeros_like(accepted)
    least = rule.share * (1 - rule.share) * GAP**2  # what two groups that far apart give
    for column in scores.T[scores[accepted].var(axis=0) > least]:
        out |= of_other_mind(column, accepted, rule)
    return out


def against_the_others(sums: Vector, present: Flags, rule: Rule) -> Flags:
    """Who stands below the present users' sums of scores; nobody if few do."""
    if (sums < -STEPS_BACK).sum() <= TOLERATED * sums.size:  # the limit is never higher
        return np.zeros_like(present)
    inside = sums[present]
    middle, upper = np.median(inside), np.quantile(inside, UPPER)
    spread = max(1.0, float(upper - middle) / NormalDist().inv_cdf(UPPER))
    depth = NormalDist().inv_cdf(1 - rule.tail) * spread
    out = sums < min(min(0.0, float(middle)) - STEPS_BACK, float(middle) - depth)
    return np.asarray(out) if out.sum() > TOLERATED * sums.size else np.zeros_like(present)


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
