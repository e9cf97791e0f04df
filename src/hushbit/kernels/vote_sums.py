"""Rényi divergences of a sum of independent ±1 votes when the law of one vote changes.

The other voters vote + with probability b (`plus` of them) or a = 1 - b (`minus` of them). With f
the law of their number of + votes, Q(t) = b f(t) + a f(t-1) the law of the sum if the target votes
+ with probability a, W(t) = (f(t-1) - f(t)) / Q(t), and P = Q (1 + step W) the law at a + step,

    J = E_Q[(1 + step W)^r - 1 - r step W] / step²        r = order, and r = 1 - order

is the excess that both directions of the Rényi divergence need:
D_order = ln(1 + step² J) / (order - 1). At step 0 its limit is order (order - 1) / 2 · E_Q[W²].
"""

import math

import numpy as np
from numpy.typing import NDArray

from hushbit.kernels import njit

Floats = NDArray[np.float64]

WINDOW_SIGMAS, WINDOW_MARGIN = 16.0, 170
"""The binomial laws are cut at this many standard deviations plus a margin; less than 1e-55 lies
outside."""

SERIES_REACH = 0.02
"""Below this |r step W| a series replaces the difference, which would lose digits."""


def reference_excess(plus: int, minus: int, a: float, order: float, step: float) -> float:
    """J of one order and step, the larger of both cases: the definition of the kernels."""
    others = np.convolve(_binomial(plus, 1 - a), _binomial(minus, a))
    here, before = np.append(others, 0.0), np.append(0.0, others)
    law = (1 - a) * here + a * before
    ratio = np.divide(before - here, law, out=np.zeros_like(law), where=law > 0)
    if step == 0:
        return float(order * (order - 1) / 2 * (law @ ratio**2))
    u = step * ratio
    cases = [law @ (np.expm1(r * np.log1p(u)) - r * u) for r in (order, 1 - order)]
    return float(max(cases) / step**2)


def _binomial(trials: int, chance: float) -> Floats:
    logs = [
        math.log(math.comb(trials, k)) + k * math.log(chance) + (trials - k) * math.log1p(-chance)
        for k in range(trials + 1)
    ]
    return np.exp(logs)


@njit
def vote_sum_law(plus: int, minus: int, a: float) -> tuple[Floats, Floats]:
    """Q and W for the counts within the windows; Q sums to one."""
    law = binomial_window(plus, 1.0 - a)
    if minus > 0:
        law = convolve(law, binomial_window(minus, a))
    size = law.size + 1
    weights, ratios = np.empty(size), np.empty(size)
    for t in range(size):
        here = law[t] if t < size - 1 else 0.0
        before = law[t - 1] if t > 0 else 0.0
        weights[t] = (1.0 - a) * here + a * before
        ratios[t] = (before - here) / weights[t] if weights[t] > 0.0 else 0.0
    return weights / weights.sum(), ratios


@njit
def vote_sum_excess(weights: Floats, ratios: Floats, order: float, step: float) -> float:
    """J of one order and step, the larger of both cases."""
    up = down = 0.0
    if step == 0.0:
        for t in range(weights.size):
            up += weights[t] * ratios[t] * ratios[t]
        return order * (order - 1.0) / 2.0 * up
    for t in range(weights.size):
        if weights[t] < 1e-290:
            continue
        u = step * ratios[t]
        if abs(order * u) < SERIES_REACH:
            up += weights[t] * power_excess(order, u)
            down += weights[t] * power_excess(1.0 - order, u)
        else:
            power = math.exp(order * math.log1p(u))
            up += weights[t] * (power - 1.0 - order * u)
            down += weights[t] * ((1.0 + u) / power - 1.0 - (1.0 - order) * u)
    return max(up, down) / (step * step)


@njit
def power_excess(r: float, u: float) -> float:
    """(1 + u)^r - 1 - r u for small |r u|, by its Taylor series."""
    total = 0.0
    for k in range(9, 1, -1):
        total = 1.0 + (r - k) / (k + 1.0) * u * total
    return r * (r - 1.0) / 2.0 * u * u * total


@njit
def binomial_window(trials: int, chance: float) -> Floats:
    """The binomial law about its mean, by the ratios of neighbouring probabilities."""
    spread = WINDOW_SIGMAS * math.sqrt(trials * chance * (1.0 - chance)) + WINDOW_MARGIN
    first = max(0, math.floor(trials * chance - spread))
    last = min(trials, math.ceil(trials * chance + spread))
    mode = min(last, max(first, int((trials + 1) * chance)))
    law = np.empty(last - first + 1)
    odds = chance / (1.0 - chance)
    law[mode - first] = 1.0
    for k in range(mode, last):
        law[k + 1 - first] = law[k - first] * (trials - k) / (k + 1.0) * odds
    for k in range(mode, first, -1):
        law[k - 1 - first] = law[k - first] * k / (trials - k + 1.0) / odds
    law /= law.sum()
    return law


@njit
def convolve(left: Floats, right: Floats) -> Floats:
    """The convolution by its sum: a Fourier transform would lose the small probabilities."""
    out = np.zeros(left.size + right.size - 1)
    for i in range(right.size):
        weight, part = right[i], out[i : i + left.size]
        if weight > 0.0:
            for j in range(left.size):
                part[j] += weight * left[j]
    return out
