"""How far a share f of colluding users can move the estimate, with and without the filter.

Without filter, two points, K users: every bit pulls one way, so each entry moves by at most
f · X / (2p - 1) and the mean by

    open <= f · sigma · sqrt(dim),      sigma = radius / (2p - 1)          (attained by `directed`)

With filter, along a direction that it looks at, an accepted ballot scores at most reach + z, and
the mean gives way to the median, which stays between two quantiles of the honest scores:

    accepted <= f · (clip + z · sigma),   z the slack of `Rule`            (what any mean allows)
    median   <= Phi^-1(1/2 / (1 - f)) · spread · sigma                     (Gaussian honest scores)

with spread² = 1 + h, h the variance of honest users along the direction in noises (h = reach² / 4
at the very worst: half of them at either end of the clip). The sum of the colluders' ballots
itself points somewhere; the filter looks there if it stands out of the noise. Below the edge the
coalition can hide a push of at most

    hidden <= sqrt(f / (1 - f) · theta) · sigma,
    theta = spike that reaches the edge (Baik, Ben Arous, Peche): (1 + theta)(1 + g / theta) = edge

with g = dim / K. The bound with filter is the larger of hidden and the smaller of the other two.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

from hushbit.checks import positive, real, whole
from hushbit.cpa import CPA
from hushbit.errors import InvalidInput
from hushbit.mechanism import Mechanism
from hushbit.robust.filter import FEWEST_USERS
from hushbit.robust.pulls import largest_norm, noise_size
from hushbit.robust.rules import Rule
from hushbit.robust.spectrum import noise_edge
from hushbit.rotation import Rotated
from hushbit.subset import Subset

SHARES = (0.1, 0.2, 0.3, 0.4)


@dataclass(frozen=True)
class Shift:
    """l2 bounds on what colluders add to the mean, in the update's units.

    open       without filter, attained
    accepted   with filter, the mean along the directions that it looks at
    median     with filter, the median along them, for honest users that differ the most
    hidden     with filter, below the edge of the noise
    """

    attackers: float
    open: float
    accepted: float
    median: float
    hidden: float

    @property
    def filtered(self) -> float:
        """The bound with filter: the larger way, and never more than without."""
        return min(self.open, max(min(self.accepted, self.median), self.hidden))

    def row(self) -> dict[str, float]:
        """The figures by name."""
        return {**vars(self), "filtered": self.filtered}


def worst_shift(
    attackers: float, dim: int, users: int, sigma: float, longest: float, rule: Rule | None = None
) -> Shift:
    """The bounds for a share of attackers; `sigma` and `longest` as told by the mechanism.

    sigma    noise of an entry of one decoded ballot, radius / (2p - 1) for two points
    longest  the clip, or the largest norm of an honest update
    """
    share = real("attackers", attackers)
    if not 0 <= share < 0.5:
        raise InvalidInput(f"attackers must be a share from 0 to below 0.5; got {attackers!r}")
    rule = Rule() if rule is None else rule
    users, dim = whole("users", users, FEWEST_USERS), whole("dim", dim, 1)
    sigma, longest = positive("sigma", sigma), positive("longest", longest)
    spread = math.sqrt(1 + (longest / sigma / 2) ** 2)
    return Shift(
        attackers=share,
        open=share * sigma * math.sqrt(dim),
        accepted=share * (longest + rule.slack(users) * sigma),
        median=NormalDist().inv_cdf(0.5 / (1 - share)) * spread * sigma if share else 0.0,
        hidden=math.sqrt(share / (1 - share) * hidden_spike(users, dim)) * sigma,
    )


def hidden_spike(users: int, dim: int) -> float:
    """The variance, in noises, of the largest spike that stays below the edge.

    The larger root of (1 + theta)(1 + g / theta) = edge, g = dim / users.
    """
    ratio = dim / users
    middle = noise_edge(users, dim) - 1 - ratio
    return (middle + math.sqrt(max(middle**2 - 4 * ratio, 0.0))) / 2


def shifts_of(mechanism: Mechanism, users: int, clip: float | None = None) -> list[Shift]:
    """The bounds of a mechanism of bits for a tenth to four tenths of attackers, else nothing.

    `clip` is the agreed l2 bound where the mechanism itself does not hold one.
    """
    inner = mechanism.inner if isinstance(mechanism, Rotated) else mechanism
    if not isinstance(inner, CPA | Subset) or users < FEWEST_USERS:
        return []
    sigma, longest = noise_size(inner), largest_norm(inner)
    if clip is not None:
        longest = min(longest, positive("clip", clip))
    return [worst_shift(share, inner.dim, users, sigma, longest) for share in SHARES]
