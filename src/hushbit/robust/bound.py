"""How far a share f of colluding users can move the estimate, with and without the filter.

Without filter, two points, K users: every bit pulls one way, so each entry moves by at most
f · X / (2p - 1) and the mean by

    open <= f · sigma · sqrt(dim),      sigma = radius / (2p - 1)          (attained by `directed`)

With filter, along the estimate itself and along what users share, an accepted ballot scores at
most reach + z, z the slack of `Rule`:

    accepted <= f · (clip + z · sigma)                                     (what any mean allows)

Over rounds, h being the spread of honest users along the direction in noises (h = reach / 2 at the
very worst: half of them at either end of the clip), a user who pushes against
the way that the model has come, or against the others' mean, by s noises a round has a sum of
-s · sqrt(w) in units of its noise, w = (1 + memory) / (1 - memory). Doing so in every round, it
stays with a chance of at most 0.13 % unless

    s <= S = (max(STEPS_BACK, z_f · sqrt(1 + w h²)) + STEPS_BACK) / sqrt(w)

for honest sums that are Gaussian and a median of all users, coalition included, of zero or more.
z_f is how many honest spreads below the honest median the limit lies when a share f of the users
is below it: median and upper tenth are then honest quantiles, 1 - 1/2 / (1-f) and 1 - 0.1 / (1-f).
Nothing is concluded from a share n of all users (`Rule.set_back`), which training may leave behind:
they are bounded by the round alone. The rest either push by S, or let themselves be removed and
leave fewer ballots to divide by:

    lasting = max(n (clip + z sigma) + (f - n) S sigma,  n (clip + z sigma) / (1 - f + n)),   f > n

Part of a coalition that stands so deep that halfway is below the rest does no better: at least half
of those found are out, and the rest push half as deep, f/4 < n. Not covered: who lets itself be
found, waits until its sums are restored, comes round and pushes again; and more than about a third
of users, spread so evenly over the whole reach that no valley divides them, who turn the median.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

from hushbit.checks import positive, real, whole
from hushbit.cpa import CPA
from hushbit.errors import InvalidInput
from hushbit.mechanism import Mechanism
from hushbit.robust.filter import FEWEST_USERS
from hushbit.robust.layers import bare
from hushbit.robust.pulls import edge_of, largest_norm, noise_size
from hushbit.robust.rules import STEPS_BACK, UPPER, UPPER_SPREADS, Rule
from hushbit.subset import Subset

SHARES = (0.1, 0.2, 0.3, 0.4)


@dataclass(frozen=True)
class Shift:
    """l2 bounds on what colluders add to the mean, in the update's units.

    open      without filter, attained
    accepted  with filter, in one round, along the estimate and what users share
    lasting   with filter, the same in every round, against the way of the model or the others' mean
    """

    attackers: float
    open: float
    accepted: float
    lasting: float

    @property
    def filtered(self) -> float:
        """The bound of one round with filter, never more than without."""
        return min(self.open, self.accepted)

    def row(self) -> dict[str, float]:
        """The figures by name."""
        return {**vars(self), "filtered": self.filtered}


def worst_shift(
    attackers: float, dim: int, users: int, sigma: float, longest: float,
    natural: float | None = None, rule: Rule | None = None, edge: float = 0.0,
) -> Shift:  # fmt: skip
    """The bounds for a share of attackers; `sigma` and `longest` as told by the mechanism.

    sigma    noise of an entry of one decoded ballot, radius / (2p - 1) for two points
    longest  the clip, or the largest norm of an honest update
    natural  spread of honest users along a direction, in noises; by default the largest there is
    edge     the outermost point in noises, 2p - 1 for two points: what bits say at the most
    """
    share = real("attackers", attackers)
    if not 0 <= share < 0.5:
        raise InvalidInput(f"attackers must be a share from 0 to below 0.5; got {attackers!r}")
    rule = Rule() if rule is None else rule
    users, dim = whole("users", users, FEWEST_USERS), whole("dim", dim, 1)
    sigma, longest = positive("sigma", sigma), positive("longest", longest)
    spread = longest / sigma / 2 if natural is None else real("natural", natural)
    window = (1 + rule.memory) / (1 - rule.memory)
    depth = _depth(rule, share) * math.sqrt(1 + window * spread**2)
    pushed = (max(STEPS_BACK, depth) + STEPS_BACK) / math.sqrt(window)
    once, few = longest + rule.slack(users) * sigma, min(share, rule.set_back(edge))
    return Shift(
        attackers=share,
        open=share * sigma * math.sqrt(dim),
        accepted=share * once,
        lasting=max(
            few * once + (share - few) * min(pushed * sigma, once), few * once / (1 - share + few)
        ),
    )


def _depth(rule: Rule, share: float) -> float:
    """z_f: honest spreads from the honest median to the limit, a share being below it."""
    inverse = NormalDist().inv_cdf
    middle, upper = inverse(0.5 / (1 - share)), inverse(1 - (1 - UPPER) / (1 - share))
    return middle + rule.depth * (upper + middle) / UPPER_SPREADS


def shifts_of(mechanism: Mechanism, users: int, clip: float | None = None) -> list[Shift]:
    """The bounds of a mechanism of bits for a tenth to four tenths of attackers, else nothing.

    `clip` is the agreed l2 bound where the mechanism itself does not hold one.
    """
    inner = bare(mechanism)
    if not isinstance(inner, CPA | Subset) or users < FEWEST_USERS:
        return []
    sigma, longest = noise_size(inner), largest_norm(inner)
    if clip is not None:
        longest = min(longest, positive("clip", clip))
    edge = edge_of(inner)
    return [worst_shift(share, inner.dim, users, sigma, longest, edge=edge) for share in SHARES]
