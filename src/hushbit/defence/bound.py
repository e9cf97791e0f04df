"""Bounds on the shift of the mean that a share f of colluding users causes.

Without filter (two points): an attacker chooses every bit. Each entry moves by at most f · sigma,
sigma = radius / (2p - 1), and the mean by

    without_filter <= f · sigma · sqrt(dim)                     attained by the attack `directed`

With filter, in one round: on the mean and on the shared direction, the score of an accepted ballot
is at most max_score + z, with z = `FilterRule.slack`. Along these directions the mean moves by

    one_round <= f · (largest_norm + z · sigma)

With filter, in every round: let w = (1 + decay) / (1 - decay), and let h be the spread of honest
users along a direction, in units of sigma (at most max_score / 2: half of them at either end of
the clip). A user who pushes by s sigma per round against the drift direction, or against the mean
of the others, has a normalized sum of -s · sqrt(w). It remains accepted with probability of at
most 0.13 % unless

    s <= S = (max(LIMIT_SIGMAS, z_f · sqrt(1 + w h²)) + LIMIT_SIGMAS) / sqrt(w)

This holds for Gaussian honest sums and a non-negative median of all users, attackers included.
z_f is the number of honest standard deviations from the honest median down to the limit, when a
share f of the users lies below the limit: the median and the upper tenth of all users are then the
quantiles 1 - 0.5 / (1 - f) and 1 - 0.1 / (1 - f) of the honest users.

A share n of all users (`FilterRule.lagging_share`) may lie in the tail of the drift sum without
consequence, because training leaves some honest users behind. Only the bound of one round applies
to them. The other attackers either push by S, or accept exclusion, which leaves fewer ballots in
the mean. For f > n:

    every_round = max(n · (largest_norm + z sigma) + (f - n) · S sigma,
                      n · (largest_norm + z sigma) / (1 - f + n))

A coalition of which one part scores so low that the midpoint lies below the other part gains
nothing: at least half of the users found are excluded, and the others push half as far, f/4 < n.

Not covered: users who accept exclusion, wait for readmission and push again; and more than about a
third of the users, spread so evenly over the range of scores that no split point exists and the
median changes its sign.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

from hushbit.checks import check_float, check_int, check_positive
from hushbit.defence.rules import (
    DEFAULT_RULE,
    LIMIT_SIGMAS,
    MIN_USERS,
    UPPER_QUANTILE,
    UPPER_SIGMAS,
    FilterRule,
)
from hushbit.errors import InvalidInput
from hushbit.mechanism import Mechanism

ATTACKER_SHARES = (0.1, 0.2, 0.3, 0.4)


@dataclass(frozen=True)
class ShiftBound:
    """l2 bounds on the shift of the mean by colluding users, in the units of the update.

    without_filter  attained by the attack `directed`
    one_round       with filter, along the mean and the shared direction
    every_round     with filter, the same push in every round, against the drift direction or the
                    mean of the others
    """

    attackers: float
    without_filter: float
    one_round: float
    every_round: float

    @property
    def filtered(self) -> float:
        """The bound of one round with filter, at most the bound without filter."""
        return min(self.without_filter, self.one_round)

    def row(self) -> dict[str, float]:
        """The bounds by the names that `hushbit plan --json` prints."""
        return {
            "attackers": self.attackers,
            "open": self.without_filter,
            "accepted": self.one_round,
            "lasting": self.every_round,
            "filtered": self.filtered,
        }


def worst_shift(
    attackers: float,
    dim: int,
    users: int,
    sigma: float,
    largest_norm: float,
    honest_spread: float | None = None,
    rule: FilterRule = DEFAULT_RULE,
    max_entry: float = 0.0,
) -> ShiftBound:
    """The bounds for a share `attackers` of the users.

    sigma          standard deviation of an entry of one decoded ballot, radius / (2p - 1) for two
                   points
    largest_norm   the clip, or the largest norm of an honest update
    honest_spread  spread of honest users along a direction, in sigma; by default its maximum
    max_entry      largest entry of an honest update in sigma, 2p - 1 for two points
    """
    share = check_float("attackers", attackers)
    if not 0 <= share < 0.5:
        raise InvalidInput(f"attackers must be a share from 0 to below 0.5; got {attackers!r}")
    users, dim = check_int("users", users, MIN_USERS), check_int("dim", dim, 1)
    sigma = check_positive("sigma", sigma)
    largest_norm = check_positive("largest_norm", largest_norm)
    if honest_spread is None:
        spread = largest_norm / sigma / 2
    else:
        spread = check_float("honest_spread", honest_spread)
    window = (1 + rule.decay) / (1 - rule.decay)
    depth = _limit_depth(rule, share) * math.sqrt(1 + window * spread**2)
    push = (max(LIMIT_SIGMAS, depth) + LIMIT_SIGMAS) / math.sqrt(window)
    once = largest_norm + rule.slack(users) * sigma
    lagging = min(share, rule.lagging_share(max_entry))
    return ShiftBound(
        attackers=share,
        without_filter=share * sigma * math.sqrt(dim),
        one_round=share * once,
        every_round=max(
            lagging * once + (share - lagging) * min(push * sigma, once),
            lagging * once / (1 - share + lagging),
        ),
    )


def _limit_depth(rule: FilterRule, share: float) -> float:
    """z_f: honest standard deviations from the honest median down to the limit of the tail rule."""
    inverse = NormalDist().inv_cdf
    median, upper = inverse(0.5 / (1 - share)), inverse(1 - (1 - UPPER_QUANTILE) / (1 - share))
    return median + rule.tail_sigmas * (upper + median) / UPPER_SIGMAS


def shift_bounds(mechanism: Mechanism, users: int, clip: float | None = None) -> list[ShiftBound]:
    """The bounds for 10, 20, 30 and 40 % of attackers.

    The list is empty where the mechanism states no scale of its ballots, or with too few users for
    the filter. `clip` is an agreed l2 bound on updates that the mechanism itself does not enforce.
    """
    scale = None if mechanism.votes is None else mechanism.votes.scale
    if scale is None or users < MIN_USERS:
        return []
    largest_norm = scale.largest_norm
    if clip is not None:
        largest_norm = min(largest_norm, check_positive("clip", clip))
    return [
        worst_shift(
            share, mechanism.dim, users, scale.noise, largest_norm, max_entry=scale.largest_entry
        )
        for share in ATTACKER_SHARES
    ]
