"""Exact binomial confidence bounds (Clopper–Pearson) without SciPy."""

import math

from hushbit.checks import whole
from hushbit.errors import InvalidInput


def lower_rate(hits: int, trials: int, confidence: float) -> float:
    """The largest p0 such that rates below p0 are refused with the given confidence.

    >>> round(lower_rate(90, 100, 0.95), 4)
    0.8363
    """
    hits, trials = whole("hits", hits, 0), whole("trials", trials, 1)
    if hits > trials or not 0 < confidence < 1:
        raise InvalidInput(f"{hits} hits of {trials} at confidence {confidence} is not possible")
    if hits == 0:
        return 0.0
    risk = math.log1p(-confidence)
    low, high = 0.0, hits / trials
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if _log_tail(hits, trials, middle) < risk:
            low = middle
        else:
            high = middle
    return low


def upper_rate(hits: int, trials: int, confidence: float) -> float:
    """The mirror image: an upper bound on the rate."""
    return 1 - lower_rate(trials - hits, trials, confidence)


def _log_tail(hits: int, trials: int, rate: float) -> float:
    """ln P[Binomial(trials, rate) >= hits] for a rate below hits / trials."""
    if rate <= 0:
        return -math.inf
    log_first = (
        math.lgamma(trials + 1) - math.lgamma(hits + 1) - math.lgamma(trials - hits + 1)
        + hits * math.log(rate) + (trials - hits) * math.log1p(-rate)
    )  # fmt: skip
    total, term = 1.0, 1.0
    odds = rate / (1 - rate)
    for k in range(hits, trials):
        term *= (trials - k) / (k + 1) * odds
        total += term
        if term < 1e-17 * total:
            break
    return log_first + math.log(total)
