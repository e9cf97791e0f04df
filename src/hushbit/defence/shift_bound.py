"""Bounds on the shift of the mean by a share f of colluding users, without and with `Defence`.

    without defence   f · sigma · sqrt(dim)                 proved; the attack `directed` attains it
    one round         f · (largest_norm + z · sigma)        along the direction of the model
    every round       n · (largest_norm + z · sigma) + (f - n) · sigma · (1/2 + L / T)
                                                    mean of T rounds from the sixth, against it

z is `Defence.slack`, L is `Defence.least_evidence`, and n <= f the share of users who may have more
evidence than L. Shift means the sum of the attackers' accepted ballots, noise included, divided by
all ballots of the round. If a share r of the ballots is removed, the mean shifts by up to
1 / (1 - r) times as much. docs/robustness.md states the conditions and proves the bounds.
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
