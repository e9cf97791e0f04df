"""Which points of a lattice, or of a shifted lattice, make a good finite set.

A shifted lattice is written with integers: shift / step in lattice coordinates, so that the
point z is (step * z + shift) @ (generator / step).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import gamma, pi

import numpy as np

from hushbit.arrays import Floats, Ints
from hushbit.hull import hull_radius
from hushbit.kernels.closest import reduced_basis
from hushbit.lattice import Lattice

SAME_SHELL = 1e-9
MOST_HULLS = 8


@dataclass(frozen=True)
class Shifted:
    """Integer points of one shifted lattice, all congruent modulo `step`."""

    coords: Ints
    step: int


def shifts(lattice: Lattice) -> Iterator[tuple[int, Ints]]:
    """(step, shift) of the shifts to try: none, the hole of A2, the classes of half the lattice.

    The deep holes of D4 and E8 are among the half-lattice classes.
    """
    yield 1, np.zeros(lattice.dim, np.int64)
    if lattice.name == "A2":
        yield 3, np.ones(2, np.int64)
    for bits in product((0, 1), repeat=lattice.dim):
        if any(bits):
            yield 2, np.array(bits, np.int64)


def squared_norms(lattice: Lattice, points: Shifted) -> Floats:
    """|q|^2 of every point."""
    norms: Floats = np.sum((points.coords @ (lattice.generator / points.step)) ** 2, axis=1)
    return norms


def within(lattice: Lattice, step: int, shift: Ints, radius: float) -> Shifted:
    """Points of the shifted lattice up to `radius`, shell by shell, each in lexicographic order."""
    found = lattice.within(radius, shift / step @ lattice.generator)
    points = Shifted(step * found + shift, step)
    norms = squared_norms(lattice, points)
    shell = _shell_numbers(norms)
    order = np.lexsort((*points.coords.T[::-1], shell))
    return Shifted(points.coords[order], step)


def smallest(lattice: Lattice, step: int, shift: Ints, count: int) -> Shifted:
    """At least `count` points of smallest norm; the last shell is complete."""
    dim = lattice.dim
    ball = pi ** (dim / 2) / gamma(dim / 2 + 1)
    radius = (count * lattice.volume / ball) ** (1 / dim)
    while True:
        points = within(lattice, step, shift, radius)
        norms = squared_norms(lattice, points)
        if len(norms) >= count:
            last = norms[count - 1] * (1 + SAME_SHELL)
            if last <= radius**2:
                return Shifted(points.coords[norms <= last], step)
        radius *= 1.1


def best_set(lattice: Lattice, count: int) -> tuple[Shifted, float] | None:
    """The `count` points chosen for `lattice`, and hull radius / radius; None if none enclose 0.

    Complete shells come first, then cuts of the last shell in antipodal pairs, then any cut;
    among equals the largest hull radius / radius, and then the earliest shift, wins. A long
    thin lattice whose short points do not enclose the origin is cut as if its reduced basis
    were orthonormal.
    """
    if count <= lattice.dim:
        return None
    for candidates in _candidates(lattice, count):
        best: tuple[Shifted, float] | None = None
        for points in candidates[:MOST_HULLS]:
            ratio = _hull_ratio(lattice, points)
            if ratio > 1e-6 and (best is None or ratio > best[1] * (1 + SAME_SHELL)):
                best = points, ratio
        if best is not None:
            return best
    return _best_cube(lattice, count) if lattice.name == "matrix" else None


def _best_cube(lattice: Lattice, count: int) -> tuple[Shifted, float] | None:
    cubic = Lattice("cubic", np.eye(lattice.dim))
    found = best_set(cubic, count)
    if found is None:
        return None
    points = Shifted(found[0].coords @ reduced_basis(lattice.generator)[1], found[0].step)
    return points, _hull_ratio(lattice, points)


def _hull_ratio(lattice: Lattice, points: Shifted) -> float:
    places = points.coords @ (lattice.generator / points.step)
    return hull_radius(places) / float(np.sqrt(squared_norms(lattice, points).max()))


def _candidates(lattice: Lattice, count: int) -> tuple[list[Shifted], ...]:
    """Sets of `count` points: with complete shells, cut in antipodal pairs, cut otherwise.

    Shifts with the same norms are equivalent in named lattices and are tried once. The sets
    with the smallest mean energy relative to their radius stand first.
    """
    seen: set[bytes] = set()
    ranks: tuple[list[tuple[float, Shifted]], ...] = ([], [], [])
    for step, shift in shifts(lattice):
        points = smallest(lattice, step, shift, count)
        norms = squared_norms(lattice, points)
        signature = np.round(norms / norms[-1], 6).tobytes()
        if signature in seen or norms[-1] == 0.0:
            continue
        seen.add(signature)
        chosen, rank = _cut(lattice, points, norms, count)
        ranks[rank].append((float(np.mean(norms) / norms[-1]), chosen))
        if step == 1:
            hollow = smallest(lattice, step, shift, count + 1)
            if len(hollow.coords) == count + 1:
                ranks[0].append((1.0, Shifted(hollow.coords[1:], 1)))
    return tuple([points for _, points in sorted(rank, key=lambda pair: pair[0])] for rank in ranks)


def _cut(lattice: Lattice, points: Shifted, norms: Floats, count: int) -> tuple[Shifted, int]:
    """The first `count` points; a last shell that does not fit gives its most spread points."""
    if len(norms) == count:
        return points, 0
    inner = int(np.sum(norms < norms[-1] * (1 - SAME_SHELL)))
    shell = points.coords[inner:]
    symmetric = bool(np.all(2 * shell[0] % points.step == 0))
    paired = symmetric and (count - inner) % 2 == 0
    places = shell @ (lattice.generator / points.step)
    chosen = shell[_spread(places, count - inner, paired)]
    chosen = chosen[np.lexsort(chosen.T[::-1])]
    cut = Shifted(np.concatenate([points.coords[:inner], chosen]), points.step)
    return cut, 1 if paired else 2


def _spread(places: Floats, count: int, paired: bool) -> Ints:
    """Indices of `count` directions, each farthest from those before; antipodal pairs if asked."""
    cosines = places @ places.T
    closeness = np.full(len(places), -np.inf)
    chosen: list[int] = []
    while len(chosen) < count:
        # Rounding hides sub-ulp differences, so that equal candidates go by their order.
        pick = int(np.argmin(np.round(closeness / cosines[0, 0], 9)))
        picks = [pick, int(np.argmin(cosines[pick]))] if paired else [pick]
        for index in picks:
            chosen.append(index)
            closeness = np.maximum(closeness, cosines[index])
            closeness[index] = np.inf
    return np.array(chosen)


def representatives(lattice: Lattice, ratio: int) -> Shifted:
    """ratio^L points of a shifted lattice, one per class modulo ratio * lattice, of least norm.

    The shift leaves as few classes as possible without an antipodal partner (none: the points
    sum to zero), and then has the least energy. Written with step 2.
    """
    best: tuple[tuple[int, float], Ints] | None = None
    for bits in product((0, 1), repeat=lattice.dim):
        chosen, lonely = _least_of_each_class(lattice, np.array(bits, np.int64), ratio)
        energy = float(np.sum(squared_norms(lattice, Shifted(chosen, 2))))
        score = (lonely, round(energy / lattice.volume ** (2 / lattice.dim), 6))
        if best is None or score < best[0]:
            best = score, chosen
    assert best is not None
    return Shifted(best[1], 2)


def _least_of_each_class(lattice: Lattice, shift: Ints, ratio: int) -> tuple[Ints, int]:
    """One point of least norm per class, opposite classes taking opposite points."""
    reach = ratio * lattice.covering_radius * (1 + SAME_SHELL)
    points = within(lattice, 2, shift, reach).coords
    sizes = (ratio,) * lattice.dim
    own = np.ravel_multi_index(tuple(((points - shift) // 2 % ratio).T), sizes)
    opposite = np.ravel_multi_index(tuple(((-points - shift) // 2 % ratio).T), sizes)
    classes, first = np.unique(own, return_index=True)
    chosen, partner = points[first], opposite[first]
    mirrored = partner < classes
    chosen[mirrored] = -chosen[partner[mirrored]]
    lonely = int(np.sum((partner == classes) & chosen.any(axis=1)))
    return chosen, lonely


def _shell_numbers(norms: Floats) -> Ints:
    """Number of each point's shell, 0 for the innermost; norms within 1e-9 are one shell."""
    order = np.argsort(norms, kind="stable")
    ranked = norms[order]
    jumps = np.diff(ranked) > SAME_SHELL * ranked[-1] if len(norms) else np.zeros(0, bool)
    numbers = np.zeros(len(norms), np.int64)
    numbers[order] = np.concatenate([[0], np.cumsum(jumps)])[: len(norms)]
    return numbers
