"""PrivHS (Duchi, Jordan and Wainwright, 2018): a point of the half-sphere on the vector's side.

A vector shorter than 1 becomes ±v/|v| at random, without bias. Then a point uniform on the sphere
of radius B is sent: with probability e^epsilon / (1 + e^epsilon) from the half on the vector's
side, otherwise from the other half. With E|U_1| of a uniform point U of the unit sphere

    B = 1 / (tanh(epsilon / 2) E|U_1|),   E|U_1| = Gamma(dim/2) / (sqrt(pi) Gamma((dim+1)/2))

the point is an unbiased estimate with error B² - |v|².
"""

import math
from typing import Any

import numpy as np

from hushbit.arrays import Floats
from hushbit.checks import positive, whole
from hushbit.field.carried import FLOAT_BITS, Carried, checked_ball


def sphere_radius(dim: int, epsilon: float) -> float:
    """B, so that the estimate is unbiased."""
    dim, epsilon = whole("dim", dim, 1), positive("epsilon", epsilon)
    log_reach = math.lgamma(dim / 2) - math.lgamma((dim + 1) / 2) - math.log(math.pi) / 2
    return math.exp(-log_reach) / math.tanh(epsilon / 2)


def error(dim: int, epsilon: float) -> float:
    """E|estimate - v|² of one user with a unit vector."""
    return sphere_radius(dim, epsilon) ** 2 - 1


def encode(vector: Floats, epsilon: float, rng: np.random.Generator) -> Floats:
    """A private unbiased estimate of a vector of length at most 1."""
    norm = float(np.linalg.norm(vector))
    forward = rng.random() < (1 + norm) / 2
    direction = vector / norm if norm else np.eye(1, len(vector))[0]
    point = rng.standard_normal(len(vector))
    point *= sphere_radius(len(vector), epsilon) / np.linalg.norm(point)
    keep = rng.random() < 1 / (1 + math.exp(-epsilon))
    near_side = (point @ direction >= 0) == forward
    return point if near_side == keep else -point


def mean_estimate(vectors: Any, epsilon: float, rng: np.random.Generator) -> Carried:
    """The mean of all messages, which are floats: compression is not what it is for."""
    rows = checked_ball(vectors)
    users, dim = rows.shape
    total = np.zeros(dim)
    for row in rows:
        total += encode(row, epsilon, rng)
    return Carried(total / users, float(FLOAT_BITS))
