"""How large a ball around the origin fits into the convex hull of finitely many points."""

import numpy as np
from numpy.typing import NDArray

from hushbit.arrays import Floats, Ints

JITTER = 1e-9
TIGHT = 1e-6
MOST_FACETS = 300_000


def hull_radius(positions: Floats) -> float:
    """Largest r such that |x| <= r implies that x is in the convex hull; 0 if there is none.

    r = min over facets of the distance of the facet's plane from the origin. A hull of a few
    points is grown where it is nearest to the origin, by the farthest point beyond that
    facet; when nothing lies beyond, no later facet can be nearer and r is found. Exact up to
    rounding; should more than 300 000 facets be needed, the radius reached so far (a valid
    lower bound) is returned.
    """
    size = float(np.sqrt(np.max(np.sum(positions**2, axis=1))))
    if size == 0.0:
        return 0.0
    unit = positions / size
    if unit.shape[1] == 1:
        return max(0.0, size * float(min(unit.max(), -unit.min())))
    # A tiny fixed jitter makes every facet a simplex; `_polished` takes its effect out again.
    points = unit + JITTER * np.random.default_rng(0).uniform(-1, 1, unit.shape)
    corners = spanning_corners(unit)
    if corners is None:
        return 0.0
    normal, distance = _nearest_facet(points, corners)
    return max(0.0, size * _polished(unit, normal, distance))


def spanning_corners(points: Floats) -> Ints | None:
    """Indices of L + 1 affinely independent points, far apart; None if there are none."""
    chosen = [int(np.argmax(np.sum(points**2, axis=1)))]
    rest = points - points[chosen[0]]
    for _ in range(points.shape[1]):
        lengths = np.sum(rest**2, axis=1)
        best = int(np.argmax(lengths))
        if lengths[best] < 1e-18:
            return None
        axis = rest[best] / np.sqrt(lengths[best])
        rest = rest - np.outer(rest @ axis, axis)
        chosen.append(best)
    return np.array(chosen)


def _nearest_facet(points: Floats, corners: Ints) -> tuple[Floats, float]:
    """Outward normal and signed distance of the hull's plane nearest to the origin."""
    inside = points[corners].mean(axis=0)
    count, dim = points.shape
    labels = np.random.SeedSequence(0).generate_state(count, np.uint64).astype(np.uint64)
    facets = np.array([np.delete(corners, i) for i in range(dim + 1)])
    normals, distances = _planes(points, facets, inside)
    while True:
        weakest = int(np.argmin(distances))
        beyond = points @ normals[weakest] - distances[weakest]
        beyond[facets[weakest]] = 0.0
        apex = int(np.argmax(beyond))
        if beyond[apex] <= JITTER * 1e-3 or len(facets) > MOST_FACETS:
            return normals[weakest], float(distances[weakest])
        seen = normals @ points[apex] > distances
        seen[weakest] = True
        gone = np.flatnonzero(seen)
        ridges = _border(facets[gone], labels)
        fresh = np.column_stack([ridges, np.full(len(ridges), apex)])
        planes = _planes(points, fresh, inside)
        # Rows of vanished facets are used again; a row without a facet has infinite distance.
        distances[gone] = np.inf
        empty = np.flatnonzero(np.isinf(distances))
        missing = len(fresh) - len(empty)
        if missing > 0:
            extra = missing + len(facets) // 2
            empty = np.concatenate([empty, np.arange(len(facets), len(facets) + missing)])
            facets = np.concatenate([facets, np.zeros((extra, dim), facets.dtype)])
            normals = np.concatenate([normals, np.zeros((extra, dim))])
            distances = np.concatenate([distances, np.full(extra, np.inf)])
        rows = empty[: len(fresh)]
        facets[rows], normals[rows], distances[rows] = fresh, *planes


def _border(facets: Ints, labels: NDArray[np.uint64]) -> Ints:
    """Ridges that belong to exactly one of the facets, found by sums of 64-bit vertex labels."""
    dim = facets.shape[1]
    vertex_labels = labels[facets]
    keys = (vertex_labels.sum(axis=1, dtype=np.uint64)[:, None] - vertex_labels).ravel()
    _, first, times = np.unique(keys, return_index=True, return_counts=True)
    facet, left_out = np.divmod(first[times == 1], dim)
    others = np.array([np.delete(np.arange(dim), i) for i in range(dim)])
    ridges: Ints = facets[facet[:, None], others[left_out]]
    return ridges


def _planes(points: Floats, facets: Ints, inside: Floats) -> tuple[Floats, Floats]:
    """Outward unit normals and signed distances from the origin of the facets' planes."""
    spokes = points[facets] - inside
    slopes = np.linalg.solve(spokes, np.ones((*facets.shape, 1)))[..., 0]
    lengths = np.sqrt(np.sum(slopes**2, axis=1))
    normals = slopes / lengths[:, None]
    return normals, 1 / lengths + normals @ inside


def _polished(unit: Floats, normal: Floats, distance: float) -> float:
    """The distance again, from the plane through all points that the facet really touches."""
    support = unit @ normal
    if distance <= TIGHT:
        return 0.0
    touching = unit[support >= support.max() - TIGHT]
    slope = np.linalg.lstsq(touching, np.ones(len(touching)), rcond=None)[0]
    exact = 1 / float(np.sqrt(slope @ slope))
    fits = float(np.max(unit @ slope)) <= 1 + 1e-9 and abs(exact - distance) < TIGHT
    return exact if fits else distance
