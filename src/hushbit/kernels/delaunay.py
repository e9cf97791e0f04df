"""Barycentric weights in the Delaunay cell that holds a block, by the dual simplex method.

The weights solve  min sum_j w_j c_j  subject to  sum_j w_j q_j = x,  sum_j w_j = 1,  w >= 0
with c_j = |q_j|^2: an optimal basis is a simplex with an empty circumscribed sphere. Each pivot
walks to a neighbouring simplex. Lattice points are often co-spherical, so the costs carry a tiny
fixed perturbation: the triangulation becomes unique and the walk cannot cycle.
"""

import numpy as np
from numpy.typing import NDArray

from hushbit.arrays import Floats, Ints
from hushbit.kernels.jit import njit

PERTURBATION = 1e-8  # of the squared radius: far above rounding, far below any lattice gap
NEGATIVE = 1e-10  # a weight above -NEGATIVE counts as 0 and is clipped
PIVOT = 1e-9  # slopes of lattice simplices are ratios of small integers or exactly 0
REFRESH = 30  # pivots between two corrections of the inverse
PATIENCE = 2000  # pivots after which the rule of smallest index (Bland) takes over
GIVE_UP = 200_000

INSIDE, OUTSIDE, LOST = 0, 1, 2


def perturbed_costs(points: Floats) -> Floats:
    """|q|^2 plus a fixed fraction of the perturbation, different for every point."""
    golden = 0.6180339887498949
    fractions = (np.arange(1, len(points) + 1) * golden) % 1.0
    scale = PERTURBATION * np.max(np.sum(points**2, axis=1))
    costs: Floats = np.sum(points**2, axis=1) + scale * fractions**2
    return costs


def first_simplex(points: Floats, costs: Floats) -> Ints:
    """Indices of one Delaunay simplex, near the origin.

    The plane costs >= a.q + b is tilted, keeping the points that it touches, until it touches
    one more; L times.
    """
    touched = [int(np.argmin(costs))]
    gaps = costs - costs[touched[0]]
    rest = points - points[touched[0]]
    for _ in range(points.shape[1]):
        direction = rest[np.argmax(np.sum(rest**2, axis=1))]
        rise = rest @ direction
        ahead = rise > PIVOT * (direction @ direction)
        tilt = np.min(gaps[ahead] / rise[ahead])
        newest = int(np.argmin(np.where(ahead, gaps / np.where(ahead, rise, 1.0), np.inf)))
        gaps = gaps - tilt * rise
        touched.append(newest)
        axis = rest[newest] / np.sqrt(rest[newest] @ rest[newest])
        rest = rest - np.outer(rest @ axis, axis)
    return np.array(touched, dtype=np.int64)


def basis_inverse(points: Floats, simplex: Ints) -> Floats:
    """Inverse of the matrix with columns (q, 1): maps (x, 1) to barycentric weights."""
    columns = np.vstack([points[simplex].T, np.ones(len(simplex))])
    inverse: Floats = np.linalg.inv(columns)
    return inverse


@njit
def refresh_inverse(points: Floats, basis: Ints, inverse: Floats) -> None:
    """One Newton step X + (I - X B) X, in place, against the errors that pivots pile up."""
    dim = points.shape[1]
    size = dim + 1
    rest = np.zeros((size, size))
    for i in range(size):
        for j in range(size):
            total = inverse[i, dim]
            for k in range(dim):
                total += inverse[i, k] * points[basis[j], k]
            rest[i, j] = (1.0 if i == j else 0.0) - total
    correction = np.zeros((size, size))
    for i in range(size):
        for j in range(size):
            for k in range(size):
                correction[i, k] += rest[i, j] * inverse[j, k]
    for i in range(size):
        for k in range(size):
            inverse[i, k] += correction[i, k]


@njit
def leaving_slot(weights: Floats, basis: Ints, cautious: bool) -> int:
    """Slot of the most negative weight, or of the smallest point index if cautious; -1 if none."""
    slot = -1
    for i in range(weights.shape[0]):
        if weights[i] < -NEGATIVE:
            if slot < 0:
                slot = i
            elif cautious:
                if basis[i] < basis[slot]:
                    slot = i
            elif weights[i] < weights[slot]:
                slot = i
    return slot


