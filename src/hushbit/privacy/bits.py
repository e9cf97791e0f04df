"""Exact composition of identical randomized-response bits that all differ.

With n bits at epsilon each, Y ~ Bin(n, q) of them flipped, q = 1 / (1 + e^epsilon), the privacy
loss is epsilon (n - 2Y), and

    delta(E) = sum over y with loss(y) > E of P[Y = y] (1 - e^(E - loss(y))).

Every term is positive, so the sums lose no digits; results are rounded up.
"""

import math

import numpy as np

from hushbit.checks import positive, whole
from hushbit.privacy.arguments import MOST_BITS, failure_probability, not_negative
from hushbit.privacy.binomial import flips_window, log_flips

_ROUND_UP_DELTA = 1 + 1e-9
_ROUND_UP_MASS = 1 + 1e-10
_ROUND_UP_EPSILON = 1 + 1e-12


def delta_of(epsilon_per_bit: float, bits: int, epsilon: float) -> float:
    """The smallest delta for which `bits` differing bits are (epsilon, delta)-private.

    >>> round(delta_of(0.5, 1000, 186.1), 7)
    1e-05
    """
    per_bit = positive("epsilon_per_bit", epsilon_per_bit, infinite=True)
    bits = whole("bits", bits, 1, MOST_BITS)
    epsilon = not_negative("epsilon", epsilon, infinite=True)
    if epsilon >= per_bit * bits:
        return 0.0
    if math.isinf(per_bit):
        return 1.0
    flips = flips_window(per_bit, bits, math.ceil((bits - epsilon / per_bit) / 2))
    excess = np.maximum(per_bit * (bits - 2 * flips) - epsilon, 0.0)
    total = float(np.sum(np.exp(log_flips(per_bit, bits, flips)) * -np.expm1(-excess)))
    # Below the pure level delta is never 0; where it underflows, the least float is above it.
    return min(1.0, max(total * _ROUND_UP_DELTA, math.ulp(0.0)))


def _masses_at(per_bit: float, bits: int, flips: int) -> tuple[float, float]:
    """Delta at epsilon = loss(flips), and the mass that e^epsilon multiplies just below it.

    D = sum_{y<k} P(y) (1 - e^(-2 eps (k-y))),  C = sum_{y<=k} P(y) e^(-2 eps (k-y)).
    """
    window = flips_window(per_bit, bits, flips)
    mass = np.exp(log_flips(per_bit, bits, window)) * _ROUND_UP_MASS
    gap = 2 * per_bit * (flips - window)
    return float(np.sum(mass * -np.expm1(-gap))), float(np.sum(mass * np.exp(-gap)))


def epsilon_of(epsilon_per_bit: float, bits: int, delta: float) -> float:
    """The smallest epsilon for which `bits` differing bits are (epsilon, delta)-private.

    Between two break points loss(k+1) <= E < loss(k), delta(E) = D + C (1 - e^(E - loss(k))), so
    the break point is found by bisection and E by E = loss(k) + ln(1 - (delta - D) / C).

    >>> round(epsilon_of(0.5, 100, 1e-5), 2)
    31.17
    """
    per_bit = positive("epsilon_per_bit", epsilon_per_bit, infinite=True)
    bits = whole("bits", bits, 1, MOST_BITS)
    delta = failure_probability(delta)
    pure = per_bit * bits
    if delta == 0 or math.isinf(pure):
        return pure
    low, high = 0, bits // 2 + 1
    while high - low > 1:
        middle = (low + high) // 2
        if _masses_at(per_bit, bits, middle)[0] <= delta:
            low = middle
        else:
            high = middle
    excess, mass = _masses_at(per_bit, bits, low)
    spare = delta - excess
    if spare >= mass:
        return 0.0
    epsilon = per_bit * (bits - 2 * low) + math.log1p(-spare / mass)
    return min(pure, max(0.0, epsilon * _ROUND_UP_EPSILON))


def epsilon_per_bit_for(total: float, bits: int, delta: float) -> float:
    """The largest epsilon per bit whose `bits` differing bits stay (total, delta)-private.

    >>> round(epsilon_per_bit_for(1.0, 7850, 1e-5), 5)
    0.00303
    """
    total = positive("total", total)
    bits = whole("bits", bits, 1, MOST_BITS)
    delta = failure_probability(delta)
    low = total / bits
    if delta > 0:
        low = _largest_within(total, bits, delta)
    while epsilon_of(low, bits, delta) > total:
        low *= 1 - 1e-13
    return low


def _largest_within(total: float, bits: int, delta: float) -> float:
    low = total / bits
    high = 2 * low
    while delta_of(high, bits, total) <= delta:
        low, high = high, 2 * high
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        if delta_of(middle, bits, total) <= delta:
            low = middle
        else:
            high = middle
    return low


def best_subset(epsilon: float) -> int:
    """How many blocks to report under a pure budget: the s that minimises 1/(s tanh^2(eps/2s)).

    The cost is unimodal in s with its minimum near epsilon / 2.177, so four neighbours decide; of
    equals the smaller wins, because it sends fewer bits.

    >>> [best_subset(epsilon) for epsilon in (0.5, 1, 2, 4, 8, 16)]
    [1, 1, 1, 2, 4, 7]
    """
    epsilon = positive("epsilon", epsilon)
    near = int(epsilon / 2.177)
    candidates = range(max(1, near - 1), near + 3)
    return min(candidates, key=lambda s: 1 / (s * math.tanh(epsilon / (2 * s)) ** 2))
