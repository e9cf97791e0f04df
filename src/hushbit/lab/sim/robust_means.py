"""Robust means of plain updates, without privacy: the defences that the filter is compared with.

Each takes updates (users, dim) and the assumed number of attackers, and returns one row.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import check_int

Rows = NDArray[np.floating]
Row = NDArray[np.float64]


def coordinate_median(updates: Rows, attackers: int) -> Row:
    """The median of each entry."""
    return np.asarray(np.median(updates, axis=0), dtype=np.float64)


def trimmed_mean(updates: Rows, attackers: int) -> Row:
    """The mean of each entry without its `attackers` smallest and largest values."""
    users = len(updates)
    cut = min(attackers, (users - 1) // 2)
    kept = np.partition(updates, (cut, users - 1 - cut), axis=0)[cut : users - cut]
    return np.asarray(kept.mean(axis=0, dtype=np.float64))


def norm_clipping(updates: Rows, attackers: int) -> Row:
    """The mean of updates scaled down to the median norm."""
    norms = np.linalg.norm(updates.astype(np.float64), axis=1)
    factor = np.minimum(1.0, np.median(norms) / np.maximum(norms, 1e-300))
    return np.asarray(factor @ updates / len(updates))


def krum(updates: Rows, attackers: int) -> Row:
    """The update nearest to its K - attackers - 2 nearest neighbours (Blanchard et al. 2017)."""
    best = int(np.argmin(_krum_scores(updates, attackers)))
    return np.asarray(updates[best], dtype=np.float64)


def multi_krum(updates: Rows, attackers: int) -> Row:
    """The mean of the K - attackers updates with the best Krum scores."""
    scores = _krum_scores(updates, attackers)
    chosen = np.argsort(scores, kind="stable")[: max(1, len(updates) - attackers)]
    return np.asarray(updates[chosen].mean(axis=0, dtype=np.float64))


def bulyan(updates: Rows, attackers: int) -> Row:
    """Krum selects K - 2f updates; the values of each entry nearest to the median are averaged.

    The guarantee of El Mhamdi et al. (2018) needs K >= 4f + 3; with more attackers f is reduced to
    what K allows.
    """
    users = len(updates)
    faulty = min(attackers, max(0, (users - 3) // 4))
    scores = _krum_scores(updates, faulty)
    chosen = updates[np.argsort(scores, kind="stable")[: max(1, users - 2 * faulty)]]
    kept = max(1, len(chosen) - 2 * faulty)
    distance = np.abs(chosen - np.median(chosen, axis=0))
    nearest = np.argpartition(distance, kept - 1, axis=0)[:kept]
    return np.asarray(np.take_along_axis(chosen, nearest, axis=0).mean(axis=0, dtype=np.float64))


def sign_majority(updates: Rows, attackers: int) -> Row:
    """signSGD by majority: the sign of most users times the median absolute entry."""
    step = float(np.median(np.abs(updates)))
    return np.asarray(step * np.sign(np.sign(updates).sum(axis=0, dtype=np.float64)))


ROBUST_MEANS: dict[str, Callable[[Rows, int], Row]] = {
    "median": coordinate_median,
    "trimmed-mean": trimmed_mean,
    "norm-clipping": norm_clipping,
    "krum": krum,
    "multi-krum": multi_krum,
    "bulyan": bulyan,
    "sign-majority": sign_majority,
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
