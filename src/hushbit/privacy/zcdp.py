"""Whole-message guarantee of two-point CPA with an l2 clip and private stochastic rounding.

A user clips |h|_2 <= C, rounds each |h_i| <= X to +-X with private coins and applies randomized
response, so P[bit = +] = (1 + beta h_i / X) / 2 with beta = tanh(epsilon / 2).
"""

import math

import numpy as np

from hushbit.checks import positive
from hushbit.privacy.arguments import failure_probability, not_negative


def _ratio(clip: object, radius: object) -> float:
    return positive("clip", clip) / positive("radius", radius)


def zcdp_of_two_points(epsilon_per_bit: float, clip: float, radius: float) -> float:
    """rho = sinh(epsilon)^2 / 2 (C/X)^2, from the steepest slope of the logit.

    >>> round(zcdp_of_two_points(0.5, 1, 1), 3)
    0.136
    """
    per_bit = positive("epsilon_per_bit", epsilon_per_bit, infinite=True)
    ratio = _ratio(clip, radius)
    try:
        return math.sinh(per_bit) ** 2 / 2 * ratio**2
    except OverflowError:
        return math.inf


def zcdp_of_two_points_tight(epsilon_per_bit: float, clip: float, radius: float) -> float:
    """rho = epsilon^2 / 2 (C/X)^2, from the chord of the logit: never above the slope bound.

    Proof. The logit of a coordinate is eta(x) = 2 atanh(beta x / X). The log-partition of a
    Bernoulli has second derivative <= 1/4, so D_alpha <= alpha/8 (eta - eta')^2 <=
    alpha/4 (eta^2 + eta'^2). atanh is convex on [0, 1) and eta(X) = epsilon, so
    |eta(x)| <= epsilon |x| / X. Summed over coordinates, D_alpha <=
    alpha epsilon^2 / (4 X^2) (|h|^2 + |h'|^2) <= alpha epsilon^2 / 2 (C/X)^2.

    Both updates must be clipped around zero. No rho below 2 beta^2 (C/X)^2 can hold: that is the
    limit for C spread evenly over many coordinates.
    """
    per_bit = positive("epsilon_per_bit", epsilon_per_bit, infinite=True)
    try:
        return per_bit**2 / 2 * _ratio(clip, radius) ** 2
    except OverflowError:
        return math.inf


def epsilon_of_zcdp_closed(rho: float, delta: float) -> float:
    """epsilon = rho + 2 sqrt(rho ln(1/delta)), the closed form for rho-zCDP.

    >>> round(epsilon_of_zcdp_closed(zcdp_of_two_points(0.5, 1, 1), 1e-5), 2)
    2.64
    """
    rho = not_negative("rho", rho, infinite=True)
    delta = failure_probability(delta, zero=False)
    return rho + 2 * math.sqrt(-rho * math.log(delta))


def epsilon_of_zcdp(rho: float, delta: float) -> float:
    """The smaller of the closed form and the best Renyi order a > 1 of

    epsilon = rho a + ln(1 - 1/a) + ln(1 / (a delta)) / (a - 1)   (Canonne, Kamath, Steinke 2020).

    Every order gives a valid bound, so the search may stop anywhere.
    """
    closed = epsilon_of_zcdp_closed(rho, delta)
    if rho == 0 or math.isinf(closed):
        return closed
    centre = math.sqrt(-math.log(delta) / max(rho, 1e-200))
    best = closed
    width = 1e3
    for _ in range(6):
        above_one = centre * np.geomspace(1 / width, width, 401)
        order = 1 + above_one
        bounds = (
            rho * order + np.log(above_one / order) - (np.log(order) + math.log(delta)) / above_one
        )
        centre, best = float(above_one[np.argmin(bounds)]), min(best, float(np.min(bounds)))
        width **= 0.25
    return max(0.0, best)
