"""Probabilities of the number of flipped bits, in logarithms and without cancellation.

Loader's saddle-point form keeps about eleven correct digits at 1e8 bits, where a difference of
log-gamma values would keep seven.
"""

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_SMALL = 16
_SERIES = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188)
_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
_SMALL_ERRORS = np.array(
    [0.0]
    + [math.lgamma(n + 1) - (n + 0.5) * math.log(n) + n - _HALF_LOG_TWO_PI for n in range(1, 16)]
)


def _stirling_error(count: Floats) -> Floats:
    """ln(n!) minus Stirling's formula."""
    inverse = 1 / np.maximum(count, _SMALL)
    square = inverse * inverse
    series = np.zeros_like(inverse)
    for coefficient in reversed(_SERIES):
        series = series * square + coefficient
    small = _SMALL_ERRORS[np.minimum(count, _SMALL - 1).astype(np.int64)]
    return np.where(count < _SMALL, small, series * inverse)


def _deviance(count: Floats, mean: float, log_mean: float, excess: Floats) -> Floats:
    """count ln(count / mean) - excess, where excess = count - mean."""
    if mean == 0:
        return count * (np.log(count) - log_mean) - excess
    with np.errstate(over="ignore"):
        share = excess / mean
    series = np.zeros_like(share)
    near = np.clip(share, -0.02, 0.02)
    for order in range(10, 1, -1):
        series = series * near + (-1) ** order / (order * (order - 1))
    by_series = mean * near * near * series
    by_log = count * np.log1p(np.clip(share, -0.999, 1e3)) - excess
    far = count * (np.log(count) - log_mean) - excess
    plain = np.where((share > -0.999) & (share < 1e3), by_log, far)
    return np.where(np.abs(share) < 0.02, by_series, plain)


def log_flip_odds(log_odds: float) -> tuple[float, float]:
    """Returns (ln p, ln q) of truth and flip, p = 1 / (1 + e^-log_odds), for log_odds >= 0."""
    log_truth = -math.log1p(math.exp(-log_odds))
    return log_truth, log_truth - log_odds


def flips_window(log_odds: float, bits: int, highest: int) -> Integers:
    """The counts of flips up to `highest` that carry all but e^-90 of the mass up to there.

    The window ends 20 standard deviations from the mean, or from `highest` if that is lower;
    log-concavity makes the share beyond it smaller the further `highest` is in the tail.
    """
    flip = math.exp(log_flip_odds(log_odds)[1])
    mean = bits * flip
    reach = int(20 * math.sqrt(mean * (1 - flip))) + 200
    first = max(0, min(highest, int(mean)) - reach)
    last = min(highest, bits, int(mean) + 1 + reach)
    return np.arange(first, last + 1, dtype=np.int64)


def log_flips(log_odds: float, bits: int, flips: Integers) -> Floats:
    """ln P[`flips` of `bits` are flipped], each with probability 1 / (1 + e^log_odds)."""
    log_truth, log_flip = log_flip_odds(log_odds)
    flip, truth = math.exp(log_flip), math.exp(log_truth)
    count = flips.astype(np.float64)
    inside = (flips > 0) & (flips < bits)
    y = np.where(inside, count, 1.0)
    x = np.where(inside, bits - count, max(bits - 1.0, 1.0))
    excess = y - bits * flip
    total = np.full_like(y, float(bits))
    result = (
        _stirling_error(total)
        - _stirling_error(y)
        - _stirling_error(x)
        - _deviance(y, bits * flip, math.log(bits) + log_flip, excess)
        - _deviance(x, bits * truth, math.log(bits) + log_truth, -excess)
        + 0.5 * np.log(bits / y / x)
        - _HALF_LOG_TWO_PI
    )
    result = np.where(flips == 0, bits * log_truth, result)
    return np.where(flips == bits, bits * log_flip, result)
