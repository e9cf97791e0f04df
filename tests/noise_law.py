"""The exact law of grid noise, from its integer thresholds."""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hushbit.baselines.laplace import RANGE, GridNoise


def magnitude(noise: GridNoise, size: int) -> Fraction:
    """P(|X| before rejection = size)."""
    chance = Fraction(1)
    for digit in range(noise.digits):
        share = Fraction(int(noise.thresholds[digit]), RANGE)
        chance *= share if size >> digit & 1 else 1 - share
    more = Fraction(int(noise.thresholds[-1]), RANGE)
    return chance * more ** (size >> noise.digits) * (1 - more)


def law(noise: GridNoise, value: int) -> Fraction:
    """P(X = value): minus zero is rejected."""
    return magnitude(noise, abs(value)) / 2 / (1 - magnitude(noise, 0) / 2)


def log_law(noise: GridNoise, values: NDArray[np.int64]) -> NDArray[np.float64]:
    """log P(X = value) for many values."""
    sizes = np.abs(values)
    chances = noise.thresholds.astype(np.float64) / RANGE
    found = (sizes >> noise.digits) * np.log(chances[-1]) + np.log1p(-chances[-1])
    for digit, chance in enumerate(chances[:-1]):
        found += np.where(sizes >> digit & 1, np.log(chance), np.log1p(-chance))
    return found - np.log(2) - np.log1p(-float(magnitude(noise, 0)) / 2)
