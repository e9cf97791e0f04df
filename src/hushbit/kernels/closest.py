"""Exact search in a lattice given by any basis: nearest point, and all points in a ball."""

import numpy as np

from hushbit.arrays import Floats, Ints
from hushbit.kernels.jit import njit

LOVASZ = 0.99


def reduced_basis(generator: Floats) -> tuple[Floats, Ints]:
    """LLL-reduced basis B and the unimodular U with B = U @ generator.

    Short, nearly orthogonal rows keep the searches below small; the lattice is the same.
    """
    size = generator.shape[0]
    basis, change = generator.copy(), np.eye(size, dtype=np.int64)
    row = 1
    while row < size:
        for other in range(row - 1, -1, -1):
            slopes, _ = _gram_schmidt(basis)
            whole = int(np.rint(slopes[row, other]))
            basis[row] -= whole * basis[other]
            change[row] -= whole * change[other]
        slopes, lengths = _gram_schmidt(basis)
        if lengths[row] >= (LOVASZ - slopes[row, row - 1] ** 2) * lengths[row - 1]:
            row += 1
        else:
            basis[[row - 1, row]] = basis[[row, row - 1]]
            change[[row - 1, row]] = change[[row, row - 1]]
            row = max(row - 1, 1)
    return change @ generator, change


def _gram_schmidt(basis: Floats) -> tuple[Floats, Floats]:
    """Slopes <b_i, b*_j>/<b*_j, b*_j> and squared lengths of the orthogonalised rows."""
    upper = np.linalg.qr(basis.T)[1]
    diagonal = np.diag(upper)
    slopes: Floats = (upper / diagonal[:, None]).T
    return slopes, diagonal**2


def triangular(basis: Floats) -> tuple[Floats, Floats]:
    """Orthogonal Q and upper triangular R, diagonal > 0, with (z @ basis) @ Q = R @ z."""
    rotation, upper = np.linalg.qr(basis.T)
    signs = np.where(np.diag(upper) < 0, -1.0, 1.0)
    return rotation * signs, upper * signs[:, None]


@njit
def nearest_coordinates(targets: Floats, upper: Floats, found: Ints) -> None:
    """For each target y write the integer z that minimises |y - R z| (Schnorr-Euchner).

    Depth first from the last coordinate, candidates in order of distance, cut by the best
    distance so far; of equally near points the one met first stays.
    """
    size = upper.shape[0]
    centre = np.zeros(size)
    partial = np.zeros(size + 1)
    point = np.zeros(size, np.int64)
    step = np.zeros(size, np.int64)
    for row in range(targets.shape[0]):
        best = np.inf
        level = size - 1
        fresh = True
        while level < size:
            if fresh:
                rest = targets[row, level]
                for j in range(level + 1, size):
                    rest -= upper[level, j] * point[j]
                centre[level] = rest / upper[level, level]
                point[level] = np.int64(np.rint(centre[level]))
                step[level] = 1 if centre[level] >= point[level] else -1
            gap = (centre[level] - point[level]) * upper[level, level]
            distance = partial[level + 1] + gap * gap
            if distance >= best:
                level += 1
                fresh = False
            elif level > 0:
                partial[level] = distance
                level -= 1
                fresh = True
                continue
            else:
                best = distance
                for j in range(size):
                    found[row, j] = point[j]
                fresh = False
            if level < size:
                # Zigzag around the centre: +1, -1, +2, -2, ... starting on the nearer side.
                point[level] += step[level]
                step[level] = -step[level] - (1 if step[level] > 0 else -1)


@njit
def ball_coordinates(shift: Floats, upper: Floats, squared_radius: float, found: Ints) -> int:
    """Count the integer z with |R z + shift|^2 <= squared_radius; write as many as fit.

    The search is that of Fincke and Pohst: interval by interval from the last coordinate.
    """
    size = upper.shape[0]
    partial = np.zeros(size + 1)
    point = np.zeros(size, np.int64)
    last = np.zeros(size, np.int64)
    middle = np.zeros(size)
    count = 0
    level = size - 1
    fresh = True
    while level < size:
        if fresh:
            rest = -shift[level]
            for j in range(level + 1, size):
                rest -= upper[level, j] * point[j]
            middle[level] = rest / upper[level, level]
            reach = np.sqrt(max(squared_radius - partial[level + 1], 0.0)) / upper[level, level]
            point[level] = np.int64(np.ceil(middle[level] - reach))
            last[level] = np.int64(np.floor(middle[level] + reach))
        if point[level] > last[level]:
            level += 1
            fresh = False
        elif level > 0:
            gap = (point[level] - middle[level]) * upper[level, level]
            partial[level] = partial[level + 1] + gap * gap
            level -= 1
            fresh = True
            continue
        else:
            if count < found.shape[0]:
                for j in range(size):
                    found[count, j] = point[j]
            count += 1
            fresh = False
        if level < size:
            point[level] += 1
    return count
