"""The rules of the ballot filter: which ballots an honest user does not send.

A score is y · d, where y is a decoded ballot in units of its noise and d a direction of length 1.
Its noise has variance 1, and an honest user has |E score| <= max_score = largest_norm / sigma.

Rules of one round:

- Biased bits. An honest bit is the vote times a random sign from the user's word: a fair coin for
  any data. A ballot of n bits is removed if |ones - n/2| > sqrt(n ln(2 K / rate) / 2). The
  probability that this removes any of K honest users is at most rate = 1e-6 (Hoeffding).
- Maximum score. A user with |score| > max_score + z on any direction is removed, where
  z² = 2 V ln(2 K D I / rate), V = SCORE_VARIANCE, D = DIRECTIONS, I = max_iterations.
- Bimodal scores. Honest scores are unimodal, except for natural groups of up to `natural_share` of
  the users. If a split point (`hushbit.defence.modality`) cuts off more than that and less than
  half, the smaller group is removed. It stays if the variance among the remaining users exceeds
  MAX_VARIANCE_RATIO of the variance before, because then users are of many kinds.

Rules over rounds. Each user's scores on the mean and on the drift direction are summed over rounds
and divided by their noise. The sign of each sum is chosen such that the median user is
non-negative. A user is excluded by

- Split: it lies beyond a split point of either sum, and the mode there is more than LIMIT_SIGMAS
  from zero. Users below work against the others; users above move the mean by themselves. The
  same applies to (mean + drift) / sqrt(2) with LIMIT_SIGMAS / 2, for users who score low on both.
- Midpoint: more than `natural_share` of the users are out, and the midpoint between their median
  and the median of the present users is at least LIMIT_SIGMAS, and the distance of the upper tenth,
  below the latter. Then everybody below the midpoint is excluded and everybody above is readmitted.
- Tail: its sum is below min(-LIMIT_SIGMAS, median - depth · spread). An honest user whom training
  does not leave behind has a sum below -LIMIT_SIGMAS with probability 0.13 %. The spread is the
  distance from the median to the upper tenth in standard deviations. The rule applies if more than
  TOLERATED_SHARE of all users are newly there. On the mean, `tail_share` of Gaussian users lie
  below the depth. On the drift direction, the depth is as far below the median as the upper tenth
  is above, and more than `lagging_share` of the users must be there, because training leaves some
  honest users behind. With few users, both counts have a margin for chance.
- Not readmitted: it was excluded before. This applies in rounds without a split or midpoint.

An excluded user is readmitted if both conditions hold:

- On both sums it is at least min(LIMIT_SIGMAS, median of the present users), and at most
  max(LIMIT_SIGMAS, median + tail_sigmas · spread).
- On either sum it is LIMIT_SIGMAS from the median of the excluded users, since noise alone moves
  one of many users closer. Or all return together: on both sums the median of the excluded users is
  within a spread of the median of the others, which is at least LIMIT_SIGMAS on either sum. (Sums
  fade when directions carry little information; all medians are then close, which is no evidence.)

A rule that would exclude more than half of all users is not applied.

`apply_rules_fast` applies all rules in a few passes over the scores. It decides rounds in which the
rules of one round remove nobody; `hushbit.defence.filter.apply_rules` decides any round. The
compiled functions skip work that cannot change a decision:

- An upper median is non-negative if at most half of the values, rounded down, are negative.
- A user above -LIMIT_SIGMAS is never in the tail. Quantiles are computed only if more users than
  tolerated are below.
- The medians of both sums are non-negative, so a user with a negative sum is not readmitted.
- The midpoint excludes nobody new if all users not yet excluded are above the midpoint of the
  largest sums of both groups.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from hushbit.checks import Floats, check_float, check_int
from hushbit.defence.modality import (
    NO_SPLIT,
    Flags,
    median_and_quantile,
    split_point,
    split_point_of_all,
    upper_median,
)
from hushbit.errors import InvalidInput
from hushbit.kernels import njit
from hushbit.kernels.scores import biased_rows
from hushbit.mechanism import Mechanism
from hushbit.wire.ballot import Ballots

MIN_USERS = 20  # fewer users are not compared with each other
DIRECTIONS = 2  # computed from ballots: the mean and the shared direction
HISTORY_SUMS = 3  # tested for splits: mean, drift, both together; each below and above
BIAS_RATE = 1e-6  # constant bits exceed any limit,
BIAS_BITS = 1024  # and few bits show it
MAX_VARIANCE_RATIO = 0.5
LIMIT_SIGMAS, TOLERATED_SHARE = 3.0, 0.03
MIN_ROUNDS = 3.0  # effective rounds, in which noise is counted: no conclusion from one round
COUNT_SIGMAS, SMALL_COUNT = 5.0, 2.5  # margin: with few users, tails and spread are small counts
UPPER_QUANTILE = 0.9  # the spread is measured between the median and this quantile,
UPPER_SIGMAS = NormalDist().inv_cdf(UPPER_QUANTILE)  # which is so many standard deviations away
# Without attackers, up to 12, 17, 21 and 26 % of the users of an MLP were in the tail of the drift
# sum at once where entries of y reached 0.24 (epsilon 0.5 per bit), 0.34, 0.46 and 0.76. Under
# label-flip it was 27 to 33 %.
REFERENCE_ENTRY, LAGGING_EXPONENT = math.tanh(0.25), 0.6
# A ballot that changes the weights of the others within a round has a score variance of up to 2.5.
SCORE_VARIANCE = 3.0
ROOT_2 = np.sqrt(2.0)


class RuleLimits(NamedTuple):
    """The limits of a `FilterRule` for a round of a given number of users.

    `max_score` includes the slack for noise; `max_new` and `max_lagging` are numbers of users.
    """

    max_score: float
    natural_share: float
    split_rate: float
    decay: float
    tail_sigmas: float
    max_new: float
    max_lagging: float


@dataclass(frozen=True)
class FilterRule:
    """The parameters of the filter; none of them depends on the data.

    rate            probability per round that the maximum score removes any honest user, and the
                    same for bimodal scores
    natural_share   largest share of honest users who form a group of their own
    tail_share      share of Gaussian users below the tail limit of the mean sum
    decay           factor of a score in the sums, per round
    max_iterations  how often the rules of one round are repeated at most
    """

    rate: float = 0.01
    natural_share: float = 0.15
    tail_share: float = 0.01
    decay: float = 0.95
    max_iterations: int = 3

    def __post_init__(self) -> None:
        for name in ("rate", "natural_share", "tail_share", "decay"):
            if not 0 < check_float(name, getattr(self, name)) < 1:
                raise InvalidInput(f"{name} must lie in (0, 1); got {getattr(self, name)!r}")
        check_int("max_iterations", self.max_iterations, 1, 100)

    @cached_property
    def tail_sigmas(self) -> float:
        """Standard deviations below the median at which `tail_share` of Gaussian users lie."""
        return NormalDist().inv_cdf(1 - self.tail_share)

    @property
    def split_rate(self) -> float:
        """Probability that one modality test of one direction finds a split by chance."""
        return self.rate / (DIRECTIONS * (self.max_iterations + HISTORY_SUMS))

    def lagging_share(self, max_entry: float) -> float:
        """Share of honest users whom training may leave in the tail of the drift sum.

        It grows with `max_entry`, the largest entry of an honest update in units of the noise.
        """
        ratio = max(1.0, max_entry / REFERENCE_ENTRY)
        return float(self.natural_share * ratio**LAGGING_EXPONENT)

    def max_lagging(self, users: int, max_entry: float) -> float:
        """Number of honest users whom training or chance may leave in the tail of the drift sum."""
        return max(self.lagging_share(max_entry) * users, _chance_limit(1 - UPPER_QUANTILE, users))

    def max_new(self, users: int) -> float:
        """Number of honest users who may newly be in the tail of a sum."""
        return max(TOLERATED_SHARE * users, _chance_limit(self.tail_share, users))

    @lru_cache(maxsize=16)  # noqa: B019 - a rule is a few numbers
    def limits(self, users: int, max_score: float, max_entry: float) -> RuleLimits:
        """The limits for a round of `users` ballots."""
        return RuleLimits(
            max_score + self.slack(users),
            self.natural_share,
            self.split_rate,
            self.decay,
            self.tail_sigmas,
            self.max_new(users),
            self.max_lagging(users, max_entry),
        )

    def slack(self, users: int) -> float:
        """z: the largest deviation of honest scores from their mean, with probability 1 - rate."""
        tests = 2 * users * DIRECTIONS * self.max_iterations / self.rate
        return math.sqrt(2 * SCORE_VARIANCE * math.log(tests))


DEFAULT_RULE = FilterRule()


def _chance_limit(share: float, users: int) -> float:
    """Upper limit of a binomial count: its mean, five standard deviations, and a small count."""
    return share * users + COUNT_SIGMAS * math.sqrt(share * (1 - share) * users) + SMALL_COUNT


def biased_bits(mechanism: Mechanism, ballots: Ballots, rate: float = BIAS_RATE) -> Flags:
    """Users whose bits are not fair coins.

    Nobody where the mechanism has no words, or where it would be more than half of the users.
    """
    votes = mechanism.votes
    if votes is None or not votes.fair_bits or not len(ballots):
        return np.zeros(len(ballots), dtype=np.bool_)
    bits = min(votes.fair_bits, BIAS_BITS)
    limit = math.sqrt(bits * math.log(2 * len(ballots) / rate) / 2)
    payload = np.ascontiguousarray(ballots.payload)
    biased = biased_rows(payload, min(BIAS_BITS // 8, payload.shape[1]), bits / 2, limit)
    return np.asarray(biased if is_minority(biased) else np.zeros_like(biased))


def is_minority(flags: Flags) -> bool:
    """Whether at most half of all users are marked: the filter assumes that attackers are."""
    return 2 * int(np.count_nonzero(flags)) <= flags.size


@njit
def remaining(biased: Flags, excluded: Flags) -> Flags:
    """Users who are neither biased nor excluded.

    If these are less than half of the users, all who are not biased; if these are less than half
    too, all users.
    """
    biased_users, marked_users = 0, 0
    for user in range(biased.size):
        biased_users += biased[user]
        marked_users += biased[user] | excluded[user]
    use_excluded, use_biased = 2 * marked_users <= biased.size, 2 * biased_users <= biased.size
    stay = np.empty(biased.size, np.bool_)
    for user in range(biased.size):
        stay[user] = not (use_biased & biased[user] | use_excluded & excluded[user])
    return stay


def above_max_score(scores: Floats, max_score: float, rule: FilterRule) -> Flags:
    """Users whose score on any direction (row) is larger than an honest user's."""
    limit = max_score + rule.slack(scores.shape[1])
    return np.asarray((np.abs(scores) > limit).any(axis=0))


