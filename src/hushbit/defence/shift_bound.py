"""Bounds on the shift of the mean by a share f of colluding users, without and with `Defence`.

    without defence   f · sigma · sqrt(dim)                 proved; the attack `directed` attains it
    one round         f · (largest_norm + z · sigma)        along the mean of the others and the
                                                            direction of the model
    every round       n · (largest_norm + z · sigma) + (f - n) · sigma · (1/2 + L / T)
                                                            mean over T rounds after the
                                                            fifth, against the model

z is `Defence.slack` (times sqrt(3) on the shared direction), L is `Defence.least_evidence`, and
n <= f the share of users who may have more evidence than L. Shift means what the
attackers' ballots contribute to the mean of the accepted ballots, noise included, per ballot of the
round. Both bounds with defence hold for any data of the others, as long as all users take part in
every round and the tests mark at most half of them: a test that marks more is not applied.

One round: a ballot with a score beyond the range is removed, and the last scores are tested too.

Every round: let x be the user's model score in a round, with the sign that makes the median of the
present users non-negative, and E and E' the evidence before and after.

- accepted: E' >= E - x - 1/2.
- not accepted: E' >= E - 1/2, because positive scores lower the evidence only if the ballot counts.

The sum over the rounds up to the user's last accepted ballot gives, for the scores of accepted
ballots, sum of -x <= T / 2 + E'. If more than n users have evidence above L, all of them are
excluded, and they count as users with evidence for as long as they have it. So at most n users ever
have an accepted ballot after which E' is above L; only the range bounds these.

The direction is that of the model where the majority moves with the model, and its reverse where
the majority moves against it; pushes along a model that attackers move are not bounded as such.
"""

import math
from dataclasses import dataclass

from hushbit.checks import check_float, check_int, check_positive
from hushbit.defence.defence import Defence
from hushbit.errors import InvalidInput
from hushbit.mechanism import Mechanism

ATTACKER_SHARES = (0.1, 0.2, 0.3, 0.4)


@dataclass(frozen=True)
class DefendedShift:
    """l2 bounds on the shift of the mean by a share `attackers`, in the units of the update."""

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
    clip: float | None = None,
) -> DefendedShift | None:
    """The bounds; None where the mechanism states no scale of its ballots.

    `clip` is an agreed l2 bound on updates that the mechanism itself does not enforce.
    """
    share, defence = check_float("attackers", attackers), defence or Defence()
    if not 0 <= share < 0.5:
        raise InvalidInput(f"attackers must be a share from 0 to below 0.5; got {attackers!r}")
    users, rounds = check_int("users", users, 1), check_int("rounds", rounds, 1)
    scale = None if mechanism.votes is None else mechanism.votes.scale
    if scale is None:
        return None
    norm = scale.largest_norm
    if clip is not None:
        norm = min(norm, check_positive("clip", clip))
    once = norm / scale.noise + defence.slack(users, rounds)
    lasting = 0.5 + defence.least_evidence(users) / rounds
    free = min(share, defence.most_with_evidence(users, rounds) / users)
    open_shift = share * scale.noise * math.sqrt(mechanism.dim)
    one_round = min(open_shift, share * scale.noise * once)
    every_round = scale.noise * (free * once + (share - free) * lasting)
    return DefendedShift(share, open_shift, one_round, min(one_round, every_round))
