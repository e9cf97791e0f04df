"""How fast a test on a sum of independent ±1 votes gains power when the law of one vote changes.

The other voters vote + with probability b (`plus` of them) or a = 1 - b (`minus` of them), f is the
law of their number of + votes, and the target votes + with probability a. The test that rejects
from k votes on has power Q(k) = P(sum >= k) = Σ_{t>=k} f(t) + a f(k-1). If the probability of the
target's vote grows, the power grows with the slope f(k-1). For a Gaussian whose mean moves by kappa
standard deviations per unit, the slope at the same power is kappa φ(z), with P(Z > z) = Q(k). So

    kappa = max over k of f(k-1) / φ(z_k)

is the smallest Gaussian slope that none of these tests exceeds.
"""

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from hushbit.kernels import njit

Floats = NDArray[np.float64]

LOG_ROOT_TWO_PI = 0.5 * math.log(2 * math.pi)
FAR = 5.0  # from here on a continued fraction computes the ratio of normal tail and density
NEWTON_STEPS = 60


def reference_slope(law: Floats, a: float, rare: float) -> float:
    """kappa from the law f of the other votes: the definition of the kernel."""
    found, normal = 0.0, NormalDist()
    for k in range(1, law.size + 1):
        step, above, below = float(law[k - 1]), float(law[k:].sum()), float(law[: k - 1].sum())
        if above + (1 - a) * step > rare and below + (1 - a) * step > rare:
            power = min(above + a * step, below + (1 - a) * step)
            found = max(found, step / normal.pdf(normal.inv_cdf(power)))
    return found


@njit
def vote_sum_slope(plus: int, minus: int, a: float, log_rare: float) -> float:
    """kappa without the tests whose threshold the sum reaches, or misses, too rarely.

    Too rarely means with a probability of e^log_rare at most, wherever the target is.
    """
    logs, ratios = log_vote_law(plus, minus, a)
    others, b = plus + minus, 1.0 - a
    above = np.zeros(others + 2)  # Σ_{t>=k} f(t), divided by f(k-1)
    for k in range(others, 0, -1):
        above[k] = ratios[k - 1] * (1.0 + above[k + 1])
    below = 0.0  # Σ_{t<k-1} f(t), divided by f(k-1)
    largest, z = -math.inf, 0.0
    for k in range(1, others + 2):
        if k > 1:
            below = (1.0 + below) / ratios[k - 2]
        if logs[k - 1] + math.log(b + min(above[k], below)) > log_rare:
            z = normal_quantile(logs[k - 1] + math.log(min(a + above[k], b + below)), z)
            largest = max(largest, logs[k - 1] + z * z / 2.0 + LOG_ROOT_TWO_PI)
    return math.exp(largest)


@njit
def log_vote_law(plus: int, minus: int, a: float) -> tuple[Floats, Floats]:
    """Logarithms of f(0), …, f(n), and the ratios f(t+1) / f(t).

    The generating function (a + b z)^plus (b + a z)^minus gives a recurrence of neighbouring
    ratios. Errors shrink where it starts from f(0), up to the count `middle`; above it they
    shrink if the recurrence starts from f(n), which is that of the - votes.
    """
    others = plus + minus
    ratios = np.empty(others)
    middle = fill_ratios(plus, minus, a, ratios, True)
    mirrored = np.empty(others - middle)
    fill_ratios(minus, plus, a, mirrored, False)
    for t in range(middle, others):
        ratios[t] = 1.0 / mirrored[others - 1 - t]
    logs = np.zeros(others + 1)
    mode = 0
    while mode < others and ratios[mode] > 1.0:
        mode += 1
    for t in range(mode, others):
        logs[t + 1] = logs[t] + math.log(ratios[t])
    for t in range(mode, 0, -1):
        logs[t - 1] = logs[t] - math.log(ratios[t - 1])
    return logs - math.log(np.exp(logs).sum()), ratios


@njit
def fill_ratios(plus: int, minus: int, a: float, ratios: Floats, accurate: bool) -> int:
    """Write ratios from f(1) / f(0) on, all or (`accurate`) until errors would grow.

    Returns how many were written.
    """
    b, others = 1.0 - a, plus + minus
    square, previous = a * a + b * b, 1.0
    for t in range(ratios.size):
        total = plus * b * b + minus * a * a - square * t
        if t > 0:
            total += a * b * (others - t + 1) / previous
        ratio = total / (a * b * (t + 1))
        if accurate and t > 0 and (others - t + 1) > (t + 1) * ratio * previous:
            return t
        ratios[t] = previous = ratio
    return ratios.size


@njit
def normal_quantile(log_tail: float, start: float) -> float:
    """z >= 0 with ln P(Z > z) = `log_tail`, by Newton's method from `start`; 0 above one half."""
    z = max(start, 0.0)
    if log_tail >= -math.log(2.0):
        return 0.0
    for _ in range(NEWTON_STEPS):
        ratio = tail_ratio(z)
        move = (math.log(ratio) - z * z / 2.0 - LOG_ROOT_TWO_PI - log_tail) * ratio
        z = max(0.0, z + move)
        if abs(move) <= 1e-7:  # the next step would be its square
            break
    return z


@njit
def tail_ratio(x: float) -> float:
    """P(Z > x) divided by the density at x, for x >= 0."""
    if x < FAR:
        return math.erfc(x / math.sqrt(2.0)) / 2.0 * math.exp(x * x / 2.0 + LOG_ROOT_TWO_PI)
    found = 0.0
    for number in range(8 + int(400.0 / (x * x)), 0, -1):
        found = number / (x + found)
    return 1.0 / (x + found)
