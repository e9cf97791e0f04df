"""A round in which nobody new stands out, compiled: all rules in a few passes over scores.

`hushbit.robust.rules` and `hushbit.robust.filter` say the same rule by rule, and go on where
somebody does stand out; tests hold this to them. What is left out here changes no decision:

- a median is zero or more if at most half of the values, rounded down, are below zero;
- who is not `steps_back` below zero is never far behind, so quantiles are read off only where
  more users than are tolerated are;
- the median is never below zero, so nobody is back who is;
- halfway between two groups finds nobody new if all others are above that of their largest sums.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushbit.kernels.jit import njit
from hushbit.robust.humps import (
    NOWHERE,
    middle_of,
    quantiles,
    valley,
    valley_of_all,
)

ROOT_2 = np.sqrt(2.0)
Vector = NDArray[np.float64]
Flags = NDArray[np.bool_]


class Limits(NamedTuple):
    """The numbers of a `Rule` that decide in a round of so many users.

    reach includes what noise adds; newly and set_back count users.
    """

    reach: float
    share: float
    hump_rate: float
    keep: float
    steps_back: float
    seen: float
    newly: float
    set_back: float
    depth: float
    upper: float
    upper_spreads: float


class Settled(NamedTuple):
    """A verdict in arrays. If not `usual`, nothing in it holds: somebody new stands out."""

    usual: bool
    accepted: Flags
    mean: Vector
    way: Vector
    rounds: Vector
    gone: Flags


@njit
def settle(
    look: Vector, above: Flags, below: Flags, mean: Vector, way: Vector, rounds: Vector,
    gone: Flags, limits: Limits,
) -> Settled:  # fmt: skip
    """Hear one look, then say who is against the others; arrays as in `Memory` and `judge`."""
    present = above | below
    farthest = 0.0
    for user in range(present.size):
        farthest = max(farthest, abs(look[2, user]) * present[user])
    new = farthest > limits.reach or stands_out(look[0], present, limits)
    if new or stands_out(look[1], present, limits):
        nothing = np.empty(0)
        return Settled(False, present, nothing, nothing, nothing, present)
    plus = 1.0 if leads_forward(look[0], present) else -1.0
    mean_now = limits.keep * mean + plus * look[0]
    way_now = limits.keep * way + look[2]
    rounds_now = limits.keep**2 * rounds + 1
    found = against_others(mean_now, way_now, rounds_now, present, gone, limits)
    accepted = present & ~found
    if 2 * np.count_nonzero(accepted) < present.size:
        accepted = present
    return Settled(True, accepted, mean_now, way_now, rounds_now, found)


@njit
def stands_out(scores: Vector, present: Flags, limits: Limits) -> bool:
    """Whether any present user is beyond the reach, or a valley divides the present."""
    users, farthest = 0, 0.0
    for user in range(scores.size):
        users += present[user]
        farthest = max(farthest, abs(scores[user]) * present[user])
    least = int(limits.share * users)
    return bool(
        farthest > limits.reach
        or valley(scores, present, least, limits.hump_rate, np.inf) < NOWHERE
    )


@njit
def leads_forward(scores: Vector, present: Flags) -> bool:
    """Whether the median of the present, the upper one of two, is zero or more."""
    users, negative = 0, 0
    for user in range(scores.size):
        users += present[user]
        negative += present[user] & (scores[user] < 0)
    return negative <= users // 2


@njit
def against_others(
    mean: Vector, way: Vector, rounds: Vector, present: Flags, gone: Flags, limits: Limits
) -> Flags:
    """Who is cut off or far behind by either sum, or was found and is not back."""
    users = mean.size
    both = np.empty((2, users))
    for user in range(users):
        noise = np.sqrt(max(rounds[user], 1.0))
        both[0, user], both[1, user] = mean[user] / noise, way[user] / noise
    found = np.zeros(users, np.bool_)
    for sums in both:
        if not leads_forward(sums, present):
            sums *= -1.0
        add_cut_off(sums, limits, limits.steps_back, found)
    add_cut_off((both[0] + both[1]) / ROOT_2, limits, limits.steps_back / 2, found)
    for sums in both:
        add_between(sums, present, gone, limits, found)
    apart, known, seen = found.copy(), found | gone, rounds >= limits.seen
    add_far_behind(both[0], present, apart, known, limits.depth, 0.0, seen, limits, found)
    add_far_behind(
        both[1], present, apart, known, limits.upper_spreads, limits.set_back, seen, limits, found
    )
    if not apart.any():
        all_told = found.copy()
        add_held(both, present, gone, limits, all_told)
        if 2 * np.count_nonzero(all_told) <= users:
            return all_told
    if 2 * np.count_nonzero(found) > users:
        found[:] = False
    return found


@njit
def add_between(sums: Vector, present: Flags, gone: Flags, limits: Limits, found: Flags) -> None:
    """Mark who is nearer to those who are out than to the present, where they are two groups."""
    others, count = np.empty_like(gone), 0
    for user in range(gone.size):
        others[user] = gone[user] & (not present[user])
        count += others[user]
    if count <= limits.share * gone.size or are_found(sums, present, others, found):
        return
    here = middle_of(sums, present)
    half = (here - middle_of(sums, others)) / 2
    if half < limits.steps_back:
        return
    users, within = 0, 0  # the quantile is within half of the median if as many users are
    for user in range(sums.size):
        users += present[user]
        within += present[user] & (sums[user] <= here + half)
    if within > int(limits.upper * (users - 1)):
        for user in range(sums.size):
            found[user] |= sums[user] < here - half


@njit
def are_found(sums: Vector, present: Flags, others: Flags, found: Flags) -> bool:
    """Whether all below halfway surely are found already: it is below that of the largest sums."""
    here, there, least = -np.inf, -np.inf, np.inf
    for user in range(sums.size):
        here = max(here, sums[user] if present[user] else -np.inf)
        there = max(there, sums[user] if others[user] else -np.inf)
        least = min(least, np.inf if found[user] else sums[user])
    return bool(least >= (here + there) / 2)


@njit
def add_held(both: Vector, present: Flags, gone: Flags, limits: Limits, found: Flags) -> None:
    """Mark who was found before and has not come round."""
    if not ((both[0] >= 0) & (both[1] >= 0) & gone).any():
        found |= gone
        return
    least, most, centre = np.empty(2), np.empty(2), np.empty(2)
    together, forward = True, False
    for row in range(2):
        middle, upper = quantiles(both[row], present, limits.upper)
        spread = max(1.0, (upper - middle) / limits.upper_spreads)
        least[row] = min(limits.steps_back, middle)
        most[row] = max(limits.steps_back, middle + limits.depth * spread)
        centre[row] = middle_of(both[row], gone)
        together &= abs(centre[row] - middle) <= spread
        forward |= middle >= limits.steps_back
    for user in range(gone.size):
        back, alone = True, together and forward
        for row in range(2):
            back &= (both[row, user] >= least[row]) & (both[row, user] <= most[row])
            alone |= abs(both[row, user] - centre[row]) >= limits.steps_back
        found[user] |= gone[user] & (not (back & alone))


@njit
def add_cut_off(sums: Vector, limits: Limits, steps: float, found: Flags) -> None:
    """Mark who stands beyond a valley, below or above."""
    low, high, least = sums.min(), sums.max(), int(limits.share * sums.size)
    for sign in (1.0, -1.0):
        first, last = (low, high) if sign > 0 else (-high, -low)
        cut = valley_of_all(sums, first, last, sign, least, limits.hump_rate, -steps)
        if cut < NOWHERE:
            found |= sign * sums < cut


@njit
def add_far_behind(
    sums: Vector, present: Flags, apart: Flags, known: Flags, depth: float, natural: float,
    seen: Flags, limits: Limits, found: Flags,
) -> None:  # fmt: skip
    """Mark who stands further below the present than a tail of them does, unless few do."""
    new = seen & ~known
    if below(sums, new, -limits.steps_back) <= limits.newly:
        return
    middle, upper = quantiles(sums, present, limits.upper)
    spread = max(1.0, (upper - middle) / limits.upper_spreads)
    limit = min(-limits.steps_back, middle - depth * spread)
    if below(sums, new, limit) > limits.newly and below(sums, seen & ~apart, limit) > natural:
        found |= (sums < limit) & seen


@njit
def below(sums: Vector, counted: Flags, limit: float) -> int:
    """How many of those counted stand below a limit."""
    count = 0
    for user in range(sums.size):
        count += (sums[user] < limit) & counted[user]
    return count
