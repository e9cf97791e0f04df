"""The Gaussian mechanism: exact conversion between its noise and (epsilon, delta).

One release whose neighbouring means are mu standard deviations apart has (Balle, Wang 2018)

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)

and releases with mu_1, mu_2, … together have exactly that of mu² = mu_1² + mu_2² + … , also if each
of them is chosen with knowledge of the earlier ones (Dong, Roth, Su 2022).
"""

import math

from hushbit.checks import check_delta, check_nonnegative

FAR = 5.0
"""Above this value, a continued fraction computes the ratio of the normal tail to the density."""


def delta_of_gaussian(mu: float, epsilon: float) -> float:
    """The smallest delta at which a Gaussian release of sensitivity mu is epsilon-private.

    Both terms are multiples of the density at epsilon/mu - mu/2. Factoring it out avoids overflow
    and loss of digits for small deltas.

    >>> round(delta_of_gaussian(1.0, 1.0), 6)
    0.126937
    """
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    place = epsilon / mu - mu / 2
    density = math.exp(-place * place / 2) / math.sqrt(2 * math.pi)
    if place < 0:
        return max(0.0, _tail(place) - density * _tail_ratio(place + mu))
    return max(0.0, density * (_tail_ratio(place) - _tail_ratio(place + mu)))


def epsilon_of_gaussian(mu: float, delta: float) -> float:
    """The smallest epsilon of a Gaussian release of sensitivity mu at this delta, rounded up.

    >>> round(epsilon_of_gaussian(1.0, 1e-5), 4)
    4.3772
    """
    mu, delta = check_nonnegative("mu", mu, infinite=True), check_delta(delta, zero=False)
    if delta_of_gaussian(mu, 0.0) <= delta:
        return 0.0
    low, high = 0.0, mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta))  # by zCDP
    if math.isinf(high):
        return math.inf
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if delta_of_gaussian(mu, middle) <= delta else (middle, high)
    return high


def _tail(x: float) -> float:
    """P(X > x) for a standard normal X."""
    return math.erfc(x / math.sqrt(2)) / 2


def _tail_ratio(x: float) -> float:
    """P(X > x) divided by the density at x, for x >= 0."""
    if x < FAR:
        return _tail(x) * math.sqrt(2 * math.pi) * math.exp(x**2 / 2)
    found = 0.0
    for number in range(100, 0, -1):
        found = number / (x + found)
    return 1 / (x + found)
