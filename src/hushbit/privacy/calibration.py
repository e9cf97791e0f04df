"""The mechanism that spends exactly a given budget on a whole message."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from hushbit.checks import positive, whole
from hushbit.errors import InvalidInput
from hushbit.privacy.arguments import failure_probability
from hushbit.privacy.bits import best_subset

if TYPE_CHECKING:
    from hushbit.mechanism import Mechanism

STEPS = 200


def calibrate(
    dim: int, epsilon: float, delta: float, *, clip: float | None = None,
    radius: float | None = None, rotate: bool = False,
) -> "Mechanism":  # fmt: skip
    """A mechanism whose whole message costs (epsilon, delta), for delta = 0 purely.

    delta = 0   every user reports s* blocks, chosen by its key, epsilon / s* each; `radius`
                bounds the entries (default: `clip`).
    delta > 0   every update is scaled down to l2 norm `clip` and every entry votes for ±radius
                (default: `clip`, so that nothing is ever cut off). A smaller radius means less
                noise; rotate=True makes entries alike so that few are cut.

    >>> calibrate(7850, 4.0, 0.0, radius=0.05).guarantee.epsilon_per_message()
    4.0
    """
    from hushbit.cpa import CPA
    from hushbit.rotation import Rotated
    from hushbit.subset import Subset

    dim = whole("dim", dim, 1)
    total = positive("epsilon", epsilon)
    delta = failure_probability(delta)
    if radius is None and clip is None:
        raise InvalidInput("calibrate needs a radius for the entries or an l2 clip for the update")
    edge = positive("radius", radius) if radius is not None else positive("clip", clip)
    made: Mechanism
    if delta == 0:
        report = min(best_subset(total), dim)
        made = Subset(CPA(dim, total / report, edge, clip=clip), report)
    else:
        if clip is None:
            raise InvalidInput("an (epsilon, delta) budget needs an l2 clip: pass clip=...")
        made = CPA(dim, _largest(lambda bit: CPA(dim, bit, edge, clip=clip)
                                 .guarantee.epsilon_per_message(delta), total),
                   edge, clip=clip)  # fmt: skip
    return Rotated(made) if rotate else made


def _largest(cost: Callable[[float], float], total: float) -> float:
    """The largest epsilon per bit whose message costs at most `total`, by bisection."""
    low, high = 1e-8, 1.0
    if cost(low) > total:
        raise InvalidInput(
            f"a budget of {total} cannot be met: lower dim, or raise epsilon or radius"
        )
    while cost(high) <= total and high < 64:
        high *= 2
    for _ in range(STEPS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if cost(middle) <= total else (low, middle)
        if high / low < 1 + 1e-12:
            break
    return low
