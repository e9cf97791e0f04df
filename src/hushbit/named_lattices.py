"""The lattices Z, A2, D4 and E8: bases, constants and closed-form nearest points.

Decoders and constants after Conway and Sloane, "Sphere Packings, Lattices and Groups".
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hushbit.arrays import Floats


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
        inverse: Floats = np.linalg.inv(self.generator).astype(np.float64)
        return inverse


def read_only(array: Floats) -> Floats:
    """The same array, locked against writing."""
    array.setflags(write=False)
    return array


def _decode_integers(x: Floats) -> Floats:
    rounded: Floats = np.rint(x)
    return rounded


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
    """Per row the nearer of two candidates; the first on a tie."""
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
    "Z": NamedLattice(read_only(np.eye(1)), 1 / 12, 0.5, _decode_integers),
    "A2": NamedLattice(read_only(_HEXAGONAL), 5 / (36 * 3**0.5), 3**-0.5, _decode_hexagonal),
    "D4": NamedLattice(read_only(_d4_rows()), 13 / (120 * 2**0.5), 1.0, _decode_checkerboard),
    "E8": NamedLattice(read_only(_e8_rows()), 929 / 12960, 1.0, _decode_e8),
}
