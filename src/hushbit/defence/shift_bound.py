"""Bounds on the shift of the mean by a share f of colluding users, without and with `Defence`.

    without defence   f · sigma · sqrt(dim)                 proved; the attack `directed` attains it
    one round         f · (largest_norm + z · sigma)        along the mean of the others, the shared
                                                            direction and the direction of the model
    every round       f · sigma · (1/2 + (h + max_score + z) / T)
                                                            mean over T rounds, against the model

z is `Defence.slack` and h = ln(T (T + 1) / rate) the evidence at which a user is held. Both bounds
with defence are proved for each single user: they need no assumption about honest users, and hold
for any f. One round: a ballot beyond the range is removed. Every round: a user whose scores against
the model sum to more than T / 2 + h is held, and in the round in which that happens its score is
within the range. Scores are pushes plus noise of mean zero; the bound is on the expected push.

Across the three directions nothing is bounded but by `without defence`. A group of more than
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
    evidence = -math.log(defence.rate_in(rounds))
    lasting = 0.5 + (evidence + once) / rounds
    unbounded = share * scale.noise * math.sqrt(mechanism.dim)
    return DefendedShift(
        attackers=share,
        without_defence=unbounded,
        one_round=min(unbounded, share * scale.noise * once),
        every_round=min(unbounded, share * scale.noise * min(once, lasting)),
    )
