"""Lattices: nearest point, dither that is uniform on the Voronoi cell, second moment.

A point is `z @ generator` with integer z; the rows of the generator are the basis vectors. Z, A2,
D4 and E8 have closed-form decoders and exact constants, after Conway and Sloane, "Sphere Packings,
Lattices and Groups". For any other full-rank matrix the nearest point is searched exactly.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hushbit.checks import Floats, Ints, check_finite, check_positive
from hushbit.errors import InvalidInput
from hushbit.kernels.lattice import (
    ball_coordinates,
    lower_triangular_basis,
    nearest_coordinates,
    reduced_basis,
)

MAX_CONDITION = 1e6
MAX_COORDINATE = 2.0**40
MOMENT_SAMPLES = 1 << 15
MAX_DIM = 16


@dataclass(frozen=True)
class NamedLattice:
    """A named lattice at scale 1: basis, normalised second moment, covering radius, decoder."""

    generator: Floats
    normalised_moment: float
    covering_radius: float
    decode: Callable[[Floats], Floats]

    @cached_property
    def inverse(self) -> Floats:
        """Maps a lattice point back to its integer coordinates."""
        return np.asarray(np.linalg.inv(self.generator), dtype=np.float64)


def read_only(array: Floats) -> Floats:
    """The same array, read-only from now on."""
    array.setflags(write=False)
    return array


def _decode_checkerboard(x: Floats) -> Floats:
    """Nearest point of D_n: round; if the sum is odd, round the worst entry the other way."""
    rounded = np.rint(x)
    odd = rounded.sum(axis=-1) % 2 != 0
    worst = np.argmax(np.abs(x - rounded), axis=-1)[..., None]
    entry = np.take_along_axis(rounded, worst, axis=-1)
    side = np.where(np.take_along_axis(x, worst, axis=-1) >= entry, 1.0, -1.0)
    np.put_along_axis(rounded, worst, entry + side * odd[..., None], axis=-1)
    return rounded


def _nearer(x: Floats, first: Floats, second: Floats) -> Floats:
    """For each row the nearer of two candidates; the first on a tie."""
    gap_first = np.sum((x - first) ** 2, axis=-1)
    gap_second = np.sum((x - second) ** 2, axis=-1)
    return np.where((gap_first <= gap_second)[..., None], first, second)


def _decode_hexagonal(x: Floats) -> Floats:
    """Nearest point of A2, the union of a 1 x sqrt(3) rectangular lattice and its centred copy."""
    sides, centre = np.array([1.0, np.sqrt(3)]), np.array([0.5, np.sqrt(3) / 2])
    corner = np.rint(x / sides) * sides
    middle = np.rint((x - centre) / sides) * sides + centre
    return _nearer(x, corner, middle)


def _decode_e8(x: Floats) -> Floats:
    """Nearest point of E8, the union of D8 and D8 + (1/2, ..., 1/2)."""
    return _nearer(x, _decode_checkerboard(x), _decode_checkerboard(x - 0.5) + 0.5)


def _e8_rows() -> Floats:
    rows = np.eye(8) - np.eye(8, k=-1)
    rows[0, 0], rows[7] = 2.0, 0.5
    return rows


def _d4_rows() -> Floats:
    return np.array([[-1.0, -1, 0, 0], [1, -1, 0, 0], [0, 1, -1, 0], [0, 0, 1, -1]])


_HEXAGONAL = np.array([[1.0, 0.0], [0.5, np.sqrt(3) / 2]])
NAMED = {
    "Z": NamedLattice(read_only(np.eye(1)), 1 / 12, 0.5, np.rint),
    "A2": NamedLattice(read_only(_HEXAGONAL), 5 / (36 * 3**0.5), 3**-0.5, _decode_hexagonal),
    "D4": NamedLattice(read_only(_d4_rows()), 13 / (120 * 2**0.5), 1.0, _decode_checkerboard),
    "E8": NamedLattice(read_only(_e8_rows()), 929 / 12960, 1.0, _decode_e8),
}


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

        Exact for named lattices. For a general matrix the mean over 32 768 points of a fixed
        Kronecker sequence, with a relative error below 1e-3.
        """
        known = NAMED.get(self.name)
        if known is not None:
            return float(self.dim * known.normalised_moment * self.volume ** (2 / self.dim))
        errors = self.dither(_kronecker(MOMENT_SAMPLES, self.dim))
        return float(np.mean(np.sum(errors**2, axis=1)))

    @cached_property
    def covering_radius(self) -> float:
        """Largest distance from any position to its nearest lattice point.

        Exact for named lattices. For a general matrix the upper bound of the nearest-plane
        algorithm, sqrt(sum |b*_i|^2) / 2 over the orthogonalised reduced basis.
        """
        known = NAMED.get(self.name)
        if known is not None:
            return known.covering_radius * self.scale
        upper = self._search_basis[2]
        return float(np.sqrt(np.sum(np.diag(upper) ** 2)) / 2)

    def scaled(self, factor: float) -> "Lattice":
        """The lattice with every point multiplied by `factor` > 0."""
        factor = check_positive("factor", factor)
        generator = read_only(self.generator * factor)
        return Lattice(self.name, generator, self.scale * factor)

    def nearest(self, x: Any) -> Ints:
        """Integer coordinates (..., L) of the lattice point nearest to each x (..., L).

        Ties are broken in the same way every time.

        >>> lattice("A2").nearest([0.9, 0.1]).tolist()
        [1, 0]
        """
        positions = self._checked_positions("x", x)
        known = NAMED.get(self.name)
        if known is not None:
            points = known.decode(positions / self.scale)
            return np.asarray(np.rint(points @ known.inverse), dtype=np.int64)
        change, rotation, upper = self._search_basis
        targets = positions.reshape(-1, self.dim) @ rotation
        found = np.zeros(targets.shape, np.int64)
        nearest_coordinates(targets, upper, found)
        return np.asarray((found @ change).reshape(positions.shape))

    def dither(self, uniform: Any) -> Floats:
        """Map uniform (..., L) in [0, 1) to vectors uniform on the Voronoi cell.

        u = uniform @ generator minus its nearest lattice point.
        """
        fractions = self._checked_positions("uniform", uniform)
        if (fractions < 0).any() or (fractions >= 1).any():
            raise InvalidInput("uniform has entries outside [0, 1); draw them from [0, 1)")
        positions = fractions @ self.generator
        return np.asarray(positions - self.nearest(positions) @ self.generator)

    def within(self, radius: float, shift: Any) -> Ints:
        """All integer z with |z @ generator + shift| <= radius, in lexicographic order."""
        limit = check_positive("radius", radius) ** 2
        change, rotation, upper = self._search_basis
        moved = self._checked_positions("shift", shift) @ rotation
        count = ball_coordinates(moved, upper, limit, np.zeros((0, self.dim), np.int64))
        found = np.zeros((count, self.dim), np.int64)
        ball_coordinates(moved, upper, limit, found)
        found = found @ change
        return found[np.lexsort(found.T[::-1])]

    def _checked_positions(self, name: str, x: Any) -> Floats:
        positions = check_finite(name, x)
        if positions.ndim == 0 or positions.shape[-1] != self.dim:
            raise InvalidInput(
                f"{name} has shape {positions.shape}; its last axis must have length {self.dim}"
            )
        if np.abs(positions).max() > MAX_COORDINATE * self.volume ** (1 / self.dim):
            raise InvalidInput(
                f"{name} is more than 2^40 cells from the origin; scale it down or the lattice up"
            )
        return positions

    @cached_property
    def _search_basis(self) -> tuple[Ints, Floats, Floats]:
        """Change of basis, rotation and triangular matrix for the exact searches."""
        basis, change = reduced_basis(self.generator)
        rotation, upper = lower_triangular_basis(basis)
        return change, rotation, upper


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
    matrix = check_finite("generator", spec)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) > MAX_DIM:
        raise InvalidInput(
            f"generator has shape {matrix.shape}; give a square matrix with at most {MAX_DIM} rows"
        )
    condition = float(np.linalg.cond(matrix))
    if not condition <= MAX_CONDITION:
        raise InvalidInput(
            f"generator has condition number {condition:.3g}; it must have full rank and stay "
            f"below {MAX_CONDITION:g}: give shorter, less parallel basis vectors"
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
    return np.outer(np.arange(1.0, count + 1), slopes) % 1.0
