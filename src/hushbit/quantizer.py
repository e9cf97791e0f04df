"""From blocks to points of a finite set: stochastic, dithered or nearest rounding."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.arrays import Floats, Ints, finite_rows
from hushbit.checks import choice
from hushbit.errors import HushbitError, InvalidInput
from hushbit.hull import spanning_corners
from hushbit.kernels.delaunay import (
    INSIDE,
    LOST,
    OUTSIDE,
    basis_inverse,
    delaunay_corners,
    first_simplex,
    perturbed_costs,
)
from hushbit.kernels.line import line_corners
from hushbit.points import Points

ROUNDINGS = ("stochastic", "dithered", "subtractive", "nearest")
DISTANCES_AT_ONCE = 1 << 22


@dataclass(frozen=True, eq=False)
class Corners:
    """Soft assignment of M blocks: C candidate points each, with the chance to pick each.

    `overloaded` counts the blocks that fell outside and were moved to the nearest point.
    """

    index: NDArray[np.int32]
    weight: Floats
    overloaded: int


@dataclass(frozen=True, eq=False)
class Quantizer:
    """Rounds blocks to `points`; draws no randomness itself.

    stochastic   corners of the Delaunay cell that holds the block, with barycentric weights:
                 unbiased in the whole hull. Outside the hull is overload.
    dithered     nearest point of block + dither; the dither is not taken off again.
    subtractive  the same index; whoever decodes takes the dither off.
    nearest      nearest point of the block; biased.
    For the last three a block is overloaded when the lattice point nearest to it (dither
    added) is not in the set. Overload saturates to the nearest point of the set.
    """

    points: Points
    rounding: str

    def __post_init__(self) -> None:
        if not isinstance(self.points, Points):
            raise InvalidInput(
                f"points is {type(self.points).__name__}; build it with line(), ball() or fine()"
            )
        choice("rounding", self.rounding, ROUNDINGS)

    @property
    def uses_dither(self) -> bool:
        """Whether `corners` needs a dither for every block."""
        return self.rounding in ("dithered", "subtractive")

    @cached_property
    def unbiased_radius(self) -> float:
        """Blocks up to this norm are rounded without bias.

        stochastic: the hull radius. dithered, subtractive: max(0, r_out - 2 rho), with r_out
        the least norm of a point of the shifted lattice that is not in the set and rho the
        covering radius, since the chosen point is at most 2 rho away from the block (scalar:
        the outermost point). nearest: 0.
        """
        if self.rounding == "stochastic":
            return self.points.hull_radius
        if self.rounding == "nearest":
            return 0.0
        return max(0.0, self._least_missing_norm() - 2 * self.points.lattice.covering_radius)

    def dither(self, uniform: Any) -> Floats:
        """Map uniforms in [0, 1) of shape (M, L) to vectors uniform on the Voronoi cell."""
        return self.points.lattice.dither(finite_rows("uniform", uniform, self.points.dim))

    def corners(self, blocks: Any, dither: Any = None) -> Corners:
        """Candidate points and weights for blocks (M, L); C = L + 1 if stochastic, otherwise 1."""
        rows = finite_rows("blocks", blocks, self.points.dim)
        if self.uses_dither:
            return self._nearest_corners(rows + self._checked_dither(dither, len(rows)))
        if dither is not None:
            raise InvalidInput(f"{self.rounding} rounding takes no dither; leave it out")
        if self.rounding == "nearest":
            return self._nearest_corners(rows)
        return self._line_corners(rows) if self.points.dim == 1 else self._cell_corners(rows)

    def nearest(self, blocks: Any) -> NDArray[np.int32]:
        """Index of the point of the set nearest to each block; the lowest index on a tie."""
        rows = finite_rows("blocks", blocks, self.points.dim)
        radius = self.points.radius
        unit = self.points.positions / radius
        energies = np.sum(unit**2, axis=1) / 2
        found = np.empty(len(rows), np.int32)
        chunk = max(1, DISTANCES_AT_ONCE // self.points.size)
        for begin in range(0, len(rows), chunk):
            part = rows[begin : begin + chunk]
            # Dividing far blocks by their size keeps the products finite, the order the same.
            size = np.maximum(radius, np.abs(part).max(axis=1, keepdims=True))
            scores = (part / size) @ unit.T - energies * (radius / size)
            found[begin : begin + chunk] = np.argmax(scores, axis=1)
        return found

    def _checked_dither(self, dither: Any, count: int) -> Floats:
        if dither is None:
            raise InvalidInput(f"{self.rounding} rounding needs a dither; see Quantizer.dither")
        rows = finite_rows("dither", dither, self.points.dim)
        if len(rows) != count:
            raise InvalidInput(f"dither has {len(rows)} rows for {count} blocks; give one each")
        longest = self.points.lattice.covering_radius * (1 + 1e-9)
        if np.sum(rows**2, axis=1).max() > longest**2:
            raise InvalidInput("dither leaves the Voronoi cell; make it with Quantizer.dither")
        return rows

    def _line_corners(self, rows: Floats) -> Corners:
        """Scalar: the two neighbours, weighted by the distance to the other one."""
        ladder, places = self._ladder
        index = np.empty((len(rows), 2), np.int32)
        weight = np.empty((len(rows), 2))
        # Rounding may put a block that equals the outermost point one unit beyond it.
        slack = 1e-12 * self.points.radius
        count = line_corners(rows[:, 0], places, ladder, slack, index, weight)
        return Corners(index, weight, int(count))

    def _cell_corners(self, rows: Floats) -> Corners:
        unit, costs, start, inverse = self._delaunay
        shape = (len(rows), self.points.dim + 1)
        index, weight = np.empty(shape, np.int32), np.empty(shape)
        status = np.empty(len(rows), np.int8)
        reach = 2 * self.points.radius
        scaled = np.clip(rows, -reach, reach) / self.points.radius
        # Nothing beyond the radius is in the hull; walking there would only cost time.
        far = np.sum(scaled**2, axis=1) > 1 + 1e-9
        scaled[far] = 0.0
        delaunay_corners(unit, costs, start, inverse, scaled, index, weight, status)
        if (status == LOST).any():
            raise HushbitError("the search for a Delaunay cell did not end; report these points")
        return self._saturated(rows, index, weight, far | (status == OUTSIDE))

    def _saturated(
        self,
        rows: Floats,
        index: Ints | NDArray[np.int32],
        weight: Floats,
        outside: NDArray[np.bool_],
    ) -> Corners:
        """Put the blocks outside the hull on their nearest points, and count them."""
        index = index.astype(np.int32, copy=False)
        count = int(outside.sum())
        if count:
            index[outside] = self.nearest(rows[outside])[:, None]
            weight[outside] = 0.0
            weight[outside, 0] = 1.0
        return Corners(index, weight, count)

    def _nearest_corners(self, rows: Floats) -> Corners:
        """The lattice decoder where its answer is in the set, all N points elsewhere."""
        points = self.points
        reach = points.radius + points.lattice.covering_radius * (1 + 1e-9)
        close = np.flatnonzero(np.abs(rows).max(axis=1) <= reach)
        index = np.full(len(rows), -1, np.int32)
        if len(close):
            jumps = points.lattice.nearest(rows[close] - points.positions[0])
            index[close] = self._find(points.coords[0] + points.step * jumps)
        outside = index < 0
        if outside.any():
            index[outside] = self.nearest(rows[outside])
        return Corners(index[:, None], np.ones((len(rows), 1)), int(outside.sum()))

    def _find(self, coords: Ints) -> Ints:
        """Index of each integer point in the set, -1 if it is not there."""
        keys, order, factors = self._lookup
        place = np.minimum(np.searchsorted(keys, coords @ factors), len(keys) - 1)
        index = order[place]
        return np.where((self.points.coords[index] == coords).all(axis=1), index, -1)

    @cached_property
    def _lookup(self) -> tuple[Ints, Ints, Ints]:
        """Sorted integer keys of the points; keys may wrap around but are all different."""
        coords = self.points.coords
        for seed in range(100):
            state = np.random.SeedSequence(seed).generate_state(self.points.dim, np.uint64)
            factors = (state | np.uint64(1)).view(np.int64)
            keys = coords @ factors
            order = np.argsort(keys, kind="stable")
            if (np.diff(keys[order]) != 0).all():
                return keys[order], order, factors
        raise HushbitError("no distinct keys for these points; report them")  # pragma: no cover

    @cached_property
    def _ladder(self) -> tuple[Ints, Floats]:
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
        status = np.empty(1, np.int8)
        origin, weight = np.zeros((1, self.points.dim)), np.empty((1, len(simplex)))
        inverse = basis_inverse(unit, simplex)
        delaunay_corners(unit, costs, simplex, inverse, origin, index, weight, status)
        if status[0] != INSIDE:
            raise InvalidInput("the points do not enclose the origin; add points around it")
        simplex = index[0].astype(np.int64)
        return unit, costs, simplex, basis_inverse(unit, simplex)

    def _least_missing_norm(self) -> float:
        points, origin = self.points, self.points.positions[0]
        radius = points.radius
        while True:
            found = points.lattice.within(radius, origin)
            missing = found[self._find(points.coords[0] + points.step * found) < 0]
            if len(missing):
                places = origin + missing @ points.lattice.generator
                return float(np.sqrt(np.min(np.sum(places**2, axis=1))))
            radius = 1.1 * radius + 1e-9 * points.lattice.covering_radius
