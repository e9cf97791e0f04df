"""How far a share f of colluding users can move the estimate, with and without the filter.

Without filter, two points, K users: every bit pulls one way, so each entry moves by at most
f · X / (2p - 1) and the mean by

    shift <= f · sigma · sqrt(dim),     sigma = radius / (2p - 1)          (attained by `directed`)

With filter, along a direction that the filter looks at, an accepted ballot scores at most
reach + z, so that the accepted colluders (a share f / (1 - f) of the honest at most) move it by

    shift <= f · (clip + z · sigma),    z the slack of `Rule`            (ballots it accepts)

The sum of the colluders' ballots itself points somewhere; the filter looks there if it stands
out of the noise, i.e. if its length in the sketch passes the edge. Below the edge the coalition
can hide a push of at most

    hidden <= sqrt(f / (1 - f) · theta) · sigma · sqrt(dim / sketch),
    theta = spike that reaches the edge (Baik, Ben Arous, Peche): (1 + theta)(1 + g / theta) = edge

with g = sketch / K. So the bound with filter is the larger of the two. No rule can do better than
sqrt(f · h) · clip where honest users themselves differ by a variance h · clip² along a direction:
a coalition may look like a part of them.
"""

import math
from dataclasses import dataclass

from hushbit.checks import positive, real, whole
from hushbit.cpa import CPA
from hushbit.errors import InvalidInput
from hushbit.mechanism import Mechanism
from hushbit.robust.filter import FEWEST_USERS, Rule, noise_edge
from hushbit.robust.pulls import largest_norm, noise_size
from hushbit.rotation import Rotated
from hushbit.subset import Subset

SHARES = (0.1, 0.2, 0.3, 0.4)


@dataclass(frozen=True)
class Shift:
    """l2 bounds on what colluders add to the mean, in the update's units.

    open       without filter, attained
    accepted   with filter, along the directions that it looks at
    hidden     with filter, below the edge of the noise
    """

    attackers: float
    open: float
    accepted: float
    hidden: float

    @property
    def filtered(self) -> float:
        """The bound with filter: the larger way, and never more than without."""
        return min(self.open, max(self.accepted, self.hidden))

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
    sketch = min(rule.sketch, dim)
    spike = _spike(noise_edge(users, sketch), sketch / users)
    return Shift(
        attackers=share,
        open=share * sigma * math.sqrt(dim),
        accepted=share * (longest + rule.slack(users) * sigma),
        hidden=math.sqrt(share / (1 - share) * spike * dim / sketch) * sigma,
    )


def _spike(edge: float, ratio: float) -> float:
    """The larger root of (1 + theta)(1 + ratio / theta) = edge."""
    middle = edge - 1 - ratio
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
