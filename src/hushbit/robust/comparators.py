"""Robust means without privacy, to compare with: each takes updates (users, dim), gives one row.

`attackers` is the number of users that may be malicious, as those methods ask for it.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import whole
from hushbit.errors import InvalidInput

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
    best = int(np.argmin(_krum_scores(_distances(updates), attackers)))
    return np.asarray(updates[best], dtype=np.float64)


def multi_krum(updates: Rows, attackers: int) -> Row:
    """The mean of the K - attackers updates with the best Krum scores."""
    scores = _krum_scores(_distances(updates), attackers)
    chosen = np.argsort(scores, kind="stable")[: max(1, len(updates) - attackers)]
    return np.asarray(updates[chosen].mean(axis=0, dtype=np.float64))


def bulyan(updates: Rows, attackers: int) -> Row:
    """Krum selects K - 2f updates; of each entry the values nearest to the median are averaged.

    The guarantee of El Mhamdi et al. (2018) needs K >= 4f + 3; with more attackers f is cut to
    what K allows.
    """
    users = len(updates)
    faulty = min(attackers, max(0, (users - 3) // 4))
    scores = _krum_scores(_distances(updates), faulty)
    chosen = updates[np.argsort(scores, kind="stable")[: max(1, users - 2 * faulty)]]
    kept = max(1, len(chosen) - 2 * faulty)
    gap = np.abs(chosen - np.median(chosen, axis=0))
    nearest = np.argpartition(gap, kept - 1, axis=0)[:kept]
    return np.asarray(np.take_along_axis(chosen, nearest, axis=0).mean(axis=0, dtype=np.float64))


def sign_majority(updates: Rows, attackers: int) -> Row:
    """signSGD by majority: the sign of most users, at the median size of an entry."""
    step = float(np.median(np.abs(updates)))
    return np.asarray(step * np.sign(np.sign(updates).sum(axis=0, dtype=np.float64)))


COMPARATORS: dict[str, Callable[[Rows, int], Row]] = {
    "median": coordinate_median,
    "trimmed-mean": trimmed_mean,
    "norm-clipping": norm_clipping,
    "krum": krum,
    "multi-krum": multi_krum,
    "bulyan": bulyan,
    "sign-majority": sign_majority,
}


def robust_mean(name: str, updates: Rows, attackers: int) -> Row:
    """One of the comparators by name; refuses what cannot be averaged."""
    if name not in COMPARATORS:
        raise InvalidInput(f"unknown defence {name!r}; choose one of {', '.join(COMPARATORS)}")
    if updates.ndim != 2 or len(updates) == 0 or not np.isfinite(updates).all():
        raise InvalidInput(f"updates must be finite rows, at least one; got shape {updates.shape}")
    return COMPARATORS[name](updates, whole("attackers", attackers, 0, len(updates) - 1))


def _distances(updates: Rows) -> Row:
    """Squared distances between all pairs."""
    rows = updates.astype(np.float64)
    power = np.einsum("ud,ud->u", rows, rows)
    # In parentheses: the product of a matrix with itself is half the work.
    gaps = power[:, None] + power[None, :] - 2 * (rows @ rows.T)
    np.fill_diagonal(gaps, math.inf)
    return np.asarray(np.maximum(gaps, 0.0))


def _krum_scores(gaps: Row, attackers: int) -> Row:
    near = min(max(1, len(gaps) - attackers - 2), max(1, len(gaps) - 1))
    if len(gaps) == 1:
        return np.zeros(1)
    return np.asarray(np.partition(gaps, near - 1, axis=1)[:, :near].sum(axis=1))
