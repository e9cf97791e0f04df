"""Rounding blocks to the points of a finite set: stochastic, dithered or nearest."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hushbit.checks import Floats, Ints, check_choice, check_finite_rows
from hushbit.errors import HushbitError, InvalidInput
from hushbit.kernels import Indices
from hushbit.kernels.lattice import (
    INSIDE,
    NOT_FOUND,
    OUTSIDE,
    basis_inverse,
    delaunay_corners,
    first_simplex,
    perturbed_costs,
    scalar_corners,
)
from hushbit.lattice.points import PointSet, spanning_corners

ROUNDINGS = ("stochastic", "dithered", "subtractive", "nearest")
DISTANCE_CHUNK = 1 << 22


@dataclass(frozen=True, eq=False)
class SoftAssignment:
    """Soft assignment of M blocks: C candidate points each, and the probability of each.

    `overloaded` counts the blocks outside the set, which are assigned to the nearest point.
    """

    index: Indices
    weight: Floats
    overloaded: int


@dataclass(frozen=True, eq=False)
class Quantizer:
    """Rounds blocks to `points`; draws no randomness itself.

    stochastic   corners of the Delaunay cell that holds the block, with barycentric weights:
                 unbiased in the whole hull. A block outside the hull is overloaded.
    dithered     nearest point of block + dither; the dither is not subtracted.
    subtractive  the same point; the decoder subtracts the dither.
    nearest      nearest point of the block; biased.

    For the last three a block is overloaded if the lattice point nearest to it (dither added) is
    not in the set. An overloaded block is assigned to the nearest point of the set.
    """

    points: PointSet
    rounding: str

    def __post_init__(self) -> None:
        if not isinstance(self.points, PointSet):
            raise InvalidInput(
                f"points is {type(self.points).__name__}; build it with scalar_points(), "
                "lattice_ball() or nested_point_sets()"
            )
        check_choice("rounding", self.rounding, ROUNDINGS)

    @property
    def uses_dither(self) -> bool:
        """Whether `soft_assign` needs a dither for every block."""
        return self.rounding in ("dithered", "subtractive")

    @cached_property
    def unbiased_radius(self) -> float:
        """Blocks up to this norm are rounded without bias.

        stochastic: the hull radius. dithered, subtractive: max(0, r_out - 2 rho), where r_out is
        the least norm of a point of the shifted lattice that is not in the set and rho is the
        covering radius, because the chosen point is at most 2 rho away from the block (scalar: the
        outermost point). nearest: 0.
        """
        if self.rounding == "stochastic":
            return self.points.hull_radius
        if self.rounding == "nearest":
            return 0.0
        return max(0.0, self._shortest_excluded_norm() - 2 * self.points.lattice.covering_radius)

    def dither(self, uniform: Any) -> Floats:
        """Map uniforms in [0, 1) of shape (M, L) to vectors uniform on the Voronoi cell."""
        return self.points.lattice.dither(check_finite_rows("uniform", uniform, self.points.dim))

    def soft_assign(self, blocks: Any, dither: Any = None) -> SoftAssignment:
        """Candidate points and weights for blocks (M, L); C = L + 1 if stochastic, otherwise 1."""
        rows = check_finite_rows("blocks", blocks, self.points.dim)
        if self.uses_dither:
            return self._nearest_assignment(rows + self._checked_dither(dither, len(rows)))
        if dither is not None:
            raise InvalidInput(f"{self.rounding} rounding takes no dither; leave it out")
        if self.rounding == "nearest":
            return self._nearest_assignment(rows)
        if self.points.dim == 1:
            return self._scalar_assignment(rows)
        return self._cell_assignment(rows)

    def nearest(self, blocks: Any) -> Indices:
        """Index of the point of the set nearest to each block; the lowest index on a tie."""
        rows = check_finite_rows("blocks", blocks, self.points.dim)
        radius = self.points.radius
        unit = self.points.positions / radius
        energies = np.sum(unit**2, axis=1) / 2
        found = np.empty(len(rows), np.int32)
        chunk = max(1, DISTANCE_CHUNK // self.points.size)
        for begin in range(0, len(rows), chunk):
            part = rows[begin : begin + chunk]
            # Dividing large blocks by their size keeps the products finite and does not change the
            # order.
            size = np.maximum(radius, np.abs(part).max(axis=1, keepdims=True))
            scores = (part / size) @ unit.T - energies * (radius / size)
            found[begin : begin + chunk] = np.argmax(scores, axis=1)
        return found

    def _checked_dither(self, dither: Any, count: int) -> Floats:
        if dither is None:
            raise InvalidInput(
                f"{self.rounding} rounding needs a dither; make it with Quantizer.dither"
            )
        rows = check_finite_rows("dither", dither, self.points.dim)
        if len(rows) != count:
            raise InvalidInput(f"dither has {len(rows)} rows for {count} blocks; give one each")
        longest = self.points.lattice.covering_radius * (1 + 1e-9)
        if np.sum(rows**2, axis=1).max() > longest**2:
            raise InvalidInput("dither leaves the Voronoi cell; make it with Quantizer.dither")
        return rows

    def _scalar_assignment(self, rows: Floats) -> SoftAssignment:
        """Scalar points: the two neighbours, each weighted by the distance to the other one."""
        order, positions = self._sorted_points
        index = np.empty((len(rows), 2), np.int32)
        weight = np.empty((len(rows), 2))
        # Rounding may move a block that equals the outermost point one unit beyond it.
        slack = 1e-12 * self.points.radius
        count = scalar_corners(rows[:, 0], positions, order, slack, index, weight)
        return SoftAssignment(index, weight, int(count))

    def _cell_assignment(self, rows: Floats) -> SoftAssignment:
        unit, costs, start, inverse = self._delaunay
        shape = (len(rows), self.points.dim + 1)
        index, weight = np.empty(shape, np.int32), np.empty(shape)
        status = np.empty(len(rows), np.uint8)
        limit = 2 * self.points.radius
        scaled = np.clip(rows, -limit, limit) / self.points.radius
        # Nothing beyond the radius is in the hull: do not spend pivots on it.
        far = np.sum(scaled**2, axis=1) > 1 + 1e-9
        scaled[far] = 0.0
        delaunay_corners(unit, costs, start, inverse, scaled, index, weight, status)
        if (status == NOT_FOUND).any():
            raise HushbitError("the search for a Delaunay cell did not end: report these points")
        outside = far | (status == OUTSIDE)
        if outside.any():
            index[outside] = self.nearest(rows[outside])[:, None]
            weight[outside] = 0.0
            weight[outside, 0] = 1.0
        return SoftAssignment(index, weight, int(outside.sum()))

    def _nearest_assignment(self, rows: Floats) -> SoftAssignment:
        """The lattice decoder where its point is in the set, otherwise a search of all N points."""
        points = self.points
        limit = points.radius + points.lattice.covering_radius * (1 + 1e-9)
        close = np.flatnonzero(np.abs(rows).max(axis=1) <= limit)
        index = np.full(len(rows), -1, np.int32)
        if len(close):
            offsets = points.lattice.nearest(rows[close] - points.positions[0])
            index[close] = self._index_of(points.coords[0] + points.modulus * offsets)
        outside = index < 0
        if outside.any():
            index[outside] = self.nearest(rows[outside])
        return SoftAssignment(index[:, None], np.ones((len(rows), 1)), int(outside.sum()))

    def _index_of(self, coords: Ints) -> Ints:
        """Index of each integer point in the set, -1 for a point that is not in it."""
        keys, order, factors = self._lookup
        place = np.minimum(np.searchsorted(keys, coords @ factors), len(keys) - 1)
        index = order[place]
        return np.where((self.points.coords[index] == coords).all(axis=1), index, -1)

    @cached_property
    def _lookup(self) -> tuple[Ints, Ints, Ints]:
        """Sorted integer keys of the points, their order and factors; keys may wrap around."""
        coords = self.points.coords
        for seed in range(100):
            state = np.random.SeedSequence(seed).generate_state(self.points.dim, np.uint64)
            factors = (state | np.uint64(1)).view(np.int64)
            keys = coords @ factors
            order = np.argsort(keys, kind="stable")
            if (np.diff(keys[order]) != 0).all():
                return keys[order], order, factors
        raise HushbitError("no distinct keys for these points: report them")  # pragma: no cover

    @cached_property
    def _sorted_points(self) -> tuple[Ints, Floats]:
        """Scalar points in ascending order: their indices and positions."""
        order = np.argsort(self.points.coords[:, 0] * np.sign(self.points.basis[0, 0]))
        return order, self.points.positions[order, 0]

    @cached_property
    def _delaunay(self) -> tuple[Floats, Floats, Ints, Floats]:
        """Unit points, costs, and the Delaunay simplex at the origin with its inverse."""
        unit = self.points.positions / self.points.radius
        if spanning_corners(unit) is None:
            raise InvalidInput("the points lie in a plane; add points outside it")
        costs = perturbed_costs(unit)
        simplex = first_simplex(unit, costs)
        index = np.empty((1, len(simplex)), np.int32)
        status = np.empty(1, np.uint8)
        origin, weight = np.zeros((1, self.points.dim)), np.empty((1, len(simplex)))
        inverse = basis_inverse(unit, simplex)
        delaunay_corners(unit, costs, simplex, inverse, origin, index, weight, status)
        if status[0] != INSIDE:
            raise InvalidInput("the points do not enclose the origin; add points around it")
        simplex = index[0].astype(np.int64)
        return unit, costs, simplex, basis_inverse(unit, simplex)

    def _shortest_excluded_norm(self) -> float:
        """Least norm of a point of the shifted lattice that is not in the set."""
        points, origin = self.points, self.points.positions[0]
        radius = points.radius
        while True:
            found = points.lattice.within(radius, origin)
            missing = found[self._index_of(points.coords[0] + points.modulus * found) < 0]
            if len(missing):
                positions = origin + missing @ points.lattice.generator
                return float(np.sqrt(np.min(np.sum(positions**2, axis=1))))
            radius = 1.1 * radius + 1e-9 * points.lattice.covering_radius
