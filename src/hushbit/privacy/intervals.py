"""Exact binomial tails and confidence bounds (Clopper–Pearson) without SciPy."""

import math

import numpy as np

from hushbit.checks import real, whole
from hushbit.errors import InvalidInput

_CHUNK = 4096
_PRECISION = 1e-8


def lower_rate(hits: int, trials: int, confidence: float) -> float:
    """The largest p0 such that rates below p0 are refused with the given confidence.

    >>> round(lower_rate(90, 100, 0.95), 4)
    0.8363
    """
    hits, trials = _checked(hits, trials, confidence)
    return _bound(hits, trials, confidence)


def upper_rate(hits: int, trials: int, confidence: float) -> float:
    """The mirror image: rates above it are refused with the given confidence."""
    hits, trials = _checked(hits, trials, confidence)
    return 1 - _bound(trials - hits, trials, confidence)


def log_tail(hits: int, trials: int, rate: float) -> float:
    """ln P[Binomial(trials, rate) >= hits].

    >>> round(math.exp(log_tail(3, 4, 0.5)), 12)
    0.3125
    """
    hits, trials = whole("hits", hits, 0), whole("trials", trials, 1)
    if not 0 <= real("rate", rate) <= 1:
        raise InvalidInput(f"rate is a probability; got {rate!r}")
    if hits > trials or (rate == 0 and hits > 0):
        return -math.inf
    if hits == 0 or rate == 1:
        return 0.0
    log_first = (
        math.lgamma(trials + 1) - math.lgamma(hits + 1) - math.lgamma(trials - hits + 1)
        + hits * math.log(rate) + (trials - hits) * math.log1p(-rate)
    )  # fmt: skip
    return min(0.0, log_first + _log_series(hits, trials, rate))


def _log_series(hits: int, trials: int, rate: float) -> float:
    """ln of the tail in units of its first term; the terms rise to the mode, then fall."""
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


def _checked(hits: int, trials: int, confidence: float) -> tuple[int, int]:
    hits, trials = whole("hits", hits, 0), whole("trials", trials, 1)
    if hits > trials:
        raise InvalidInput(f"hits must be at most trials = {trials}; got {hits}")
    if not 0 < real("confidence", confidence) < 1:
        raise InvalidInput(f"confidence must lie between 0 and 1; got {confidence!r}")
    return hits, trials


def _bound(hits: int, trials: int, confidence: float) -> float:
    """The lower bound, by bisection from the safe side."""
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
