"""PrivUnitG (Asi, Feldman and Talwar, ICML 2022): the best pure-epsilon mean of unit vectors.

Send U / m with U normal in R^dim, conditioned on <U, v> >= gamma with probability p and on
<U, v> < gamma otherwise. With q = P[N(0, 1) >= gamma] and m = E<U, v>

    e^epsilon = p (1 - q) / (q (1 - p))        the ratio of densities, attained
    m         = density(gamma) (p / q - (1 - p) / (1 - q))
    E|U/m - v|² = (dim - 1 + E<U, v>²) / m² - 1

p is the one of least error. A vector shorter than 1 gets one more entry that makes it a unit
vector, which the server drops: unbiased, and the noise is the same.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np

from hushbit.arrays import Floats
from hushbit.checks import positive, whole
from hushbit.errors import InvalidInput
from hushbit.field.carried import FLOAT_BITS, Carried, checked_ball

NORMAL = NormalDist()
LARGEST_EPSILON = 600.0
SEARCHES = 120
GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Parameters:
    """The two caps of the law: how likely the near one is, where it starts, and the mean."""

    epsilon: float
    p: float
    q: float
    gamma: float
    mean: float
    square: float

    def error(self, dim: int) -> float:
        """E|estimate - v|² of one user with a unit vector of length `dim`."""
        return (dim - 1 + self.square) / self.mean**2 - 1


def at_odds(epsilon: float, log_odds: float) -> Parameters:
    """The parameters for p / (1 - p) = e^log_odds; epsilon then fixes the rest."""
    p = 1 / (1 + math.exp(-log_odds))
    rest = 1 / (1 + math.exp(log_odds))
    q = 1 / (1 + math.exp(epsilon - log_odds))
    gamma = -NORMAL.inv_cdf(q)
    height = NORMAL.pdf(gamma)
    far = 1 / (1 + math.exp(log_odds - epsilon))
    mean = height * (p / q - rest / far)
    square = 1 + gamma * mean
    return Parameters(epsilon, p, q, gamma, mean, square)


@lru_cache(maxsize=64)
def best_parameters(dim: int, epsilon: float) -> Parameters:
    """The parameters of least error for unit vectors of length `dim`."""
    dim = whole("dim", dim, 1)
    epsilon = positive("epsilon", epsilon)
    if epsilon > LARGEST_EPSILON:
        raise InvalidInput(f"epsilon must be at most {LARGEST_EPSILON:g}; got {epsilon}")
    low, high = 0.0, epsilon
    for _ in range(SEARCHES):
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        if at_odds(epsilon, left).error(dim) < at_odds(epsilon, right).error(dim):
            high = right
        else:
            low = left
    return at_odds(epsilon, (low + high) / 2)


def optimal_mse(dim: int, epsilon: float) -> float:
    """Least E|estimate - v|² of one user: unit vectors, pure epsilon for the whole vector.

    The mean of `users` such vectors has this divided by users.

    >>> round(optimal_mse(7850, 4.0) * 4.0 / 7850, 3)
    1.741
    """
    return best_parameters(dim, epsilon).error(dim)


def encode(vector: Floats, parameters: Parameters, rng: np.random.Generator) -> Floats:
    """A private unbiased estimate of a vector of length at most 1, one entry longer."""
    unit = np.append(vector, math.sqrt(max(0.0, 1 - float(vector @ vector))))
    unit /= np.linalg.norm(unit)
    noise = rng.standard_normal(len(unit))
    along = _along(parameters, rng)
    return np.asarray((noise + (along - noise @ unit) * unit) / parameters.mean)


def mean_estimate(vectors: Any, epsilon: float, rng: np.random.Generator) -> Carried:
    """The mean of all messages, which are floats: compression is not what it is for."""
    rows = checked_ball(vectors)
    users, dim = rows.shape
    parameters = best_parameters(dim + 1, epsilon)
    total = np.zeros(dim + 1)
    for row in rows:
        total += encode(row, parameters, rng)
    return Carried(total[:dim] / users, FLOAT_BITS * (dim + 1) / dim)


def _along(parameters: Parameters, rng: np.random.Generator) -> float:
    """<U, v>: a normal variable beyond gamma with probability p, below it otherwise."""
    share = 1 - rng.random()
    if rng.random() < parameters.p:
        return -NORMAL.inv_cdf(share * parameters.q)
    # Below gamma: 1 - q of the mass, from the left where doubles are dense.
    return NORMAL.inv_cdf(min(share * (1 - parameters.q), 1 - 2**-53))
