"""A quick bound on many randomized-response bits by Renyi orders, for displays at any size."""

import math
from collections.abc import Iterable

import numpy as np

from hushbit.privacy.arguments import failure_probability
from hushbit.privacy.binomial import Floats, log_flip_odds

_ROUNDING = 4e-15


def epsilon_of_renyi(groups: Iterable[tuple[float, int]], delta: float) -> float:
    """Epsilon of (epsilon_per_bit, bits) groups that all differ, by the best Renyi order a > 1:

    sum n_i D_a(eps_i) + ln(1 - 1/a) - ln(a delta) / (a - 1)  (Canonne, Kamath, Steinke 2020),
    D_a(eps) = ln(p^a q^(1-a) + q^a p^(1-a)) / (a - 1) <= a eps^2 / 2.

    Its cost does not grow with the bits; exact composition is a little smaller.

    >>> round(epsilon_of_renyi([(0.5, 7850)], 1e-5))
    1163
    """
    delta = failure_probability(delta, zero=False)
    listed = list(groups)
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
    log_truth, log_flip = log_flip_odds(per_bit)
    log_sum = np.logaddexp(
        order * log_truth + (1 - order) * log_flip, order * log_flip + (1 - order) * log_truth
    )
    exact = (log_sum + _ROUNDING * (1 + order * per_bit)) / (order - 1)
    return np.asarray(np.minimum(exact, order * per_bit**2 / 2))
