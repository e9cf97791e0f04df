"""Lattice kernels: nearest point, points in a ball, and barycentric weights of a block.

*Search.* The basis is LLL-reduced and made triangular; then integer coordinates are searched depth
first, exactly, for any full-rank basis.

*Weights in the Delaunay cell* that holds a block, by the dual simplex method. The weights solve

    min sum_j w_j c_j   subject to   sum_j w_j q_j = x,  sum_j w_j = 1,  w >= 0

with c_j = |q_j|^2: an optimal basis is a simplex with an empty circumscribed sphere, and each pivot
moves to a neighbouring simplex. Lattice points are often co-spherical, so the costs have a tiny
fixed perturbation: it makes the triangulation unique, and the pivots cannot cycle.

*Scalar points*: the two neighbours of each value and their weights.
"""

import numpy as np

from hushbit.kernels import Bytes, Flags, Floats, Indices, Ints, njit

LOVASZ = 0.99
PERTURBATION = 1e-8  # of the squared radius: far above rounding, far below any lattice gap
NEGATIVE_TOLERANCE = 1e-10  # a weight above -NEGATIVE_TOLERANCE counts as 0 and is clipped
PIVOT_TOLERANCE = 1e-9  # slopes of lattice simplices are ratios of small integers or exactly 0
REFRESH_EVERY = 30  # pivots between two corrections of the inverse
BLAND_AFTER = 2000  # pivots after which the rule of smallest index (Bland) is used
MAX_PIVOTS = 200_000

INSIDE, OUTSIDE, NOT_FOUND = 0, 1, 2


def reduced_basis(generator: Floats) -> tuple[Floats, Ints]:
    """LLL-reduced basis B and the unimodular U with B = U @ generator.

    Short, nearly orthogonal rows keep the searches small; the lattice is the same.
    """
    size = generator.shape[0]
    basis, change = generator.copy(), np.eye(size, dtype=np.int64)
    row = 1
    while row < size:
        for other in range(row - 1, -1, -1):
            slopes, _ = _gram_schmidt(basis)
            multiple = int(np.rint(slopes[row, other]))
            basis[row] -= multiple * basis[other]
            change[row] -= multiple * change[other]
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


def lower_triangular_basis(basis: Floats) -> tuple[Floats, Floats]:
    """Orthogonal Q and upper triangular R, diagonal > 0, with (z @ basis) @ Q = R @ z."""
    rotation, upper = np.linalg.qr(basis.T)
    signs = np.where(np.diag(upper) < 0, -1.0, 1.0)
    return rotation * signs, upper * signs[:, None]


@njit
def nearest_coordinates(targets: Floats, upper: Floats, found: Ints) -> None:
    """For each target y write the integer z that minimises |y - R z| (Schnorr-Euchner).

    Depth first from the last coordinate, candidates in order of distance, pruned by the best
    distance so far. Of equally near points the one found first is kept.
    """
    size = upper.shape[0]
    centre = np.zeros(size)
    partial = np.zeros(size + 1)
    point = np.zeros(size, np.int64)
    step = np.zeros(size, np.int64)
    for row in range(targets.shape[0]):
        best = np.inf
        level = size - 1
        descended = True
        while level < size:
            if descended:
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
                descended = False
            elif level > 0:
                partial[level] = distance
                level -= 1
                descended = True
                continue
            else:
                best = distance
                for j in range(size):
                    found[row, j] = point[j]
                descended = False
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
    descended = True
    while level < size:
        if descended:
            rest = -shift[level]
            for j in range(level + 1, size):
                rest -= upper[level, j] * point[j]
            middle[level] = rest / upper[level, level]
            half_width = (
                np.sqrt(max(squared_radius - partial[level + 1], 0.0)) / upper[level, level]
            )
            point[level] = np.int64(np.ceil(middle[level] - half_width))
            last[level] = np.int64(np.floor(middle[level] + half_width))
        if point[level] > last[level]:
            level += 1
            descended = False
        elif level > 0:
            gap = (point[level] - middle[level]) * upper[level, level]
            partial[level] = partial[level + 1] + gap * gap
            level -= 1
            descended = True
            continue
        else:
            if count < found.shape[0]:
                for j in range(size):
                    found[count, j] = point[j]
            count += 1
            descended = False
        if level < size:
            point[level] += 1
    return count


def perturbed_costs(points: Floats) -> Floats:
    """|q|^2 plus a fixed fraction of the perturbation that differs for every point."""
    golden = 0.6180339887498949
    fractions = (np.arange(1, len(points) + 1) * golden) % 1.0
    scale = PERTURBATION * np.max(np.sum(points**2, axis=1))
    return np.asarray(np.sum(points**2, axis=1) + scale * fractions**2)