@njit
def entering_point(points: Floats, costs: Floats, prices: Floats, row: Floats) -> int:
    """The point that comes in for the slot of `row`; -1 if none can (the block is outside)."""
    dim = points.shape[1]
    best = np.inf
    entering = -1
    for j in range(points.shape[0]):
        slope = row[dim]
        for k in range(dim):
            slope += row[k] * points[j, k]
        if slope < -PIVOT:
            gap = costs[j] - prices[dim]
            for k in range(dim):
                gap -= prices[k] * points[j, k]
            ratio = -gap / slope
            if ratio < best:
                best = ratio
                entering = j
    return entering


@njit
def walk(
    points: Floats,
    costs: Floats,
    block: Floats,
    basis: Ints,
    inverse: Floats,
    weights: Floats,
    prices: Floats,
    column: Floats,
) -> int:
    """Pivot from the simplex in `basis` to the one that holds the block; all arrays in place."""
    dim = points.shape[1]
    size = dim + 1
    for i in range(size):
        total = inverse[i, dim]
        for k in range(dim):
            total += inverse[i, k] * block[k]
        weights[i] = total
    for pivots in range(1, GIVE_UP):
        slot = leaving_slot(weights, basis, pivots > PATIENCE)
        if slot < 0:
            return INSIDE
        entering = entering_point(points, costs, prices, inverse[slot])
        if entering < 0:
            return OUTSIDE
        gap = costs[entering] - prices[dim]
        for k in range(dim):
            gap -= prices[k] * points[entering, k]
        for i in range(size):
            total = inverse[i, dim]
            for k in range(dim):
                total += inverse[i, k] * points[entering, k]
            column[i] = total
        slope = column[slot]
        for k in range(size):
            prices[k] += gap / slope * inverse[slot, k]
            inverse[slot, k] /= slope
        weights[slot] /= slope
        for i in range(size):
            if i != slot:
                factor = column[i]
                weights[i] -= factor * weights[slot]
                for k in range(size):
                    inverse[i, k] -= factor * inverse[slot, k]
        basis[slot] = entering
        if pivots % REFRESH == 0:
            refresh_inverse(points, basis, inverse)
            for k in range(size):
                prices[k] = 0.0
                for i in range(size):
                    prices[k] += costs[basis[i]] * inverse[i, k]
    return LOST


@njit
def polish(
    points: Floats, block: Floats, basis: Ints, inverse: Floats, weights: Floats, rest: Floats
) -> None:
    """One step of iterative refinement, then clip tiny negatives and make the sum 1."""
    dim = points.shape[1]
    size = dim + 1
    for k in range(dim):
        rest[k] = block[k]
        for i in range(size):
            rest[k] -= weights[i] * points[basis[i], k]
    rest[dim] = 1.0
    for i in range(size):
        rest[dim] -= weights[i]
    total = 0.0
    for i in range(size):
        for k in range(size):
            weights[i] += inverse[i, k] * rest[k]
        weights[i] = max(weights[i], 0.0)
        total += weights[i]
    for i in range(size):
        weights[i] /= total


@njit
def delaunay_corners(
    points: Floats,
    costs: Floats,
    start: Ints,
    start_inverse: Floats,
    blocks: Floats,
    index: NDArray[np.int32],
    weight: Floats,
    status: NDArray[np.int8],
) -> None:
    """Corners and weights of every block; status is INSIDE, OUTSIDE or LOST (never expected).

    Every block starts from the same simplex, so its result does not depend on its neighbours.
    """
    size = points.shape[1] + 1
    start_prices = np.zeros(size)
    for k in range(size):
        for i in range(size):
            start_prices[k] += costs[start[i]] * start_inverse[i, k]
    basis = start.copy()
    inverse = start_inverse.copy()
    prices = start_prices.copy()
    column = np.zeros(size)
    for m in range(blocks.shape[0]):
        basis[:] = start
        inverse[:, :] = start_inverse
        prices[:] = start_prices
        weights = weight[m]
        status[m] = walk(points, costs, blocks[m], basis, inverse, weights, prices, column)
        if status[m] == INSIDE:
            polish(points, blocks[m], basis, inverse, weights, column)
        for i in range(size):
            index[m, i] = basis[i]
