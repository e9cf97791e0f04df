"""Binomial probabilities: the law of flipped bits, tails and Clopper-Pearson bounds, without SciPy.

The law of flips is computed in logarithms and without cancellation: Loader's saddle-point form has
about eleven correct digits at 1e8 bits, where a difference of log-gamma values has seven.
"""

import math

import numpy as np

from hushbit.checks import Floats, Ints, check_float, check_int
from hushbit.errors import InvalidInput

_SMALL = 16
_SERIES = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188)
_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
_SMALL_ERRORS = np.array(
    [0.0]
    + [
        math.lgamma(n + 1) - (n + 0.5) * math.log(n) + n - _HALF_LOG_TWO_PI
        for n in range(1, _SMALL)
    ]
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
    by_log = count * np.log1p(np.maximum(share, -0.999)) - excess
    far = count * (np.log(count) - log_mean) - excess
    plain = np.where((share > -0.999) & (share < 1e3), by_log, far)
    return np.where(np.abs(share) < 0.02, by_series, plain)


def log_truth_and_flip(log_odds: float) -> tuple[float, float]:
    """(ln p, ln q) for a bit kept with p = 1 / (1 + e^-log_odds), flipped with q; log_odds >= 0."""
    log_truth = -math.log1p(math.exp(-log_odds))
    return log_truth, log_truth - log_odds


def flip_probability(log_odds: float) -> float:
    """q = 1 / (1 + e^log_odds), for log_odds >= 0."""
    return math.exp(log_truth_and_flip(log_odds)[1])


def flips_window(log_odds: float, bits: int, highest: int) -> Ints:
    """The counts of flips up to `highest` that hold all but e^-90 of the mass up to `highest`.

    The window starts 20 standard deviations below the mean, or below `highest` if that is smaller,
    and ends 20 above the mean. The binomial is log-concave, so the omitted share decreases as
    `highest` moves further into the tail.
    """
    flip = flip_probability(log_odds)
    mean = bits * flip
    reach = int(20 * math.sqrt(mean * (1 - flip))) + 200
    first = max(0, min(highest, int(mean)) - reach)
    last = min(highest, bits, int(mean) + 1 + reach)
    return np.arange(first, last + 1, dtype=np.int64)


def log_flips(log_odds: float, bits: int, flips: Ints) -> Floats:
    """ln P[`flips` of `bits` are flipped], each bit with probability 1 / (1 + e^log_odds)."""
    log_truth, log_flip = log_truth_and_flip(log_odds)
    flip, truth = math.exp(log_flip), math.exp(log_truth)
    count = flips.astype(np.float64)
    inside = (flips > 0) & (flips < bits)
    y, x = np.where(inside, (count, bits - count), 1.0)
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


_CHUNK = 4096
_PRECISION = 1e-8


def lower_rate(hits: int, trials: int, confidence: float) -> float:
    """Clopper-Pearson lower bound: the true rate is at least this with the given confidence.

    >>> round(lower_rate(90, 100, 0.95), 4)
    0.8363
    """
    hits, trials = _check_counts(hits, trials, confidence)
    return _clopper_pearson(hits, trials, confidence)


def upper_rate(hits: int, trials: int, confidence: float) -> float:
    """Clopper-Pearson upper bound: the true rate is at most this with the given confidence."""
    hits, trials = _check_counts(hits, trials, confidence)
    return 1 - _clopper_pearson(trials - hits, trials, confidence)


def log_tail(hits: int, trials: int, rate: float) -> float:
    """ln P[Binomial(trials, rate) >= hits].

    >>> round(math.exp(log_tail(3, 4, 0.5)), 12)
    0.3125
    """
    hits, trials = check_int("hits", hits, 0), check_int("trials", trials, 1)
    if not 0 <= check_float("rate", rate) <= 1:
        raise InvalidInput(f"rate must be a probability from 0 to 1; got {rate!r}")
    if hits > trials or (rate == 0 and hits > 0):
        return -math.inf
    if hits == 0 or rate == 1:
        return 0.0
    log_first = (
        math.lgamma(trials + 1)
        - math.lgamma(hits + 1)
        - math.lgamma(trials - hits + 1)
        + hits * math.log(rate)
        + (trials - hits) * math.log1p(-rate)
    )
    return min(0.0, log_first + _log_series(hits, trials, rate))


def _log_series(hits: int, trials: int, rate: float) -> float:
    """ln of (tail / its first term); the terms increase up to the mode, then decrease."""
    log_odds = math.log(rate) - math.log1p(-rate)
    total, log_last = 0.0, 0.0
    for start in range(hits, trials, _CHUNK):
        k = np.arange(start, min(start + _CHUNK, trials), dtype=np.float64)
        log_terms = log_last + np.cumsum(np.log((trials - k) / (k + 1)) + log_odds)
        total = float(np.logaddexp(total, np.logaddexp.reduce(log_terms)))
        log_last = float(log_terms[-1])
        if log_last < total - 40:
            break
    return total


def _check_counts(hits: int, trials: int, confidence: float) -> tuple[int, int]:
    hits, trials = check_int("hits", hits, 0), check_int("trials", trials, 1)
    if hits > trials:
        raise InvalidInput(f"hits must be at most trials = {trials}; got {hits}")
    if not 0 < check_float("confidence", confidence) < 1:
        raise InvalidInput(f"confidence must lie between 0 and 1; got {confidence!r}")
    return hits, trials


def _clopper_pearson(hits: int, trials: int, confidence: float) -> float:
    """The lower bound by bisection; the result never exceeds the exact bound."""
    if hits == 0:
        return 0.0
    risk = math.log1p(-confidence)
    low, high = 0.0, 1.0
    while high - low > _PRECISION * min(high, 1 - low):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if log_tail(hits, trials, middle) < risk:
            low = middle
        else:
            high = middle
    return low
