"""What the server believes about the typical norm of an update, from votes alone.

Every vote says, through randomized response, whether one user's norm is at most a public level.
Taking log2 norms as logistic about their median m with some spread s, a user says yes with chance

    P(yes | m, s) = 1/2 + beta (F((log2 level - m) / s) - 1/2),     F(x) = 1 / (1 + e^-x)

and Bayes' rule moves the weights on a grid of medians, averaged over the spreads that users may
have. Asking at the median of the belief is probabilistic bisection: each round halves the doubt
as far as the noise allows. The belief widens a little between rounds, because norms drift while a
model learns.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import length, positive, real, whole
from hushbit.errors import InvalidInput

Floats = NDArray[np.float64]

OCTAVES = np.arange(-640, 321) / 8.0
"""Candidate medians as log2 of a norm, eight to the octave."""

SPREADS = (0.03, 0.1, 0.3, 0.6, 1.2)
"""Scales of the logistic law of users' log2 norms: all alike, up to a factor of ten apart."""

MOST_VOTES = 3000
"""More votes than this count as so many: no law of norms is that exact."""

DRIFT = np.array([0.15, 0.7, 0.15])
"""How the belief widens from one round to the next: about 0.07 octaves."""

SURPRISE = 1e-3
"""Share of the belief that is spread over all norms each round, so that no vote is in vain."""


@dataclass(frozen=True, eq=False)
class NormBelief:
    """Weights (summing to one) of the candidate medians in OCTAVES. Immutable."""

    weights: Floats

    def __post_init__(self) -> None:
        weights = self.weights
        if (
            not isinstance(weights, np.ndarray)
            or weights.shape != OCTAVES.shape
            or weights.dtype != np.float64
            or not (np.isfinite(weights).all() and (weights >= 0).all())
            or abs(weights.sum() - 1) > 1e-9
        ):
            raise InvalidInput(f"a belief is {OCTAVES.size} float64 weights that sum to one")

    @classmethod
    def around(cls, norm: float, octaves: float) -> "NormBelief":
        """A belief about a guess, half of it within so many octaves (factors of two)."""
        away = (OCTAVES - math.log2(length("norm", norm))) / positive("octaves", octaves)
        # Cauchy's law: a guess that is far off must not take many rounds to leave.
        weights = 1 / (1 + away**2)
        return cls(weights / weights.sum())

    def quantile(self, share: float) -> float:
        """The norm below which the median lies with the given probability."""
        if not 0 < real("share", share) < 1:
            raise InvalidInput(f"share must lie between 0 and 1; got {share!r}")
        top = np.cumsum(self.weights)
        at = int(np.searchsorted(top, share))
        below = top[at] - self.weights[at]
        # Weights stand for intervals about their points, so that the level moves smoothly.
        inside = (share - below) / self.weights[at] - 0.5
        return float(2.0 ** (OCTAVES[at] + inside / 8.0))

    def learned(self, level: float, yes: int, users: int, beta: float) -> "NormBelief":
        """The belief after `yes` of `users` answered that their norm is at most `level`."""
        users = whole("users", users, 1)
        yes = whole("yes", yes, 0, users)
        away = math.log2(length("level", level)) - OCTAVES
        below = 1 / (1 + np.exp(-np.clip(away / np.array(SPREADS)[:, None], -50, 50)))
        chance = np.clip(0.5 + beta * (below - 0.5), 1e-6, 1 - 1e-6)
        fit = yes * np.log(chance) + (users - yes) * np.log1p(-chance)
        fit *= min(1.0, MOST_VOTES / users)
        weights = self.weights * np.exp(fit - fit[:, self.weights > 0].max()).mean(axis=0)
        weights = np.convolve(weights / weights.sum(), DRIFT, mode="same")
        weights = (1 - SURPRISE) * weights / weights.sum() + SURPRISE / OCTAVES.size
        return NormBelief(weights / weights.sum())
