"""The normal law: distribution, density, and the quantizer of least squared error for it."""

import math
from functools import lru_cache

import numpy as np

from hushbit.arrays import Floats
from hushbit.checks import whole

LLOYD_STEPS = 20_000
SETTLED = 1e-13


def below(x: Floats) -> Floats:
    """P[Z <= x] for every entry."""
    return np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in x.reshape(-1)])


def density(x: Floats) -> Floats:
    """exp(-x²/2) / sqrt(2 pi)."""
    return np.asarray(np.exp(-x * x / 2) / math.sqrt(2 * math.pi))


@lru_cache(maxsize=8)
def best_levels(bits: int) -> Floats:
    """The 2^bits levels of least squared error for N(0, 1) (Lloyd and Max).

    Every level is the mean of what is nearest to it.

    >>> best_levels(1).round(4).tolist()
    [-0.7979, 0.7979]
    """
    count = 2 ** whole("bits", bits, 1, 6)
    levels = np.linspace(-2.0, 2.0, count)
    for _ in range(LLOYD_STEPS):
        edges = np.concatenate([[-np.inf], (levels[1:] + levels[:-1]) / 2, [np.inf]])
        new = -np.diff(density(edges)) / np.diff(below(edges))
        moved = float(np.abs(new - levels).max())
        levels = (new - new[::-1]) / 2
        if moved < SETTLED:
            break
    levels.setflags(write=False)
    return levels


def explained(bits: int) -> float:
    """1 - D, the share of N(0, 1)'s power that its best levels hold: E[level²]."""
    levels = best_levels(bits)
    edges = np.concatenate([[-np.inf], (levels[1:] + levels[:-1]) / 2, [np.inf]])
    return float((levels**2 * np.diff(below(edges))).sum())