def first_simplex(points: Floats, costs: Floats) -> Ints:
    """Indices of one Delaunay simplex, near the origin.

    L times, the plane costs >= a.q + b is tilted about the points that it touches until it touches
    one more.
    """
    touched = [int(np.argmin(costs))]
    gaps = costs - costs[touched[0]]
    rest = points - points[touched[0]]
    for _ in range(points.shape[1]):
        direction = rest[np.argmax(np.sum(rest**2, axis=1))]
        rise = rest @ direction
        ahead = rise > PIVOT_TOLERANCE * (direction @ direction)
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
    return np.asarray(np.linalg.inv(columns))


@njit
def refresh_inverse(points: Floats, basis: Ints, inverse: Floats) -> None:
    """One Newton step X + (I - X B) X, in place; it corrects the errors that pivots accumulate."""
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
def leaving_slot(weights: Floats, basis: Ints, bland: bool) -> int:
    """Slot of the most negative weight, or (Bland) of the smallest point index; -1 if none."""
    slot = -1
    for i in range(weights.shape[0]):
        if weights[i] < -NEGATIVE_TOLERANCE:
            if slot < 0:
                slot = i
            elif bland:
                if basis[i] < basis[slot]:
                    slot = i
            elif weights[i] < weights[slot]:
                slot = i
    return slot


@njit
def entering_point(points: Floats, costs: Floats, prices: Floats, row: Floats) -> int:
    """The point that enters for the slot of `row`; -1 if none can: the block is outside."""
    dim = points.shape[1]
    best = np.inf
    entering = -1
    for j in range(points.shape[0]):
        slope = row[dim]
        for k in range(dim):
            slope += row[k] * points[j, k]
        if slope < -PIVOT_TOLERANCE:
            gap = costs[j] - prices[dim]
            for k in range(dim):
                gap -= prices[k] * points[j, k]
            ratio = -gap / slope
            if ratio < best:
                best = ratio
                entering = j
    return entering


@njit
def pivot_to_cell(
    points: Floats,
    costs: Floats,
    block: Floats,
    basis: Ints,
    inverse: Floats,
    weights: Floats,
    prices: Floats,
    column: Floats,
) -> int:
    """Pivot from the simplex in `basis` to the one that holds the block; updates all arrays."""
    dim = points.shape[1]
    size = dim + 1
    for i in range(size):
        total = inverse[i, dim]
        for k in range(dim):
            total += inverse[i, k] * block[k]
        weights[i] = total
    for pivots in range(1, MAX_PIVOTS):
        slot = leaving_slot(weights, basis, pivots > BLAND_AFTER)
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
        if pivots % REFRESH_EVERY == 0:
            refresh_inverse(points, basis, inverse)
            for k in range(size):
                prices[k] = 0.0
                for i in range(size):
                    prices[k] += costs[basis[i]] * inverse[i, k]
    return NOT_FOUND


@njit
def refine_weights(
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
    index: Indices,
    weight: Floats,
    status: Bytes,
) -> None:
    """Corners and weights of every block; status is INSIDE, OUTSIDE or NOT_FOUND (never expected).

    Every block starts from the same simplex, so its result does not depend on the other blocks.
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
        status[m] = pivot_to_cell(points, costs, blocks[m], basis, inverse, weights, prices, column)
        if status[m] == INSIDE:
            refine_weights(points, blocks[m], basis, inverse, weights, column)
        for i in range(size):
            index[m, i] = basis[i]


def reference_scalar_corners(
    x: Floats, positions: Floats, slack: float
) -> tuple[Ints, Floats, Flags]:
    """Left neighbour, weight of the right one, and which values lie outside: the definition."""
    outside = (x < positions[0] - slack) | (x > positions[-1] + slack)
    left = np.clip(np.searchsorted(positions, x, side="right") - 1, 0, len(positions) - 2)
    inside = np.clip(x, positions[left], positions[left + 1])
    weight = (inside - positions[left]) / (positions[left + 1] - positions[left])
    return left, weight, outside


@njit
def scalar_corners(
    x: Floats, positions: Floats, order: Ints, slack: float, index: Indices, weight: Floats
) -> int:
    """Fill `index` and `weight` (values, 2) for ascending equidistant positions; count overload.

    `order` gives the index of the point at each position.
    """
    last = positions.size - 2
    spacing = (positions[-1] - positions[0]) / (positions.size - 1)
    overloaded = 0
    for i in range(x.size):
        value = min(max(x[i], positions[0]), positions[-1])
        left = min(max(np.int64((value - positions[0]) / spacing), 0), last)
        # The division may be off by one unit in the last place, and so by one point.
        while left < last and value >= positions[left + 1]:
            left += 1
        while left > 0 and value < positions[left]:
            left -= 1
        right_weight = (value - positions[left]) / (positions[left + 1] - positions[left])
        index[i, 0] = order[left]
        index[i, 1] = order[left + 1]
        if x[i] < positions[0] - slack or x[i] > positions[-1] + slack:
            overloaded += 1
            index[i, 0] = index[i, 1] = order[0] if x[i] < 0 else order[last + 1]
            right_weight = 0.0
        weight[i, 0] = 1.0 - right_weight
        weight[i, 1] = right_weight
    return overloaded
