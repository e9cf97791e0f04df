"""Directions that whole ballots share, by block Lanczos without anybody's own noise.

G_ij = y_i · y_j for i != j and 0 on the diagonal. On pure noise the eigenvalues of G (users'
common mean taken off) stay below

    edge = (K - 1) · noise_edge(K, dim) - dim,     about 2 sqrt(K dim) + K

while a share f of users who are all L noises away from the others adds K f (1 - f) L². A user's
score on a direction v = sum_j u_j y_j / |.| leaves its own ballot out: s_i = sum_j G_ij u_j / |.|.
Within a subspace there is never more variance than in all, so what is above the edge is real.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hushbit.robust.pulls import Pulls, Vector, rounded

TRACY_WIDOM_99 = 2.0234
START = 0x70
PROBES, WIDTH = 2, 5
FIRST_STEPS, MORE_STEPS = 3, 4


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The directions above the edge of noise, the largest first.

    weights  (users, found) each direction as a sum of ballots
    axes     (dim, found)   the directions, of length 1
    scores   (users, found) every user's place on them, own ballot left out
    """

    values: Vector
    edge: float
    weights: Vector
    axes: Vector
    scores: Vector

    @property
    def found(self) -> int:
        """How many directions stand above the edge."""
        return self.values.size


def noise_edge(users: int, size: int) -> float:
    """99 % quantile of the top eigenvalue of the sample covariance of pure unit noise.

    (sqrt(n) + sqrt(p))² / n plus Johnstone's Tracy-Widom width, n = users - 1, p = size.
    """
    n, p = float(users - 1), float(size)
    root = math.sqrt(n) + math.sqrt(p)
    width: float = root * (1 / math.sqrt(n) + 1 / math.sqrt(p)) ** (1 / 3)
    return (root**2 + TRACY_WIDOM_99 * width) / n


def look(
    pulls: Pulls, accepted: NDArray[np.bool_], most: int, before: Spectrum | None = None
) -> Spectrum:
    """At most `most` directions of the accepted ballots above the edge.

    Two directions are tried first, all of them only if one stands above the edge. `before` is a
    look at more users: its weights are a better start than chance.
    """
    users = int(accepted.sum())
    edge = (users - 1) * noise_edge(users, pulls.dim) - pulls.dim
    if before is None:
        before = _iterate(pulls, accepted, _first(pulls, accepted), edge, FIRST_STEPS, most)
        if not before.found:
            return before
    start = np.random.default_rng(START).normal(size=(pulls.users, WIDTH))
    known = min(before.found, WIDTH - 1)
    start[:, :known] = before.weights[:, :known]
    return _iterate(pulls, accepted, start, edge, MORE_STEPS, most)


def _iterate(
    pulls: Pulls, accepted: NDArray[np.bool_], start: Vector, edge: float, steps: int, most: int
) -> Spectrum:
    """Block Lanczos: the best directions within the span of start, G start, G² start, ..."""
    powers = pulls.powers()[:, None]
    along, basis = start, np.empty((pulls.users, 0))
    images, sums = basis, np.empty((pulls.dim, 0))
    for _ in range(steps):
        weights = _orthonormal(along, accepted, basis)
        totals = np.stack([pulls.combine(column) for column in weights.T], axis=1)
        along = np.stack([pulls.scores(total) for total in totals.T], axis=1) - powers * weights
        basis, images = np.hstack([basis, weights]), np.hstack([images, along])
        sums = np.hstack([sums, totals])
    values, turn = _ritz(basis, images)
    kept = np.flatnonzero(values > edge)[::-1][:most]
    weights, totals, along = ((part @ turn)[:, kept] for part in (basis, sums, images))
    lengths = np.linalg.norm(totals, axis=0)
    return Spectrum(values[kept], edge, weights, totals / lengths, along / lengths)


def _first(pulls: Pulls, accepted: NDArray[np.bool_]) -> Vector:
    """Users' places on the common mean, then chance."""
    everyone = rounded(accepted / math.sqrt(accepted.sum()))
    columns = np.random.default_rng(START).normal(size=(pulls.users, PROBES))
    columns[:, 0] = pulls.scores(pulls.combine(everyone)) - pulls.powers() * everyone
    return columns


def _orthonormal(columns: Vector, accepted: NDArray[np.bool_], basis: Vector) -> Vector:
    """The accepted users' part off their mean and off the basis, at right angles, then rounded."""
    inside, known = columns[accepted], basis[accepted]
    inside = inside - inside.mean(axis=0)
    if known.size:
        inside = inside - known @ np.linalg.lstsq(known, inside, rcond=None)[0]
    made = np.zeros_like(columns)
    for into, column in zip(made.T, np.linalg.qr(inside)[0].T, strict=True):
        into[accepted] = rounded(column)
    return made


def _ritz(weights: Vector, along: Vector) -> tuple[Vector, Vector]:
    """Eigenvalues of G within the span of the weights, ascending, and the turn to its axes."""
    root = np.linalg.inv(np.linalg.cholesky(weights.T @ weights))
    inside = root @ (weights.T @ along) @ root.T
    values, turn = np.linalg.eigh((inside + inside.T) / 2)
    return values, root.T @ turn