def bimodal_group(scores: Floats, present: Flags, rule: FilterRule) -> Flags:
    """The smaller of two groups along each direction (row); nobody where scores are unimodal."""
    group = np.zeros_like(present)
    users = int(np.count_nonzero(present))
    for row in scores:
        split = split_point(row, present, int(rule.natural_share * users), rule.split_rate, np.inf)
        if split < NO_SPLIT:
            below = row < split
            below_is_smaller = 2 * int(np.count_nonzero(below & present)) < users
            group |= present & (below == below_is_smaller)
    return group


class RoundDecision(NamedTuple):
    """The result of `apply_rules_fast`: accepted users and the new rows of the score history.

    If `decided` is False, the rules of one round remove somebody and the other fields are invalid.
    """

    decided: bool
    accepted: Flags
    mean: Floats
    drift: Floats
    rounds: Floats
    excluded: Flags


@njit
def apply_rules_fast(
    scores: Floats,
    above: Flags,
    below: Flags,
    mean: Floats,
    drift: Floats,
    rounds: Floats,
    excluded: Flags,
    limits: RuleLimits,
) -> RoundDecision:
    """All rules at once; arrays as in `ScoreHistory` and `SingleBallots.score`."""
    present = above | below
    largest = 0.0
    for user in range(present.size):
        largest = max(largest, abs(scores[2, user]) * present[user])
    removes = largest > limits.max_score or has_outliers(scores[0], present, limits)
    if removes or has_outliers(scores[1], present, limits):
        nothing = np.empty(0)
        return RoundDecision(False, present, nothing, nothing, nothing, present)
    sign = 1.0 if has_nonnegative_median(scores[0], present) else -1.0
    new_mean = limits.decay * mean + sign * scores[0]
    new_drift = limits.decay * drift + scores[2]
    new_rounds = limits.decay**2 * rounds + 1
    found = history_exclusions(new_mean, new_drift, new_rounds, present, excluded, limits)
    accepted = present & ~found
    if 2 * np.count_nonzero(accepted) < present.size:
        accepted = present
    return RoundDecision(True, accepted, new_mean, new_drift, new_rounds, found)


