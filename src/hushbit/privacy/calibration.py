"""The mechanism that spends exactly a given budget on a whole message."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from hushbit.checks import length, positive, whole
from hushbit.errors import InvalidInput
from hushbit.privacy.arguments import failure_probability
from hushbit.privacy.bits import best_subset, epsilon_per_bit_for
from hushbit.privacy.zcdp import epsilon_of_zcdp, zcdp_of_two_points_tight

if TYPE_CHECKING:
    from hushbit.mechanism import Mechanism

MOST_PER_BIT = 64.0
"""Coins of 32 bits cannot tell a larger epsilon per bit from this one."""

CUT_CHANCE = 1e-6


def calibrate(
    dim: int, epsilon: float, delta: float, *, clip: float | None = None,
    radius: float | None = None, rotate: bool = False,
) -> "Mechanism":  # fmt: skip
    """A mechanism whose whole message costs (epsilon, delta), for delta = 0 purely.

    delta = 0   every user reports s* blocks, chosen by its key, epsilon / s* each.
    delta > 0   every update is scaled down to l2 norm `clip` (required) and every entry votes for
                ±radius; rho = epsilon_per_bit² / 2 · (clip / radius)².

    Entries beyond `radius` are cut off, so the default is `clip`, where nothing ever is. A smaller
    radius means less noise. With rotate=True entries become alike, and the default is
    `rotated_radius(dim, clip)`, which cuts anything with probability below one in a million.

    >>> calibrate(7850, 4.0, 0.0, radius=0.05).guarantee.epsilon_per_message()
    4.0
    """
    from hushbit.cpa import CPA
    from hushbit.rotation import Rotated
    from hushbit.subset import Subset

    dim = whole("dim", dim, 1)
    total = positive("epsilon", epsilon)
    delta = failure_probability(delta)
    if not isinstance(rotate, bool):
        raise InvalidInput(f"rotate must be True or False; got {rotate!r}")
    norm = None if clip is None else length("clip", clip)
    edge = _edge(dim, norm, radius, rotate)
    made: Mechanism
    if delta == 0:
        report = min(best_subset(total), dim)
        made = Subset(CPA(dim, _share(total, report), edge, clip=norm), report)
    elif norm is None:
        raise InvalidInput("an (epsilon, delta) budget needs an l2 clip: pass clip=...")
    else:
        made = CPA(dim, _clipped_per_bit(dim, total, delta, norm, edge), edge, clip=norm)
    return Rotated(made) if rotate else made


def rotated_radius(dim: int, clip: float) -> float:
    """A bound on every entry of a rotated update, missed with probability below 1e-6.

    An entry is a sum of random signs with variance <= clip² / B, B the largest power of two in
    dim (at most 8192), so P[any beyond t clip / sqrt(B)] <= 2 dim e^(-t²/2). Never above clip.
    """
    from hushbit.rotation import LARGEST_BLOCK

    rows = min(LARGEST_BLOCK, 1 << (whole("dim", dim, 1).bit_length() - 1))
    reach = math.sqrt(2 * math.log(2 * dim / CUT_CHANCE) / rows)
    return length("clip", clip) * min(1.0, reach)


def _edge(dim: int, clip: float | None, radius: float | None, rotate: bool) -> float:
    if radius is not None:
        return length("radius", radius)
    if clip is None:
        raise InvalidInput("calibrate needs a radius for the entries or an l2 clip for the update")
    return rotated_radius(dim, clip) if rotate else clip


def _share(total: float, report: int) -> float:
    """total / report, never a hair above it when summed up again."""
    share = total / report
    while share * report > total:
        share = math.nextafter(share, 0.0)
    return share


def _clipped_per_bit(dim: int, total: float, delta: float, clip: float, radius: float) -> float:
    """The largest epsilon per bit that some rule proves to cost at most `total`.

    Each rule grows with the epsilon per bit, so the largest under their minimum is the largest
    that any one of them allows. Exact composition of all bits covers the pure sum.
    """

    def cost(per_bit: float) -> float:
        return epsilon_of_zcdp(zcdp_of_two_points_tight(per_bit, clip, radius), delta)

    by_norm = _largest(cost, total)
    return min(MOST_PER_BIT, max(by_norm, epsilon_per_bit_for(total, dim, delta)))


def _largest(cost: Callable[[float], float], total: float) -> float:
    """The largest argument up to MOST_PER_BIT that costs at most `total`, by bisection."""
    if cost(MOST_PER_BIT) <= total:
        return MOST_PER_BIT
    low, high = 0.0, MOST_PER_BIT
    while high - low > 1e-14 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if cost(middle) <= total else (low, middle)
    return low
