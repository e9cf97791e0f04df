"""Default clip and server rate of a run under a privacy budget, from public quantities only.

The same rule holds for every mechanism. It uses the norm of simulated updates, the noise that the
mechanism states, and the numbers of rounds and samples, but no data of a user.
"""

import math

from hushbit.baselines.gaussian import Gaussian
from hushbit.mechanism import Mechanism
from hushbit.tuning.auto import AutoCPA

CLIP_SHARE = 0.2
DISTANCE = 8.0
STABLE_STEP = 4.0


def private_clip(simulated_norm: float) -> float:
    """The l2 clip: a fifth of the median norm of simulated updates.

    Noise is proportional to the clip. The first real updates on MNIST have about half of the
    simulated norm and later ones a fifth, so most updates are scaled to the clip.
    """
    return CLIP_SHARE * simulated_norm


def noise_norm(mechanism: Mechanism, users: int) -> float:
    """The root mean square norm of the noise in the estimated mean of so many users."""
    if isinstance(mechanism, AutoCPA):
        mechanism = mechanism.inner  # the mechanism of the first round
    if isinstance(mechanism, Gaussian):
        return math.sqrt(mechanism.dim) * mechanism.deviation / users
    return math.sqrt(mechanism.dim * mechanism.noise_per_user(0.0) / users)


def private_server_rate(clip: float, noise: float, rounds: int, samples: int) -> float:
    """The smaller of two server rates, from `noise_norm` and the number of samples of a user.

    DISTANCE / sqrt(rounds (clip² + noise²)): for convex losses, gradient steps with rate r over T
    rounds end within D² / (2 r T) + r G² / 2 of the optimum, where D is the distance of the first
    weights from it and G² bounds the mean square norm of an estimate. The best rate is
    D / (G sqrt(T)). The mean of clipped updates has at most norm `clip`, and the noise is
    independent of it, so G² = clip² + noise².

    STABLE_STEP / (clip sqrt(samples)): little noise allows steps so long that training oscillates.
    The sampling error of a user's gradient falls with sqrt(samples), so the mean of updates that
    are scaled to the clip grows with sqrt(samples), and the rate is reduced accordingly.

    The two constants were chosen on development seeds (`docs/private-training.md`).
    """
    stable = STABLE_STEP / (clip * math.sqrt(samples))
    return min(stable, DISTANCE / math.sqrt(rounds * (clip**2 + noise**2)))
