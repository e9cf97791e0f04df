"""Bounds on the shift of the mean by a share f of colluding users, without and with `Defence`.

    without defence   f · sigma · sqrt(dim)                 proved; the attack `directed` attains it
    one round         f · (largest_norm + z · sigma)        along the direction of the model
    every round       n · (largest_norm + z · sigma) + (f - n) · sigma · (1/2 + L / T)
                                                            mean over T rounds after the
                                                            fifth, against the model

z is `Defence.slack`, L is `Defence.least_evidence`, and n <= f the share of users who may have more
evidence than L. Shift means the sum of the attackers' accepted ballots, noise included, divided by
all ballots of the round. If a share r of the ballots is removed, the mean shifts by up to
1 / (1 - r) times as much. The direction of the model is rounded to -1, 0 and 1 for two points
(`hushbit.kernels.scores`), and the bounds with defence are those along the rounded direction, whose
cosine to the direction of the model is about 0.9; shifts orthogonal to it are not bounded. They
hold for ballots of ±1 and any data of the others, as long as all users are enrolled and take part
in every round, the defence removes at most half of them, and the sum excludes nobody anew.

One round: a ballot with a score beyond the range is removed; scores on the model do not depend on
who is removed.

Every round: let x be the user's model score in a round, with the sign that makes the median of the
present users non-negative, and E and E' the evidence before and after.

- accepted: E' >= E - x - 1/2.
- not accepted: E' >= E - 1/2, because positive scores lower the evidence only if the ballot counts.

Call a user bad whose sum S of -x over accepted ballots exceeds T / 2 + L. After the user's last
accepted ballot, in round t, S <= t / 2 + E', so the evidence is above L + (T - t) / 2, and later
falls by at most 1/2 per round: it stays above L up to round T. In the latest of these rounds t all
bad users have evidence above L, and the ballot of one is accepted. Were they more than the share n,
all would be excluded; so at most n are bad, and only the range bounds them.

The direction is that of the model where the majority moves with the model, and its reverse where
the majority moves against it; pushes along a model that attackers move are not bounded as such.
"""

import math
from dataclasses import dataclass

from hushbit.checks import check_float, check_int
from hushbit.defence.defence import SETTLING, Defence
from hushbit.errors import InvalidInput
from hushbit.mechanism import Mechanism

ATTACKER_SHARES = (0.1, 0.2, 0.3, 0.4)


@dataclass(frozen=True)
class DefendedShift:
    """Bounds on the shift of the mean by a share `attackers`, in the units of the update."""

    attackers: float
    without_defence: float
    one_round: float
    every_round: float


def defended_shift(
    mechanism: Mechanism,
    users: int,
    rounds: int,
    attackers: float,
    defence: Defence | None = None,
) -> DefendedShift | None:
    """The bounds over `rounds` rounds; None where the mechanism states no scale of its ballots."""
    share, defence = check_float("attackers", attackers), defence or Defence()
    if not 0 <= share < 0.5:
        raise InvalidInput(f"attackers must be a share from 0 to below 0.5; got {attackers!r}")
    users, rounds = check_int("users", users, 1), check_int("rounds", rounds, 1)
    scale = None if mechanism.votes is None else mechanism.votes.scale
    if scale is None:
        return None
    once = scale.max_score + defence.slack(users, rounds)
    lasting = 0.5 + defence.least_evidence(users) / max(rounds - SETTLING, 1)
    free = min(share, defence.most_with_evidence(users, rounds) / users)
    open_shift = share * scale.noise * math.sqrt(mechanism.dim)
    one_round = min(open_shift, share * scale.noise * once)
    every_round = scale.noise * (free * once + (share - free) * lasting)
    return DefendedShift(share, open_shift, one_round, min(one_round, every_round))
