"""Whose ballots no honest user would have sent; each rule reads scores or bits alone.

coin      An honest bit is the vote times a random sign of the user's word: a fair coin, whatever
          the data. |ones - n/2| > sqrt(n ln(2 K / rate) / 2) has a chance of rate = 1e-6 among
          K honest users (Hoeffding).
reach     |s| > reach + z cannot be honest: |E s| <= reach = clip/sigma, on any direction, and
          z² = 2 V ln(2 K D L / rate), V = SCORE_VARIANCE, D directions made of ballots, L looks.
humps     Scores of honest users have one hump along any direction, but for natural groups up to
          `share` of the users. A valley (`hushbit.robust.humps`) that cuts off more, and fewer
          than half, divides users of two minds: the smaller group goes, unless the rest differ
          among themselves by more than ONE_MIND of that variance, as users of many kinds do.
against   A user's scores summed over rounds, in units of their noise, with the sign that the
          median user has plus. Beyond a valley, the hump there more than STEPS_BACK from zero:
          `cut_off`. Or, `far_behind`, more than STEPS_BACK below zero,
          where the noise of an honest user who is not set back by training comes with a chance of
          0.13 %, and below median - depth · spread, spread from the median up; only if more than
          TOLERATED of all users newly do (among few users, more than chance allows). On the
          others' mean the depth is where a share `tail` of Gaussian users lies. On the model's way
          it is as far down as a tenth of users are up, and more than `set_back` have to stand
          there: training leaves some honest users behind.
          Once more than `share` are out and the gap between them and the others is clear, halfway
          decides for everybody (`between`): honest users who went with a coalition come back, and
          the rest of it goes. Until then who was found is out, where there is no valley, until
          it has `come_round` on both sums.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from hushbit.ballot import Ballots
from hushbit.checks import real, whole
from hushbit.cpa import CPA
from hushbit.errors import InvalidInput
from hushbit.mechanism import Mechanism
from hushbit.robust.bits import unfair
from hushbit.robust.humps import NOWHERE, middle_of, quantiles, valley
from hushbit.robust.layers import bare
from hushbit.robust.settle import Limits
from hushbit.subset import Subset

DIRECTIONS = 2  # the mean, and what users share besides
SUMS = 3  # over rounds: on the mean, on the way, both together; each has valleys below and above
COIN_RATE = 1e-6  # those who send constant bits are far beyond any limit,
COIN_BITS = 1024  # and show it in few
ONE_MIND = 0.5
STEPS_BACK, TOLERATED = 3.0, 0.03
SEEN = 3.0  # rounds, as the sums' noise counts them: one round is no record
DEVIATIONS, A_FEW = 5.0, 2.5  # among few users tails, and the spread itself, are small counts
UPPER = 0.9  # the spread is read off between the median and this quantile,
UPPER_SPREADS = NormalDist().inv_cdf(UPPER)  # which is so many of it away
# Without attackers up to 12, 17, 21 and 26 % of an MLP's users were set back at once where
# entries of y reached 0.24 (epsilon 0.5 a bit), 0.34, 0.46 and 0.76; label-flip made it 27 to 33.
EDGE, GROWTH = math.tanh(0.25), 0.6
# A ballot that sways the others' weights within a round scores with a variance of up to 2.5.
SCORE_VARIANCE = 3.0
Vector = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Rule:
    """What the filter promises; nothing in it depends on the data.

    rate       chance that any honest user is removed in a round by reach, and again by humps
    share      largest natural group of honest users who are all of one mind
    tail       share of Gaussian users who stand `depth` below the others over rounds
    memory     what is left of a score a round later
    looks      most times that ballots are looked at in a round
    """

    rate: float = 0.01
    share: float = 0.15
    tail: float = 0.01
    memory: float = 0.95
    looks: int = 3

    def __post_init__(self) -> None:
        for name in ("rate", "share", "tail", "memory"):
            if not 0 < real(name, getattr(self, name)) < 1:
                raise InvalidInput(f"{name} must lie in (0, 1); got {getattr(self, name)!r}")
        whole("looks", self.looks, 1, 100)

    @cached_property
    def depth(self) -> float:
        """How many spreads below the median a share `tail` of Gaussian users lies."""
        return NormalDist().inv_cdf(1 - self.tail)

    @property
    def hump_rate(self) -> float:
        """The chance of one look at one direction."""
        return self.rate / (DIRECTIONS * (self.looks + SUMS))

    def set_back(self, edge: float) -> float:
        """Share of honest users whom training may set back: the more, the more bits say."""
        return float(self.share * max(1.0, edge / EDGE) ** GROWTH)

    def many_back(self, users: int, edge: float) -> float:
        """How many of so many honest users training or chance may set back."""
        return max(self.set_back(edge) * users, _by_chance(1 - UPPER, users))

    def newly(self, users: int) -> float:
        """How many of so many honest users may newly stand in the tail of their sums."""
        return max(TOLERATED * users, _by_chance(self.tail, users))

    @lru_cache(maxsize=16)  # noqa: B019 - a rule is a few numbers
    def limits(self, users: int, reach: float, edge: float) -> Limits:
        """What decides a round of so many users, as numbers."""
        return Limits(
            reach + self.slack(users), self.share, self.hump_rate, self.memory,
            STEPS_BACK, SEEN, self.newly(users), self.many_back(users, edge), self.depth, UPPER,
            UPPER_SPREADS,
        )  # fmt: skip

    def slack(self, users: int) -> float:
        """z: how far an honest score may leave its mean, but for a chance of rate in a round."""
        chances = 2 * users * DIRECTIONS * self.looks / self.rate
        return math.sqrt(2 * SCORE_VARIANCE * math.log(chances))


def _by_chance(share: float, users: int) -> float:
    """Most users of a tail: its share, several deviations of a binomial count, and a few."""
    return share * users + DEVIATIONS * math.sqrt(share * (1 - share) * users) + A_FEW


def loaded_coins(mechanism: Mechanism, ballots: Ballots, rate: float = COIN_RATE) -> Flags:
    """Who sent bits that are no fair coins; nobody where a mechanism has no words.

    Nobody either where these would be more than half of all: then it is not they who are odd.
    """
    inner = bare(mechanism)
    if not isinstance(inner, CPA | Subset) or not len(ballots):
        return np.zeros(len(ballots), dtype=np.bool_)
    bits = inner.report if isinstance(inner, Subset) else inner.blocks * len(inner.stages)
    bits = min(bits, COIN_BITS)
    limit = math.sqrt(bits * math.log(2 * len(ballots) / rate) / 2)
    payload = np.ascontiguousarray(ballots.payload)
    out = unfair(payload, min(COIN_BITS // 8, payload.shape[1]), bits / 2, limit)
    return np.asarray(out if 2 * np.count_nonzero(out) <= out.size else ~out & False)


def beyond_reach(scores: Vector, reach: float, rule: Rule) -> Flags:
    """Who scores higher on any direction (a row each) than an honest user can."""
    limit = reach + rule.slack(scores.shape[1])
    return np.asarray((np.abs(scores) > limit).any(axis=0))


def other_minds(scores: Vector, accepted: Flags, rule: Rule) -> Flags:
    """The smaller of two groups along each direction; nobody where there is one hump."""
    out = np.zeros_like(accepted)
    users = int(np.count_nonzero(accepted))
    for column in scores:
        cut = valley(column, accepted, int(rule.share * users), rule.hump_rate, np.inf)
        if cut < NOWHERE:
            below = column < cut
            few = 2 * int(np.count_nonzero(below & accepted)) < users
            out |= accepted & (below == few)
    return out


def cut_off(sums: Vector, rule: Rule, steps: float = STEPS_BACK) -> Flags:
    """Who stands beyond a valley, the hump there more than `steps` from zero.

    Below are those who work against the others, above those who move the mean by themselves.
    """
    everyone, least = np.ones(sums.size, dtype=np.bool_), int(rule.share * sums.size)
    low = valley(sums, everyone, least, rule.hump_rate, -steps)
    high = valley(-sums, everyone, least, rule.hump_rate, -steps)
    below = sums < (low if low < NOWHERE else -NOWHERE)
    return np.asarray(below | (-sums < (high if high < NOWHERE else -NOWHERE)))


def far_behind(
    sums: Vector, present: Flags, apart: Flags, gone: Flags, depth: float, newly: float,
    seen: Flags, natural: float = 0.0,
) -> Flags:  # fmt: skip
    """Who stands more than `depth` spreads below the median of the present, and below zero.

    Nobody who was not `seen` often enough; and nobody unless more than `newly` of them are new
    and, beside those set `apart`, more than `natural` stand there.
    """
    middle, upper = quantiles(sums, present, UPPER)
    spread = max(1.0, (upper - middle) / UPPER_SPREADS)
    limit = min(-STEPS_BACK, middle - depth * spread)
    out = np.asarray((sums < limit) & seen)
    many = np.count_nonzero(out & ~apart) > natural
    return out if many and np.count_nonzero(out & ~(apart | gone)) > newly else out & False


def between(sums: Vector, present: Flags, gone: Flags, rule: Rule) -> float:
    """Halfway between those who are out and the present, where they are clearly two groups.

    Minus infinity where no more than a natural group is out, or where halfway is less than
    STEPS_BACK or the upper tenth of the present away from their median.
    """
    if np.count_nonzero(gone) <= rule.share * gone.size:
        return -NOWHERE
    here, upper = quantiles(sums, present, UPPER)
    half = (here - middle_of(sums, gone)) / 2
    return here - half if half >= STEPS_BACK and upper <= here + half else -NOWHERE


def come_round(both: Sequence[Vector], present: Flags, gone: Flags, rule: Rule) -> Flags:
    """Who of those found stands with the others on both sums, and alone or all together.

    With the others is the better half of the present, or clearly forward, and not far ahead. Sums
    fade when directions say little, so that they are small is no sign of having come round; nor is
    that noise brings one of many nearer: it has to be STEPS_BACK from the median of those found,
    unless that median itself is back, within a spread of the others', and these stand STEPS_BACK
    forward by a sum: where directions say nothing all medians meet.
    """
    back, alone, together, forward = gone.copy(), np.zeros_like(gone), True, False
    for sums in both:
        middle, upper = quantiles(sums, present, UPPER)
        spread = max(1.0, (upper - middle) / UPPER_SPREADS)
        least, most = min(STEPS_BACK, middle), max(STEPS_BACK, middle + rule.depth * spread)
        centre = middle_of(sums, gone)
        back &= (sums >= least) & (sums <= most)
        alone |= np.abs(sums - centre) >= STEPS_BACK
        together &= abs(centre - middle) <= spread
        forward |= middle >= STEPS_BACK
    return np.asarray(back & (alone | (together and forward)))