@njit
def has_outliers(scores: Floats, present: Flags, limits: RuleLimits) -> bool:
    """Whether a present user exceeds the maximum score, or the present users are bimodal."""
    users, largest = 0, 0.0
    for user in range(scores.size):
        users += present[user]
        largest = max(largest, abs(scores[user]) * present[user])
    if largest > limits.max_score:
        return True
    natural_size = int(limits.natural_share * users)
    split = split_point(scores, present, natural_size, limits.split_rate, np.inf)
    return bool(split < NO_SPLIT)


@njit
def has_nonnegative_median(scores: Floats, present: Flags) -> bool:
    """Whether the upper median of the present users is zero or more."""
    users, negative = 0, 0
    for user in range(scores.size):
        users += present[user]
        negative += present[user] & (scores[user] < 0)
    return negative <= users // 2


@njit
def history_exclusions(
    mean: Floats,
    drift: Floats,
    rounds: Floats,
    present: Flags,
    excluded: Flags,
    limits: RuleLimits,
) -> Flags:
    """Users whom the rules over rounds exclude, given the sums after this round.

    `present` are the users whom the rules of this round keep; `excluded` are the users excluded by
    the history before.
    """
    users = mean.size
    both = np.empty((2, users))
    for user in range(users):
        noise = np.sqrt(max(rounds[user], 1.0))
        both[0, user], both[1, user] = mean[user] / noise, drift[user] / noise
    found = np.zeros(users, np.bool_)
    for sums in both:
        if not has_nonnegative_median(sums, present):
            sums *= -1.0
        mark_beyond_split(sums, limits, LIMIT_SIGMAS, found)
    mark_beyond_split((both[0] + both[1]) / ROOT_2, limits, LIMIT_SIGMAS / 2, found)
    for sums in both:
        mark_below_midpoint(sums, present, excluded, limits, found)
    separated, known, seen = found.copy(), found | excluded, rounds >= MIN_ROUNDS
    depth, lagging = limits.tail_sigmas, limits.max_lagging
    mark_below_tail(both[0], present, separated, known, depth, 0.0, seen, limits, found)
    mark_below_tail(both[1], present, separated, known, UPPER_SIGMAS, lagging, seen, limits, found)
    if not separated.any():
        with_earlier = found.copy()
        mark_not_readmitted(both, present, excluded, limits, with_earlier)
        if 2 * np.count_nonzero(with_earlier) <= users:
            return with_earlier
    if 2 * np.count_nonzero(found) > users:
        found[:] = False
    return found


