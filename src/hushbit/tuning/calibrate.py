"""From a budget for a whole message to the mechanism that spends it."""

import math
from collections.abc import Callable

from hushbit.checks import check_delta, check_int, check_positive, check_scale
from hushbit.cpa import CPA
from hushbit.encoding.clip_and_rotate import MAX_BLOCK
from hushbit.errors import InvalidInput
from hushbit.mechanism import Mechanism
from hushbit.privacy.composition import decimal_fraction, epsilon_per_bit_for
from hushbit.privacy.renyi import epsilon_of_zcdp, zcdp_of_two_points
from hushbit.wrappers import Rotated, Subset

MAX_EPSILON_PER_BIT = 64.0
"""Coins of 32 bits cannot distinguish a larger epsilon per bit from this one."""

CLIP_PROBABILITY = 1e-6
"""Bound on the probability that the default radius of rotated updates clips any entry."""


def best_subset(epsilon: float) -> int:
    """Number of blocks to report under a pure budget: the s that minimises 1/(s tanh^2(eps/2s)).

    The function is unimodal in s with its minimum near epsilon / 2.177, so four candidates suffice;
    ties go to the smaller s, which sends fewer bits.

    >>> [best_subset(epsilon) for epsilon in (0.5, 1, 2, 4, 8, 16)]
    [1, 1, 1, 2, 4, 7]
    """
    epsilon = check_positive("epsilon", epsilon)
    near = int(epsilon / 2.177)
    candidates = range(max(1, near - 1), near + 3)
    return min(candidates, key=lambda s: 1 / (s * math.tanh(epsilon / (2 * s)) ** 2))


def calibrate(
    dim: int,
    epsilon: float,
    delta: float,
    *,
    clip: float | None = None,
    radius: float | None = None,
    rotate: bool = False,
) -> Mechanism:
    """A mechanism whose whole message is (epsilon, delta)-private; delta = 0 is pure.

    delta = 0   every user reports `best_subset(epsilon)` blocks, chosen by its key, and each bit
                gets an equal share of epsilon.
    delta > 0   every update is scaled down to l2 norm `clip` (required) and every entry is rounded
                to ±radius; rho = epsilon_per_bit² / 2 · (clip / radius)².

    Entries beyond `radius` are clipped, so the default is `clip`, which clips no entry. A smaller
    radius means less noise. With rotate=True entries become alike, and the default is
    `rotated_radius(dim, clip)`, which clips any entry with probability below one in a million.

    >>> calibrate(7850, 4.0, 0.0, radius=0.05).guarantee.epsilon_per_message()
    4.0
    """
    dim = check_int("dim", dim, 1)
    total = check_positive("epsilon", epsilon)
    delta = check_delta(delta)
    if not isinstance(rotate, bool):
        raise InvalidInput(f"rotate must be True or False; got {rotate!r}")
    clip = None if clip is None else check_scale("clip", clip)
    if radius is not None:
        radius = check_scale("radius", radius)
    elif clip is None:
        raise InvalidInput("calibrate needs a radius for the entries or an l2 clip for the update")
    else:
        radius = rotated_radius(dim, clip) if rotate else clip
    made: Mechanism
    if delta == 0:
        report = min(best_subset(total), dim)
        made = Subset(CPA(dim, _share(total, report), radius, clip=clip), report)
    elif clip is None:
        raise InvalidInput("an (epsilon, delta) budget needs an l2 clip: pass clip=...")
    else:
        made = CPA(dim, _clipped_per_bit(dim, total, delta, clip, radius), radius, clip=clip)
    return Rotated(made) if rotate else made


def rotated_radius(dim: int, clip: float) -> float:
    """A bound that all entries of a rotated update satisfy, except with probability below 1e-6.

    An entry is a sum of random signs with variance <= clip² / B, B the largest power of two up to
    dim (at most 8192), so P[any beyond t clip / sqrt(B)] <= 2 dim e^(-t²/2). Never above clip.
    """
    rows = min(MAX_BLOCK, 1 << (check_int("dim", dim, 1).bit_length() - 1))
    reach = math.sqrt(2 * math.log(2 * dim / CLIP_PROBABILITY) / rows)
    return check_scale("clip", clip) * min(1.0, reach)


def _share(total: float, bits: int) -> float:
    """total / bits, rounded so that the accountant's exact sum over `bits` bits is within total."""
    share = total / bits
    while decimal_fraction(share) * bits > decimal_fraction(total):
        share = math.nextafter(share, 0.0)
    return share


def _clipped_per_bit(dim: int, total: float, delta: float, clip: float, radius: float) -> float:
    """The largest epsilon per bit for which zCDP or exact composition proves at most `total`.

    Each rule increases with the epsilon per bit, so the largest value that the smaller of the two
    bounds allows is the larger of the values that each allows. Exact composition of all bits is
    never above the pure sum.
    """

    def cost(per_bit: float) -> float:
        return epsilon_of_zcdp(zcdp_of_two_points(per_bit, clip, radius), delta)

    by_norm = _largest(cost, total)
    return min(MAX_EPSILON_PER_BIT, max(by_norm, epsilon_per_bit_for(total, dim, delta)))


def _largest(cost: Callable[[float], float], total: float) -> float:
    """The largest argument up to MAX_EPSILON_PER_BIT that costs at most `total`, by bisection."""
    if cost(MAX_EPSILON_PER_BIT) <= total:
        return MAX_EPSILON_PER_BIT
    low, high = 0.0, MAX_EPSILON_PER_BIT
    while high - low > 1e-14 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if cost(middle) <= total else (low, middle)
    return low
