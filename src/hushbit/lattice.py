"""Lattices: nearest point, Voronoi-uniform dither, second moment.

A point is `z @ generator` with integer z; the rows of the generator are the basis vectors.
Z, A2, D4 and E8 have closed-form decoders (Conway and Sloane); any other full-rank matrix is
searched exactly.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hushbit.arrays import Floats, Ints, finite_floats
from hushbit.checks import positive
from hushbit.errors import InvalidInput
from hushbit.kernels.closest import (
    ball_coordinates,
    nearest_coordinates,
    reduced_basis,
    triangular,
)
from hushbit.named_lattices import NAMED, read_only

LARGEST_CONDITION = 1e6
LARGEST_COORDINATE = 2.0**40
MOMENT_SAMPLES = 1 << 15
LARGEST_DIM = 16


@dataclass(frozen=True, eq=False)
class Lattice:
    """All integer combinations of the rows of `generator`; build one with `lattice(...)`.

    `scale` is the factor to the standard form of a named lattice.
    """

    name: str
    generator: Floats
    scale: float = 1.0

    @property
    def dim(self) -> int:
        """Dimension L."""
        return int(self.generator.shape[0])

    @cached_property
    def volume(self) -> float:
        """Volume V of the Voronoi cell, |det generator|."""
        return float(abs(np.linalg.det(self.generator)))

    @cached_property
    def second_moment(self) -> float:
        """D = E|u|^2 = L G V^(2/L) for u uniform on the Voronoi cell.

        Exact for named lattices. For a general matrix a mean over 32 768 points of a Kronecker
        sequence, always the same; its relative error is below 1e-3.
        """
        known = NAMED.get(self.name)
        if known is not None:
            return float(self.dim * known.normalised_moment * self.volume ** (2 / self.dim))
        errors = self.dither(_kronecker(MOMENT_SAMPLES, self.dim))
        return float(np.mean(np.sum(errors**2, axis=1)))

    @cached_property
    def covering_radius(self) -> float:
        """Largest distance from any place to its nearest lattice point.

        Exact for named lattices. For a general matrix the upper bound of the nearest-plane
        algorithm, sqrt(sum |b*_i|^2) / 2 over the orthogonalised reduced basis.
        """
        known = NAMED.get(self.name)
        if known is not None:
            return known.covering_radius * self.scale
        upper = self._search[2]
        return float(np.sqrt(np.sum(np.diag(upper) ** 2)) / 2)

    def scaled(self, factor: float) -> "Lattice":
        """The lattice with every point multiplied by `factor` > 0."""
        factor = positive("factor", factor)
        generator = read_only(self.generator * factor)
        return Lattice(self.name, generator, self.scale * factor)

    def nearest(self, x: Any) -> Ints:
        """Integer coordinates (..., L) of the lattice point nearest to each x (..., L).

        Ties are broken the same way every time.

        >>> lattice("A2").nearest([0.9, 0.1]).tolist()
        [1, 0]
        """
        places = self._places("x", x)
        known = NAMED.get(self.name)
        if known is None:
            return self._searched(places)
        points = known.decode(places / self.scale)
        coordinates: Ints = np.rint(points @ known.inverse).astype(np.int64)
        return coordinates

    def dither(self, uniform: Any) -> Floats:
        """Map uniform (..., L) in [0, 1) to vectors uniform on the Voronoi cell.

        u = uniform @ generator, less its nearest lattice point.
        """
        shares = self._places("uniform", uniform)
        if (shares < 0).any() or (shares >= 1).any():
            raise InvalidInput("uniform has entries outside [0, 1); draw them from [0, 1)")
        places = shares @ self.generator
        reduced: Floats = places - self.nearest(places) @ self.generator
        return reduced

    def within(self, radius: float, shift: Any) -> Ints:
        """All integer z with |z @ generator + shift| <= radius, in lexicographic order."""
        limit = positive("radius", radius) ** 2
        change, rotation, upper = self._search
        moved = self._places("shift", shift) @ rotation
        count = ball_coordinates(moved, upper, limit, np.zeros((0, self.dim), np.int64))
        found = np.zeros((count, self.dim), np.int64)
        ball_coordinates(moved, upper, limit, found)
        found = found @ change
        return found[np.lexsort(found.T[::-1])]

    def _places(self, name: str, x: Any) -> Floats:
        places = finite_floats(name, x)
        if places.ndim == 0 or places.shape[-1] != self.dim:
            raise InvalidInput(
                f"{name} has shape {places.shape}; its last axis must have length {self.dim}"
            )
        if np.abs(places).max() > LARGEST_COORDINATE * self.volume ** (1 / self.dim):
            raise InvalidInput(
                f"{name} is more than 2^40 cells from the origin; scale it down or the lattice up"
            )
        return places

    @cached_property
    def _search(self) -> tuple[Ints, Floats, Floats]:
        """Change of basis, rotation and triangle for the exact searches."""
        basis, change = reduced_basis(self.generator)
        rotation, upper = triangular(basis)
        return change, rotation, upper

    def _searched(self, places: Floats) -> Ints:
        change, rotation, upper = self._search
        targets = places.reshape(-1, self.dim) @ rotation
        found = np.zeros(targets.shape, np.int64)
        nearest_coordinates(targets, upper, found)
        coordinates: Ints = (found @ change).reshape(places.shape)
        return coordinates


def lattice(spec: Any) -> Lattice:
    """The lattice named "Z", "A2", "D4" or "E8", or that of a full-rank square matrix.

    >>> lattice("E8").volume
    1.0
    """
    if isinstance(spec, Lattice):
        return spec
    if isinstance(spec, str):
        if spec not in NAMED:
            raise InvalidInput(f"lattice is {spec!r}; choose one of {', '.join(NAMED)} or a matrix")
        return Lattice(spec, NAMED[spec].generator)
    matrix = finite_floats("generator", spec)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) > LARGEST_DIM:
        raise InvalidInput(
            f"generator has shape {matrix.shape}; give a square matrix with at most "
            f"{LARGEST_DIM} rows"
        )
    condition = float(np.linalg.cond(matrix))
    if not condition <= LARGEST_CONDITION:
        raise InvalidInput(
            f"generator has condition number {condition:.3g}; it must have full rank and stay "
            f"below {LARGEST_CONDITION:g}: give shorter, less parallel basis vectors"
        )
    if not 1e-100 < np.abs(matrix).max() < 1e100:
        raise InvalidInput("generator has entries beyond 1e100 or all below 1e-100; rescale it")
    return Lattice("matrix", read_only(matrix.copy()))


def _kronecker(count: int, dim: int) -> Floats:
    """Low-discrepancy points in [0, 1)^dim: k * (1/t, 1/t^2, ...) mod 1 with t^(dim+1) = t + 1."""
    root = 2.0
    for _ in range(64):
        root = (1 + root) ** (1 / (dim + 1))
    slopes = root ** -np.arange(1.0, dim + 1)
    steps: Floats = np.outer(np.arange(1.0, count + 1), slopes) % 1.0
    return steps
