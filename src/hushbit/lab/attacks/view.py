"""What colluding users know when they craft updates."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import Floats
from hushbit.mechanism import BallotScale, HonestMean, Mechanism

Rows = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class AttackerView:
    """What the coalition has: mean and spread of the honest updates, and the numbers of users.

    honest_mean      expectation of the mean of honest ballots, which the points clip
    drift_direction  direction of model drift since round 1
    """

    mean: Floats
    spread: Floats
    users: int
    attackers: int
    honest_mean: HonestMean | None = None
    drift_direction: Floats | None = None
    round: int = 0


def scale_of(mechanism: Mechanism) -> BallotScale | None:
    """The scale of the mechanism's ballots, where it has one."""
    return None if mechanism.votes is None else mechanism.votes.scale
