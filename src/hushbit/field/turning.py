"""A random rotation that leaves no part of a vector heavier than another.

The papers fill a vector up to a power of two and apply Hadamard's transform with random signs.
Here vectors of any length are turned without filling, which saves their schemes bits: twice over,
shuffle at random and apply the rotation of `hushbit.rotation`.
"""

import numpy as np

from hushbit.arrays import Floats
from hushbit.rotation import Rotation

PASSES = 2


class Turning:
    """A rotation of vectors of length `dim`, drawn from `rng`."""

    def __init__(self, dim: int, rng: np.random.Generator) -> None:
        self._passes = [(rng.permutation(dim), Rotation(dim, rng.bytes(32))) for _ in range(PASSES)]

    def forward(self, vector: Floats) -> Floats:
        """One vector, turned."""
        turned = np.asarray(vector, dtype=np.float64)
        for order, rotation in self._passes:
            turned = np.asarray(rotation.forward(turned[order][None])[0], dtype=np.float64)
        return turned

    def back(self, turned: Floats) -> Floats:
        """Undo `forward`."""
        for order, rotation in reversed(self._passes):
            placed = np.empty(len(turned))
            placed[order] = rotation.back(turned)
            turned = placed
        return turned
