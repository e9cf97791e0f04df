"""The mean over seeds with its 95 % interval."""

import math
import statistics
from collections.abc import Sequence

MIN_SEEDS = 3
"""Fewer seeds have no interval: that of two is too wide to say anything."""
CONFIDENCE = 0.95


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % interval by Student's t; below MIN_SEEDS its ends equal the mean."""
    mean = statistics.fmean(values)
    if len(values) < MIN_SEEDS:
        return mean, mean, mean
    from scipy.stats import t

    half = t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * statistics.stdev(values)
    half = float(half) / math.sqrt(len(values))
    return mean, mean - half, mean + half
