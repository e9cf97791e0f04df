"""The rules over rounds in NumPy, each in a few lines; the compiled rules must equal them."""

import numpy as np

from hushbit.defence.modality import NO_SPLIT, median_and_quantile, split_point, upper_median
from hushbit.defence.rules import (
    LIMIT_SIGMAS,
    MIN_ROUNDS,
    UPPER_QUANTILE,
    UPPER_SIGMAS,
    is_minority,
)


def beyond_split(sums, rule, min_distance=LIMIT_SIGMAS):
    """Users beyond a split point, below or above, whose mode is `min_distance` from zero."""
    everyone, natural_size = np.ones(sums.size, dtype=np.bool_), int(rule.natural_share * sums.size)
    found = np.zeros(sums.size, dtype=np.bool_)
    for signed in (sums, -sums):
        split = split_point(signed, everyone, natural_size, rule.split_rate, -min_distance)
        if split < NO_SPLIT:
            found |= signed < split
    return found


def midpoint(sums, present, absent, rule):
    """The midpoint of the medians of present and absent users; -inf where these overlap."""
    if np.count_nonzero(absent) <= rule.natural_share * absent.size:
        return -np.inf
    median, upper = median_and_quantile(sums, present, UPPER_QUANTILE)
    half = (median - upper_median(sums, absent)) / 2
    separate = half >= LIMIT_SIGMAS and upper <= median + half
    return median - half if separate else -np.inf


def median_and_spread(sums, present):
    """The median of the present users, and their spread measured on the upper half."""
    median, upper = median_and_quantile(sums, present, UPPER_QUANTILE)
    return median, max(1.0, (upper - median) / UPPER_SIGMAS)


def below_tail(sums, present, separated, excluded, depth, max_new, seen, max_natural=0.0):
    """Users more than `depth` spreads below the median; nobody unless they are many and new."""
    median, spread = median_and_spread(sums, present)
    found = (sums < min(-LIMIT_SIGMAS, median - depth * spread)) & seen
    many = np.count_nonzero(found & ~separated) > max_natural
    new = np.count_nonzero(found & ~(separated | excluded)) > max_new
    return found if many and new else np.zeros_like(found)


def readmitted(both, present, excluded, rule):
    """Excluded users in the range of the others who leave the excluded, alone or together."""
    in_range, alone, together, forward = excluded.copy(), np.zeros_like(excluded), True, False
    for sums in both:
        median, spread = median_and_spread(sums, present)
        centre = upper_median(sums, excluded)
        in_range &= sums >= min(LIMIT_SIGMAS, median)
        in_range &= sums <= max(LIMIT_SIGMAS, median + rule.tail_sigmas * spread)
        alone |= np.abs(sums - centre) >= LIMIT_SIGMAS
        together &= abs(centre - median) <= spread
        forward |= median >= LIMIT_SIGMAS
    return in_range & (alone | (together and forward))


def history_exclusions(mean, drift, rounds, present, excluded, rule, max_entry):
    """The users whom the rules over rounds exclude."""
    noise, users = np.sqrt(np.maximum(rounds, 1.0)), present.size
    both = [sums / noise for sums in (mean, drift)]
    both = [sums if upper_median(sums, present) >= 0 else -sums for sums in both]
    separated = beyond_split(both[0], rule) | beyond_split(both[1], rule)
    separated |= beyond_split((both[0] + both[1]) / np.sqrt(2.0), rule, LIMIT_SIGMAS / 2)
    for sums in both:
        separated |= sums < midpoint(sums, present, excluded & ~present, rule)
    tail = {"max_new": rule.max_new(users), "seen": rounds >= MIN_ROUNDS}
    groups = present, separated, excluded
    found = separated | below_tail(both[0], *groups, rule.tail_sigmas, **tail)
    max_natural = rule.max_lagging(users, max_entry)
    found |= below_tail(both[1], *groups, UPPER_SIGMAS, **tail, max_natural=max_natural)
    held = np.zeros_like(found)
    if excluded.any() and not separated.any():
        held = excluded & ~readmitted(both, present, excluded, rule)
    for out in (found | held, found):
        if is_minority(out):
            return out
    return np.zeros_like(found)
