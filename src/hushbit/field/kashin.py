"""Kashin's representation: a few times as many coordinates, none of them large.

A random frame of N >= 4 dim vectors (dim random columns of a Hadamard matrix, with random signs)
gives every vector many sets of coefficients. Among them are some with all |a_j| <= LEVEL |x| /
sqrt(N), found by going back and forth between that cube and the sets that add up to x.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hushbit.arrays import Floats
from hushbit.kernels.hadamard import transform

LEVEL = 1.6
"""Every vector tried has such coefficients in frames of this size; 1.4 is not always enough."""

STEPS = 500
OVERSHOOT = 1.6  # any factor below 2 converges, this one in half as many steps
SETTLED = 1e-6


@dataclass(frozen=True, eq=False)
class Frame:
    """`size` vectors f_j in R^dim with sum f_j f_j^T = I."""

    size: int
    columns: NDArray[np.int64]
    signs: Floats

    def coefficients(self, vectors: Floats) -> Floats:
        """<x, f_j> for every j; a column for each column of `vectors`."""
        spread = np.zeros((self.size, vectors.shape[1]))
        spread[self.columns] = vectors * self.signs[:, None]
        transform(spread.reshape(-1), self.size, vectors.shape[1])
        return spread

    def combine(self, coefficients: Floats) -> Floats:
        """sum a_j f_j, for every column."""
        turned = coefficients.copy()
        transform(turned.reshape(-1), self.size, coefficients.shape[1])
        return np.asarray(turned[self.columns] * self.signs[:, None])


def random_frame(dim: int, rng: np.random.Generator) -> Frame:
    """A frame of the smallest power of two that is at least 4 dim."""
    size = 1 << math.ceil(math.log2(4 * dim))
    # Neighbouring columns would repeat the same few vectors: the choice must be random.
    columns = rng.permutation(size)[:dim]
    return Frame(size, columns, np.where(rng.random(dim) < 0.5, 1.0, -1.0))


def edge(frame: Frame) -> float:
    """The largest coefficient that a vector of length 1 gets."""
    return LEVEL / math.sqrt(frame.size)


def even_coefficients(vectors: Floats, frame: Frame) -> Floats:
    """Coefficients of vectors (columns) of length at most 1, none beyond `edge`.

    The cube is entered last, so the bound always holds; what is missing of x is below 1e-6
    for all but freak frames.
    """
    limit = edge(frame)
    spread = frame.coefficients(vectors)
    for _ in range(STEPS):
        inside = np.clip(spread, -limit, limit)
        missing = vectors - frame.combine(inside)
        if float(np.linalg.norm(missing, axis=0).max()) < SETTLED:
            break
        spread = inside + OVERSHOOT * frame.coefficients(missing)
    return np.clip(spread, -limit, limit)
