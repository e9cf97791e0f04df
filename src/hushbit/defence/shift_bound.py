"""Bounds on the shift of the mean by a share f of colluding users, without and with `Defence`.

    without defence   f · sigma · sqrt(dim)                 proved; the attack `directed` attains it
    one round         f · (largest_norm + z · sigma)        along the mean of the others and the
                                                            direction of the model
    every round       f · sigma · (1/2 + h + ln(T (T + 1) / rate) / T)
                                                            mean over T rounds, against the model

z is `Defence.slack`; on the shared direction it is sqrt(3) times as large. h is the mean over the
rounds of `honest_spread`, which is at most 1. Shift means what the attackers' ballots contribute to
the mean of the accepted ballots, noise included, per ballot of the round. Both bounds with defence
hold for each single user and any data of the others, as long as the tests mark at most half of the
users: a test that marks more is not applied.

One round: a ballot with a score beyond the range is removed, and the last scores are tested too.

Every round: let x be the user's model score in a round, with the sign that makes the median of the
present users non-negative, c = 1/2 + `honest_spread`, and E and E' the evidence before and after.

- accepted: E' >= E - x - c, and E' <= ln(t (t + 1) / rate), because the user would be held.
- not accepted: E' >= E - c, because positive scores lower the evidence only if the ballot counts.

The sum over the rounds up to the last accepted one gives, for the scores of accepted ballots,

    sum of -x  <=  sum of c + ln(T (T + 1) / rate).

A user who accepts removal, sends good scores until it returns and pushes again gains nothing. The
direction is that of the model where the majority moves with the model, and its reverse where the
majority moves against it; pushes along a model that attackers move are not bounded as such.

Across these directions nothing is bounded but by `without defence`. A group of more than
`natural_share` of the users, and of more than chance allows, is removed by asymmetry as well; no
bound is claimed for this.
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
    spread: float = 1.0,
) -> DefendedShift | None:
    """The bounds; None where the mechanism states no scale of its ballots.

    `clip` is an agreed l2 bound on updates that the mechanism itself does not enforce. `spread` is
    h: the mean of `honest_spread` over the rounds, or its maximum.
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
    evidence = -math.log(defence.rate_in(rounds))
    lasting = 0.5 + check_float("spread", spread) + evidence / rounds
    unbounded = share * scale.noise * math.sqrt(mechanism.dim)
    return DefendedShift(
        attackers=share,
        without_defence=unbounded,
        one_round=min(unbounded, share * scale.noise * once),
        every_round=min(unbounded, share * scale.noise * min(once, lasting)),
    )