@njit
def mark_beyond_split(sums: Floats, limits: RuleLimits, min_distance: float, found: Flags) -> None:
    """Mark users beyond a split point, below or above, whose mode is `min_distance` from zero."""
    low, high = sums.min(), sums.max()
    natural_size = int(limits.natural_share * sums.size)
    for sign in (1.0, -1.0):
        first, last = (low, high) if sign > 0 else (-high, -low)
        split = split_point_of_all(
            sums, first, last, sign, natural_size, limits.split_rate, -min_distance
        )
        if split < NO_SPLIT:
            found |= sign * sums < split


@njit
def mark_below_midpoint(
    sums: Floats, present: Flags, excluded: Flags, limits: RuleLimits, found: Flags
) -> None:
    """Mark users closer to the excluded than to the present users, if these are separate."""
    absent, count = np.empty_like(excluded), 0
    for user in range(excluded.size):
        absent[user] = excluded[user] & (not present[user])
        count += absent[user]
    if count <= limits.natural_share * excluded.size:
        return
    if midpoint_marks_nobody(sums, present, absent, found):
        return
    median = upper_median(sums, present)
    half = (median - upper_median(sums, absent)) / 2
    if half < LIMIT_SIGMAS:
        return
    # The upper quantile is within `half` of the median if at least its rank of users are.
    users, within = 0, 0
    for user in range(sums.size):
        users += present[user]
        within += present[user] & (sums[user] <= median + half)
    if within > int(UPPER_QUANTILE * (users - 1)):
        for user in range(sums.size):
            found[user] |= sums[user] < median - half


