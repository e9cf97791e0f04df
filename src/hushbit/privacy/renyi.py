"""Bounds by Renyi divergences: of many bits at any size, and of whole messages (zCDP).

Whole messages are those of two-point CPA with an l2 clip and private stochastic rounding: a user
clips |h|_2 <= C, rounds each |h_i| <= X to +-X with private coins and applies randomized response,
so P[bit = +] = (1 + beta h_i / X) / 2 with beta = tanh(epsilon / 2).
"""

import math
from collections.abc import Iterable

import numpy as np

from hushbit.checks import Floats, check_delta, check_nonnegative, check_positive
from hushbit.privacy.binomial import log_truth_and_flip

_ROUNDING = 4e-15


def epsilon_of_renyi(groups: Iterable[tuple[float, int]], delta: float) -> float:
    """Epsilon of differing bits in groups of pairs (epsilon_per_bit, bits), by Renyi orders.

    The best order a > 1 of

        sum n_i D_a(eps_i) + ln(1 - 1/a) - ln(a delta) / (a - 1)   (Canonne, Kamath, Steinke 2020),
        D_a(eps) = ln(p^a q^(1-a) + q^a p^(1-a)) / (a - 1) <= a eps^2 / 2.

    The time does not grow with the number of bits; exact composition gives a slightly smaller
    epsilon.

    >>> round(epsilon_of_renyi([(0.5, 7850)], 1e-5))
    1163
    """
    delta = check_delta(delta, zero=False)
    listed = list(groups)
    if max(per_bit for per_bit, _ in listed) > 1e10:
        return math.inf  # the best order is too close to 1; the sum of epsilon is as good here
    power = sum(bits * per_bit**2 for per_bit, bits in listed) / 2
    centre, width, best = math.sqrt(-math.log(delta) / power), 1e3, math.inf
    for _ in range(5):
        above_one = centre * np.geomspace(1 / width, width, 201)
        order = 1 + above_one
        divergence = sum(bits * _divergence(per_bit, order) for per_bit, bits in listed)
        bounds = divergence + np.log(above_one / order) - np.log(order * delta) / above_one
        centre, best = float(above_one[np.argmin(bounds)]), min(best, float(np.min(bounds)))
        width **= 0.3
    return max(0.0, best)


def _divergence(per_bit: float, order: Floats) -> Floats:
    """D_a(eps) for each order a, rounded up."""
    log_truth, log_flip = log_truth_and_flip(per_bit)
    log_sum = np.logaddexp(
        order * log_truth + (1 - order) * log_flip, order * log_flip + (1 - order) * log_truth
    )
    exact = (log_sum + _ROUNDING * (1 + order * per_bit)) / (order - 1)
    return np.asarray(np.minimum(exact, order * per_bit**2 / 2))


def zcdp_of_two_points(epsilon_per_bit: float, clip: float, radius: float) -> float:
    """rho = epsilon^2 / 2 (C/X)^2 for updates with clip C and points +-X.

    Proof. The logit of the bit of an entry x is eta(x) = 2 atanh(beta x / X). The log-partition
    function of a Bernoulli law has second derivative <= 1/4, so for entries x and x' of two updates
    D_alpha <= alpha/8 (eta - eta')^2 <= alpha/4 (eta^2 + eta'^2). atanh is convex on [0, 1) and
    eta(X) = epsilon, so |eta(x)| <= epsilon |x| / X. Summed over entries,
    D_alpha <= alpha epsilon^2 / (4 X^2) (|h|^2 + |h'|^2) <= alpha epsilon^2 / 2 (C/X)^2.

    Both updates must be clipped around zero. No rho below 2 beta^2 (C/X)^2 is possible: two updates
    +-h of norm C, spread evenly over many entries, attain it in the limit.
    """
    per_bit = check_positive("epsilon_per_bit", epsilon_per_bit, infinite=True)
    ratio = check_positive("clip", clip) / check_positive("radius", radius)
    try:
        return per_bit**2 / 2 * ratio**2
    except OverflowError:
        return math.inf


def epsilon_of_zcdp_closed(rho: float, delta: float) -> float:
    """epsilon = rho + 2 sqrt(rho ln(1/delta)), the closed form for rho-zCDP (Bun, Steinke 2016).

    >>> round(epsilon_of_zcdp_closed(zcdp_of_two_points(0.5, 1, 1), 1e-5), 2)
    2.52
    """
    rho = check_nonnegative("rho", rho, infinite=True)
    delta = check_delta(delta, zero=False)
    return rho + 2 * math.sqrt(-rho * math.log(delta))


def epsilon_of_zcdp(rho: float, delta: float) -> float:
    """Epsilon of rho-zCDP: the smaller of the closed form and the best order a > 1 of

    epsilon = rho a + ln(1 - 1/a) + ln(1 / (a delta)) / (a - 1)   (Canonne, Kamath, Steinke 2020).

    Every order gives a valid bound, so the accuracy of the search does not affect validity.
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
