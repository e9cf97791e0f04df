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
-s · sqrt(w) in units of its noise, w = (1 + memory) / (1 - memory). It stays with a chance of at
most 0.13 % unless

    s <= S = (max(STEPS_BACK, z_tail · sqrt(1 + w h²)) + STEPS_BACK) / sqrt(w)

per round on average, for honest sums that are Gaussian around a median of zero or more; but for a
share n of all users (`Rule.set_back`), which training may leave behind: nothing follows from them.

    lasting = min(f, n) · (clip + z · sigma) + max(f - n, 0) · S · sigma

This holds for halves as well: where some of a coalition stand so deep that halfway is below the
others, at least half of those found are out, and the rest push half as deep: f/4 < n.
"""

import math
from dataclasses import dataclass

from hushbit.checks import positive, real, whole
from hushbit.cpa import CPA
from hushbit.errors import InvalidInput
from hushbit.mechanism import Mechanism
from hushbit.robust.filter import FEWEST_USERS
from hushbit.robust.layers import bare
from hushbit.robust.pulls import edge_of, largest_norm, noise_size
from hushbit.robust.rules import STEPS_BACK, Rule
from hushbit.subset import Subset

SHARES = (0.1, 0.2, 0.3, 0.4)


@dataclass(frozen=True)
class Shift:
    """l2 bounds on what colluders add to the mean, in the update's units.

    open      without filter, attained
    accepted  with filter, in one round, along the estimate and what users share
    lasting   with filter, in every round, against the way of the model or the others' mean
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
    depth = rule.depth * math.sqrt(1 + window * spread**2)
    pushed = (max(STEPS_BACK, depth) + STEPS_BACK) / math.sqrt(window)
    once, few = longest + rule.slack(users) * sigma, min(share, rule.set_back(edge))
    return Shift(
        attackers=share,
        open=share * sigma * math.sqrt(dim),
        accepted=share * once,
        lasting=few * once + (share - few) * min(pushed * sigma, once),
    )


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