@njit
def midpoint_marks_nobody(sums: Floats, present: Flags, absent: Flags, found: Flags) -> bool:
    """Whether all users not yet found are above the midpoint of the largest sums of both groups.

    That midpoint is at least the midpoint of the medians.
    """
    largest_present, largest_absent, least = -np.inf, -np.inf, np.inf
    for user in range(sums.size):
        largest_present = max(largest_present, sums[user] if present[user] else -np.inf)
        largest_absent = max(largest_absent, sums[user] if absent[user] else -np.inf)
        least = min(least, np.inf if found[user] else sums[user])
    return bool(least >= (largest_present + largest_absent) / 2)


@njit
def mark_below_tail(
    sums: Floats,
    present: Flags,
    separated: Flags,
    known: Flags,
    depth: float,
    max_natural: float,
    seen: Flags,
    limits: RuleLimits,
    found: Flags,
) -> None:
    """Mark users more than `depth` spreads below the median of the present users.

    Only users `seen` in enough rounds are marked, and only if more than `limits.max_new` of them
    are not `known`, and more than `max_natural` of them are not `separated` by a split or midpoint.
    """
    new = seen & ~known
    if count_below(sums, new, -LIMIT_SIGMAS) <= limits.max_new:
        return
    median, upper = median_and_quantile(sums, present, UPPER_QUANTILE)
    spread = max(1.0, (upper - median) / UPPER_SIGMAS)
    limit = min(-LIMIT_SIGMAS, median - depth * spread)
    if count_below(sums, new, limit) <= limits.max_new:
        return
    if count_below(sums, seen & ~separated, limit) > max_natural:
        found |= (sums < limit) & seen


@njit
def count_below(sums: Floats, mask: Flags, limit: float) -> int:
    """The number of masked users below a limit."""
    count = 0
    for user in range(sums.size):
        count += (sums[user] < limit) & mask[user]
    return count


@njit
def mark_not_readmitted(
    both: Floats, present: Flags, excluded: Flags, limits: RuleLimits, found: Flags
) -> None:
    """Mark users who were excluded before and do not meet the conditions for readmission."""
    if not ((both[0] >= 0) & (both[1] >= 0) & excluded).any():
        found |= excluded
        return
    lower, upper, centre = np.empty(2), np.empty(2), np.empty(2)
    together, forward = True, False
    for row in range(2):
        median, quantile = median_and_quantile(both[row], present, UPPER_QUANTILE)
        spread = max(1.0, (quantile - median) / UPPER_SIGMAS)
        lower[row] = min(LIMIT_SIGMAS, median)
        upper[row] = max(LIMIT_SIGMAS, median + limits.tail_sigmas * spread)
        centre[row] = upper_median(both[row], excluded)
        together &= abs(centre[row] - median) <= spread
        forward |= median >= LIMIT_SIGMAS
    for user in range(excluded.size):
        in_range, separate = True, together and forward
        for row in range(2):
            in_range &= (both[row, user] >= lower[row]) & (both[row, user] <= upper[row])
            separate |= abs(both[row, user] - centre[row]) >= LIMIT_SIGMAS
        found[user] |= excluded[user] & (not (in_range & separate))
