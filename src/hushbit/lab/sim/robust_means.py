"""Robust means of plain updates, without privacy: with which the defence is compared.

Each takes updates (users, dim) and the assumed number of attackers, and returns one row.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import check_int

Rows = NDArray[np.floating]
Row = NDArray[np.float64]

TOLERANCE = 1e-6
"""The geometric median ends with a step shorter than this share of the mean distance to it."""
MAX_STEPS = 1000


def coordinate_median(updates: Rows, attackers: int) -> Row:
    """The median of each entry."""
    return np.asarray(np.median(updates, axis=0), dtype=np.float64)


def trimmed_mean(updates: Rows, attackers: int) -> Row:
    """The mean of each entry without its `attackers` smallest and largest values."""
    users = len(updates)
    cut = min(attackers, (users - 1) // 2)
    kept = np.partition(updates, (cut, users - 1 - cut), axis=0)[cut : users - cut]
    return np.asarray(kept.mean(axis=0, dtype=np.float64))


def multi_krum(updates: Rows, attackers: int) -> Row:
    """The mean of the K - attackers updates with the best Krum scores (Blanchard et al. 2017).

    The score is the sum of squared distances to the K - attackers - 2 nearest neighbours.
    """
    scores = _krum_scores(updates, attackers)
    chosen = np.argsort(scores, kind="stable")[: max(1, len(updates) - attackers)]
    return np.asarray(updates[chosen].mean(axis=0, dtype=np.float64))


def geometric_median(updates: Rows, attackers: int) -> Row:
    """The point with the smallest sum of distances to the updates, by Weiszfeld's iteration.

    Each step is a mean with weights 1 / distance. A distance counts as at least TOLERANCE times the
    mean distance, so that a step may begin at an update.
    """
    rows = updates.astype(np.float64)
    middle = rows.mean(axis=0)
    for _ in range(MAX_STEPS):
        distances = np.linalg.norm(rows - middle, axis=1)
        shortest = TOLERANCE * float(distances.mean())
        if shortest == 0:
            break
        weights = 1 / np.maximum(distances, shortest)
        before, middle = middle, weights @ rows / weights.sum()
        if float(np.linalg.norm(middle - before)) < shortest:
            break
    return np.asarray(middle)


ROBUST_MEANS: dict[str, Callable[[Rows, int], Row]] = {
    "median": coordinate_median,
    "trimmed-mean": trimmed_mean,
    "multi-krum": multi_krum,
    "geometric-median": geometric_median,
}


def robust_mean(name: str, updates: Rows, attackers: int) -> Row:
    """A robust mean by name; fewer than all users may be attackers."""
    return ROBUST_MEANS[name](updates, check_int("attackers", attackers, 0, len(updates) - 1))


def _krum_scores(updates: Rows, attackers: int) -> Row:
    """The sum of squared distances of each update to its nearest neighbours."""
    if len(updates) == 1:
        return np.zeros(1)
    rows = updates.astype(np.float64)
    power = np.einsum("ud,ud->u", rows, rows)
    # The parentheses let BLAS compute the symmetric product with half of the work.
    distances = np.maximum(power[:, None] + power[None, :] - 2 * (rows @ rows.T), 0.0)
    np.fill_diagonal(distances, math.inf)
    near = min(max(1, len(updates) - attackers - 2), len(updates) - 1)
    return np.asarray(np.partition(distances, near - 1, axis=1)[:, :near].sum(axis=1))
